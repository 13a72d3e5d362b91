"""Locks of items in an outage: which job makes what, and how long others leave that alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from prepcache.fill.share import BUCKETS, BucketLocks
from support.fake_session import FakeDaemon
from support.fills import RECIPE, Bench, left_behind
from support.fills import daemon_fixture as daemon_fixture
from support.serving import wait_until

ITEMS = list(range(10))
OTHERS = [6, 7]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def bucket_of(bench: Bench, item: int) -> int:
    return int.from_bytes(bench.catalogue.distinct.digest(item)[:2], "big") % BUCKETS


def test_one_has_a_bucket_until_it_is_gone() -> None:
    mine, other = BucketLocks(RECIPE.digest), BucketLocks(RECIPE.digest)
    assert mine.take(1) and mine.take(1) and other.take(2)
    assert not other.take(1)
    assert BucketLocks("00" * 32).take(1), "of another recipe"
    if (pid := os.fork()) == 0:
        os._exit(0 if not BucketLocks(RECIPE.digest).take(1) and not mine.is_used else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not other.take(1), "a child's end frees nothing of its parent's"
    del mine
    assert other.take(1)


def test_without_locks_everything_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    mine, other = BucketLocks(RECIPE.digest), BucketLocks(RECIPE.digest)
    assert mine.take(1) and other.take(1)


def test_what_others_have_locked_is_made_last(daemon: FakeDaemon) -> None:
    others = BucketLocks(RECIPE.digest)

    def made(item: int) -> np.int64:
        if item == ITEMS[0]:
            bench.session.is_away = True
            assert [others.take(bucket_of(bench, other)) for other in OTHERS] == [True, True]
        return np.int64(item)

    bench = Bench(daemon, ITEMS, function=made)
    bench.fill()
    assert sorted(bench.called) == ITEMS and sorted(bench.called[-2:]) == OTHERS


def test_what_was_made_in_an_outage_is_left_to_who_made_it(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon answers, and does not know yet what others are about to commit."""
    monkeypatch.setattr("prepcache.fill.share.LEFT_S", 60.0)
    others = [BucketLocks(RECIPE.digest)]

    def made(item: int) -> np.int64:
        if len(bench.called) == len(ITEMS) - len(OTHERS):
            others.clear()  # they have committed it, or have died
        return np.int64(item)

    bench = Bench(daemon, ITEMS, function=made)
    assert [others[0].take(bucket_of(bench, other)) for other in OTHERS] == [True, True]
    bench.fill()
    assert sorted(bench.called) == ITEMS and sorted(bench.called[-2:]) == OTHERS


def test_an_outage_locks_what_was_leased_and_what_is_made(daemon: FakeDaemon) -> None:
    """Until it is committed; else jobs that lose sight of a slow daemon make what this one has leased."""
    free: list[bool] = []

    def made(item: int) -> np.int64:
        bench.session.is_away = item > 0
        return np.int64(item)

    def look(method: str) -> None:
        if method == "commit":
            free.extend(other.take(bucket_of(bench, item)) for item in ITEMS)

    bench, other = Bench(daemon, ITEMS, function=made), BucketLocks(RECIPE.digest)
    bench.session.fail = look
    bench.fill()
    assert free == [False] * len(ITEMS)
    assert wait_until(lambda: other.take(bucket_of(bench, 0))), "all is committed, and the thread is done"
    assert left_behind(daemon) == 0
