"""The daemon's background work: how much of the disk it takes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from prepcache.errors import StoreError
from prepcached import maintenance
from prepcached.maintenance import DISK_BYTES_PER_S, Maintenance
from prepcached.store.store import Store
from support.serving import serving


class Merging:
    """A store in which there is always something to merge."""

    def __init__(self, size_bytes: int, fault: Exception | None = None) -> None:
        self.size_bytes = size_bytes
        self.fault = fault
        self.merges = self.scrubs = 0
        self.counters = SimpleNamespace(merged_bytes=0)

    def merge_some(self) -> bool:
        self.merges += 1
        self.counters.merged_bytes += self.size_bytes
        if self.fault is not None:
            raise self.fault
        return True

    def maintain(self) -> None:
        pass

    def scrub_one(self) -> int:
        self.scrubs += 1
        return self.size_bytes


@pytest.mark.parametrize("fault", [None, StoreError("the disk says no")])
def test_large_artifacts_put_off_the_next_merge_and_scrub(fault: Exception | None) -> None:
    store = Merging(3600 * DISK_BYTES_PER_S, fault)
    work = Maintenance(cast(Store, store))
    for _ in range(3):
        work.read()
    assert store.merges == store.scrubs == 1


class Reading(Merging):
    """A store of which a large artifact is read until it has been maintained."""

    def __init__(self) -> None:
        super().__init__(0)
        self.reading, self.is_maintained = threading.Event(), threading.Event()

    def merge_some(self) -> bool:
        return False

    def scrub_one(self) -> int:
        self.reading.set()
        assert self.is_maintained.wait(30)
        return 0

    def maintain(self) -> None:
        if self.reading.is_set():
            self.is_maintained.set()


def test_eviction_waits_for_no_artifact_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may fill the disk while a scrub reads gigabytes."""
    monkeypatch.setattr(maintenance, "TURN_S", 0.01)
    store = Reading()
    work = Maintenance(cast(Store, store))
    work.start()
    try:
        assert store.is_maintained.wait(30)
    finally:
        store.is_maintained.set()
        work.stop()


def test_an_app_leaves_its_process_as_it_is(tmp_path: Path) -> None:
    """Only `prepcached serve` is a process of its own."""
    before = sys.getswitchinterval()
    with serving(tmp_path):
        assert sys.getswitchinterval() == before
