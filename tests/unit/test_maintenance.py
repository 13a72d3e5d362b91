"""The daemon's background work: how much of the disk it takes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from prepcache.errors import StoreError
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
        work.turn()
    assert store.merges == store.scrubs == 1


def test_an_app_leaves_its_process_as_it_is(tmp_path: Path) -> None:
    """Only `prepcached serve` is a process of its own."""
    before = sys.getswitchinterval()
    with serving(tmp_path):
        assert sys.getswitchinterval() == before
