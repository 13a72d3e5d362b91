"""Commits that fail in ways of their own: whoever waits for an outcome gets one."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from prepcache.data.commits import Batch, Committer
from prepcache.errors import DaemonUnreachable
from support.serving import wait_until


class Unwritable:
    """A writer that cannot be written anywhere."""

    nbytes = 8

    def write(self, fd: int, **names: Any) -> Any:
        raise MemoryError


class Absent:
    def stage(self) -> Any:
        raise DaemonUnreachable("nobody is there")

    def forsake(self, leases: Any) -> None:
        assert not leases


@pytest.mark.timeout(20)
def test_samples_that_cannot_be_written_end_in_an_outcome_and_not_in_a_wait() -> None:
    committer = Committer(Absent(), "0" * 64, {})
    committer.submit(Batch([Unwritable()], [1], {bytes(32): None}), 0)  # type: ignore[list-item]
    [outcome] = committer.outcomes(is_waiting=True)
    committer.close()
    assert outcome.reason and not outcome.kept and outcome.committed is None


@pytest.mark.timeout(20)
def test_a_thread_that_waits_for_the_next_batch_does_not_keep_the_last() -> None:
    committer, writer = Committer(Absent(), "0" * 64, {}), Unwritable()
    kept = weakref.ref(writer)
    committer.submit(Batch([writer], [1], {bytes(32): None}), 0)  # type: ignore[list-item]
    del writer
    assert committer.outcomes(is_waiting=True)
    assert wait_until(lambda: kept() is None, limit_s=5)
    committer.close()
