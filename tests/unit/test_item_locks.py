"""Locks of items: which job makes what in an outage, and for how long others leave that alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prepcache.fill import item_locks, leases
from prepcache.fill.item_locks import ItemLocks
from support.fake_session import FakeDaemon
from support.fills import RECIPE, Bench, left_behind
from support.fills import daemon_fixture as daemon_fixture

FIRST, SECOND = os.urandom(32), os.urandom(32)
ITEMS = list(range(10))
OTHERS = [6, 7]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_one_has_an_item_until_it_is_gone(cache: Path) -> None:
    mine, other = ItemLocks(RECIPE.digest), ItemLocks(RECIPE.digest)
    assert not other.is_taken() and not cache.exists(), "to look makes no file"
    assert mine.take(FIRST) and mine.take(FIRST) and other.take(SECOND)
    assert not other.take(FIRST) and other.is_taken(FIRST) and other.is_taken()
    assert not mine.is_taken(FIRST), "its own locks"
    assert ItemLocks("00" * 32).take(FIRST), "of another recipe"
    if (pid := os.fork()) == 0:
        os._exit(0 if ItemLocks(RECIPE.digest).is_taken(FIRST) and mine._fd == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert other.is_taken(FIRST), "a child's end frees nothing of its parent's"
    del mine
    assert not other.is_taken() and other.take(FIRST)


def test_beyond_so_many_locks_everything_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_locks, "MAX_LOCKS", 1)
    mine, other = ItemLocks(RECIPE.digest), ItemLocks(RECIPE.digest)
    assert mine.take(FIRST) and mine.take(SECOND)
    assert other.is_taken(FIRST) and not other.is_taken(SECOND)


def test_without_locks_everything_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    mine, other = ItemLocks(RECIPE.digest), ItemLocks(RECIPE.digest)
    assert mine.take(FIRST) and other.take(FIRST) and not other.is_taken(FIRST)


def order_beside(daemon: FakeDaemon, at_first: Callable[[Bench], None]) -> list[int]:
    """The items in the order in which a fill made them, beside a job that has locked `OTHERS`, and ends when
    all else is made.

    Args:
        at_first: called as the first item is made.
    """
    others = [ItemLocks(RECIPE.digest)]

    def made(item: int) -> np.int64:
        if item == ITEMS[0]:
            for other in OTHERS:
                assert others[0].take(bench.catalogue.distinct.digest(other))
            at_first(bench)
        if len(bench.called) == len(ITEMS) - len(OTHERS):
            others.clear()
        return np.int64(item)

    bench = Bench(daemon, ITEMS, function=made)
    bench.fill()
    assert sorted(bench.called) == ITEMS and left_behind(daemon) == 0
    return bench.called


@pytest.mark.parametrize("is_away", [True, False], ids=["in an outage", "after it"])
def test_what_others_have_locked_is_left_to_them(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    monkeypatch.setattr(leases, "LEFT_S", 60.0)

    def go_away(bench: Bench) -> None:
        bench.session.is_away = is_away

    assert sorted(order_beside(daemon, go_away)[-2:]) == OTHERS


def test_then_the_daemon_decides(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEFT_S", -1.0)
    assert order_beside(daemon, lambda bench: None) == ITEMS


def test_locks_are_kept_until_what_was_made_is_committed(daemon: FakeDaemon) -> None:
    def made(item: int) -> np.int64:
        bench.session.is_away = True
        return np.int64(item)

    def look(method: str) -> None:
        if method == "commit":
            locked.extend(other.is_taken(bench.catalogue.distinct.digest(item)) for item in ITEMS)

    locked: list[bool] = []
    bench, other = Bench(daemon, ITEMS, function=made), ItemLocks(RECIPE.digest)
    bench.session.fail = look
    bench.fill()
    assert locked == [item > 0 for item in ITEMS], "the first one was leased"
    assert not other.is_taken() and left_behind(daemon) == 0
