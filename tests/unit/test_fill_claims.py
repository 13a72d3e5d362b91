"""A fill leaves to other jobs what they have claimed, when the daemon cannot know of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prepcache.daemon.claims import Claims
from support.fake_session import FakeDaemon
from support.fills import RECIPE, Bench, left_behind
from support.fills import daemon_fixture as daemon_fixture

ITEMS = list(range(10))
OTHERS = [6, 7]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def filled_beside_another_job(daemon: FakeDaemon, at_first: Callable[[Bench, Claims], None]) -> list[int]:
    """The items in the order in which a fill made them, beside a job that has claimed some of them, and that
    is killed when all others are made.

    Args:
        at_first: called as the first item is made.
    """

    def made(item: int) -> np.int64:
        if item == ITEMS[0]:
            at_first(bench, others)
        if len(bench.called) == len(ITEMS) - len(OTHERS):
            others.close()
        return np.int64(item)

    bench = Bench(daemon, ITEMS, function=made)
    others = Claims(RECIPE.digest)
    for item in OTHERS:
        assert others.take(bench.catalogue.distinct.digest(item))
    bench.fill()
    assert sorted(bench.called) == ITEMS and left_behind(daemon) == 0
    return bench.called


def test_a_daemon_that_answers_decides(daemon: FakeDaemon) -> None:
    assert filled_beside_another_job(daemon, lambda bench, others: None) == ITEMS


def test_in_an_outage_claims_decide(daemon: FakeDaemon) -> None:
    def go_away(bench: Bench, others: Claims) -> None:
        bench.session.is_away = True

    assert filled_beside_another_job(daemon, go_away)[-2:] == OTHERS


def test_after_an_outage_claims_decide_until_it_is_over_for_all(daemon: FakeDaemon) -> None:
    """The daemon answers this job, and the other one has not offered yet what it made."""
    assert filled_beside_another_job(daemon, lambda bench, others: others.note_outage())[-2:] == OTHERS


def test_a_daemon_that_has_forgotten_the_session_does_not_decide(daemon: FakeDaemon) -> None:
    """It was killed and began anew, so it grants what it had leased to others."""

    def begin_anew(bench: Bench, others: Claims) -> None:
        bench.session.header = "another-session.token"

    assert filled_beside_another_job(daemon, begin_anew)[-2:] == OTHERS


def test_what_is_leased_is_claimed_until_it_is_committed(daemon: FakeDaemon) -> None:
    def made(item: int) -> np.int64:
        claimed.append(other.is_taken(bench.catalogue.distinct.digest(0)))
        return np.int64(item)

    claimed: list[bool] = []
    bench, other = Bench(daemon, ITEMS, function=made), Claims(RECIPE.digest)
    bench.fill()
    assert claimed == [True] * len(ITEMS) and not other.is_taken(bench.catalogue.distinct.digest(0))
