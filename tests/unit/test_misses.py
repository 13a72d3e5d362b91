"""The last miss of each name is kept, for so many names, with what was said of it first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prepcache.digests import RecipeDigest
from prepcache.protocol import inspection
from prepcached import misses as module
from prepcached.misses import Miss, Misses

ONE = RecipeDigest("1" * 64)


def explained(summary: str, name: str = "a", differences: int = 0) -> inspection.Explanation:
    lines = tuple(inspection.Difference("config", f"k{i}", "1", "2", "k") for i in range(differences))
    return inspection.Explanation(ONE, name, 0, False, None, lines, summary=summary)


def test_names_that_missed_longest_ago_are_forgotten() -> None:
    misses = Misses(limit=2)
    for name in ("a", "b", "a", "c"):
        misses.note(name, Miss(f"recipe of {name}"))
    assert misses.last("b") is None
    assert misses.last("a") == Miss("recipe of a")


def test_a_second_look_does_not_forget_the_reason_of_a_miss() -> None:
    misses = Misses()
    misses.note("a", Miss(ONE))
    assert misses.as_told(explained("purged")).summary == "purged"
    misses.note("a", Miss(ONE, session="another"))
    assert misses.as_told(replace(explained("the only one"), entries=1)).summary == "purged"
    misses.note("a", Miss(RecipeDigest("2" * 64)))
    misses.note("a", Miss(ONE, session="a third"))
    assert misses.as_told(replace(explained("the only one"), entries=1)).summary == "the only one"


def test_what_is_kept_of_explanations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOLD", 1)
    monkeypatch.setattr(module, "KEPT_DIFFERENCES", 2)
    misses = Misses()
    for name in ("a", "b"):
        misses.note(name, Miss(ONE))
        assert len(misses.as_told(explained("first", name, 5)).differences) == 5
    kept = misses.as_told(explained("later", "b"))
    assert (kept.summary, len(kept.differences), kept.more) == ("first", 2, 3)
    assert misses.as_told(explained("later", "a")).summary == "later"


def test_a_worker_tells_why_the_job_that_opened_missed() -> None:
    misses = Misses()
    misses.note_found("another", "a", ONE)
    misses.note_found("job", "a", ONE)
    misses.note_leasing("worker", ONE)
    assert misses.last("a") is None
    misses.note_leasing("worker", ONE, "5.txt is new", "data")
    [(_, miss)] = misses.latest(2)
    assert (miss.why, miss.cue, miss.session) == ("5.txt is new", "data", "job")
