"""The last miss of each name is kept, for so many names."""

from __future__ import annotations

from prepcached.misses import Miss, Misses

ONE = "1" * 64


def test_names_that_missed_longest_ago_are_forgotten() -> None:
    misses = Misses(limit=2)
    for name in ("a", "b", "a", "c"):
        misses.note(Miss(name, f"recipe of {name}"))
    assert misses.latest(9, "b") == []
    assert misses.latest(9, "a") == [Miss("a", "recipe of a")]


def test_the_first_reason_of_a_miss_stays_until_the_next_one() -> None:
    misses = Misses()
    misses.note(Miss("a", ONE, session="job"))
    for why in ("purged", "the only one"):
        misses.note_reason(ONE, why)
        misses.note(Miss("a", ONE, session="job"))
        assert misses.latest(9) == [Miss("a", ONE, why="purged", session="job")]
    misses.note(Miss("a", ONE, session="another"))
    assert misses.latest(9) == [Miss("a", ONE, session="another")]


def test_a_worker_tells_why_the_job_that_opened_missed() -> None:
    misses = Misses()
    misses.note_found("another", "a", ONE)
    misses.note_found("job", "a", ONE)
    misses.note_leasing("worker", ONE)
    assert misses.latest(9) == []
    misses.note_leasing("worker", ONE, "5.txt is new", "data")
    assert misses.latest(2) == [
        Miss("a", ONE, is_partial=True, why="5.txt is new", cue="data", session="job")
    ]
