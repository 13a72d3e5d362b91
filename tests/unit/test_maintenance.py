"""The daemon's background work: how much of the disk it takes."""

import threading
from types import SimpleNamespace
from typing import cast

import pytest

from prepcache.errors import StoreError
from prepcached import maintenance
from prepcached.maintenance import DISK_BYTES_PER_S, Maintenance
from prepcached.store.store import Store


class Fake:
    """A store in which there is always something to merge, or else to scrub."""

    def __init__(self, size_bytes: int, fault: Exception | None = None, *, merges: bool = True) -> None:
        self.size_bytes = size_bytes
        self.fault = fault
        self.merges = merges
        self.counters = SimpleNamespace(merged_bytes=0, scrubbed_bytes=0)
        self.is_read = threading.Event()
        self.is_maintained = threading.Event()

    def maintain(self) -> None:
        self.is_maintained.set()

    def merge_some(self) -> bool:
        if self.merges:
            self.counters.merged_bytes += self.size_bytes
        if self.fault is not None:
            raise self.fault
        return self.merges

    def scrub_one(self) -> int:
        self.counters.scrubbed_bytes += self.size_bytes
        return self.size_bytes


@pytest.mark.parametrize("merges", [True, False], ids=["merge", "scrub"])
@pytest.mark.parametrize("fault", [None, StoreError("the disk says no")])
def test_what_was_read_puts_off_what_is_read_next(fault, merges, monkeypatch):
    store = Fake(3600 * DISK_BYTES_PER_S, fault, merges=merges)
    work = Maintenance(cast(Store, store))
    rests: list[float] = []

    def wait(rest_s: float) -> bool:
        rests.append(rest_s)
        return len(rests) == 3

    monkeypatch.setattr(work._stop, "wait", wait)
    work.merge_and_scrub()
    hours = 1 if fault is None or not merges else 2  # after a merge that fails, a scrub reads
    assert rests == [maintenance.TURN_S, hours * 3600.0, hours * 3600.0]


class Reading(Fake):
    """A store that is maintained while one large artifact is read."""

    def scrub_one(self) -> int:
        self.is_read.set()
        assert self.is_maintained.wait(30)
        return 0

    def maintain(self) -> None:
        if self.is_read.is_set():
            self.is_maintained.set()


def test_eviction_waits_for_no_artifact_that_is_read(monkeypatch):
    """Another program may fill the disk while a scrub reads gigabytes."""
    monkeypatch.setattr(maintenance, "TURN_S", 0.01)
    store = Reading(0, merges=False)
    work = Maintenance(cast(Store, store))
    work.start()
    try:
        assert store.is_maintained.wait(30)
    finally:
        store.is_maintained.set()
        work.stop()
