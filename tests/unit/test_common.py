"""Numbers in common: with processes that are being started, and with no one else."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from multiprocessing import context
from types import SimpleNamespace
from typing import Any

import pytest

from prepcache.streaming.shared_numbers import Common
from prepcache.streaming.stream import Totals


class Sent:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        return os.dup(self._fd)


class Started:
    """As multiprocessing has a process that it starts."""

    DupFd = Sent

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.append(fd)
        return fd


def test_shared_memory_is_read_once_and_then_zero() -> None:
    common = Common((4, 2), "u8")
    common.rows[1] = 7
    started = Started()
    context.set_spawning_popen(started)
    try:
        sent = [pickle.loads(pickle.dumps(common)) for _ in range(2)]
    finally:
        context.set_spawning_popen(None)
    assert len(started.fds) == 1
    sent[0].rows[2] = 5
    assert sent[1].rows.tolist() == common.rows.tolist() == [[0, 0], [7, 7], [5, 5], [0, 0]]
    assert not pickle.loads(pickle.dumps(common)).rows.any()


def test_too_many_descriptors_leave_counts_to_forked_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "ftruncate", refuse)
    common = Common((1, 1), "u8")
    common.rows[0] = 3
    context.set_spawning_popen(Started())
    try:
        assert not pickle.loads(pickle.dumps(common)).rows.any()
    finally:
        context.set_spawning_popen(None)


def test_a_count_that_ends_another_epoch_counts_both() -> None:
    """The garbage collector may run anywhere, and end an epoch that notes what it has counted."""
    totals = Totals()

    class Chunk:
        noted = None

        def __init__(self, meanwhile: Callable[[], None]) -> None:
            counts = dict.fromkeys(("items", "hit", "computed", "waited", "declined", "bytes"), 1)
            report = SimpleNamespace(**counts, seconds=0.0, seconds_saved=0.0, why=self._why(meanwhile))
            self.samples = SimpleNamespace(report=lambda: report)

        def _why(self, meanwhile: Callable[[], None]) -> Iterator[str]:
            meanwhile()
            yield "why"

    inner: Any = Chunk(lambda: None)
    outer: Any = Chunk(lambda: totals.note(inner))
    totals.note(outer)
    assert totals.report([]).items == 2
