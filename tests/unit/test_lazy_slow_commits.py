"""Samples that are made on access faster than they can be committed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from prepcache.fill import on_access
from support.fake_session import FakeDaemon
from support.fills import Bench, daemon_fixture  # noqa: F401


def keeping() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "prepcache-keep"}


def test_one_batch_is_collected_while_another_is_committed(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is slower than the function fills neither the memory nor the process with threads."""
    monkeypatch.setattr(on_access, "COMMIT_ITEMS", 3)
    is_begun, may_end, committed, before = threading.Event(), threading.Event(), [], keeping()

    def commit(batch: Any, until: float, *, is_aside: bool) -> None:
        is_begun.set()
        assert may_end.wait(20)
        committed.append(batch.indices)

    bench = Bench(daemon, list(range(40)))
    keeper = bench.keeper(bench.task())
    monkeypatch.setattr(keeper, "_commit", commit)

    def access(index: int) -> None:
        if keeper.wants_more:
            (part,) = bench.job.parts(index, bench.item_of(index))
            keeper.add(part)

    for index in range(3):
        access(index)
    assert is_begun.wait(20)
    for index in range(3, 20):
        access(index)
    assert not keeper.wants_more
    for index in (20, 21):  # by threads that asked before it was full
        keeper.add(*bench.job.parts(index, bench.item_of(index)))
    assert len(keeping() - before) <= 3, "one commits, one waits for its turn; and the timer"
    may_end.set()
    for thread in keeping() - before:
        thread.join(20) if not isinstance(thread, threading.Timer) else thread.cancel()
    assert committed == [[0, 1, 2], [3, 4, 5, 20, 21]]
    assert keeper.wants_more and keeper.is_idle
