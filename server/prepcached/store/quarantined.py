"""What lies in quarantine: bad files, kept for a person to look at, a few at a time.

Invariants:
    1. At most `KEPT` files, or folders, lie there; the oldest goes first. Their bytes count against the
       budget. A purge of everything takes them along.
    2. They go before a write is declined, and after what is idle: a cache that is full, as most are in time,
       would keep none.
"""

from __future__ import annotations

import os
import shutil
import stat

from prepcached.store import durable
from prepcached.store.core import Core, log

KEPT = 8
"""Enough to see what is happening to the disk, few enough not to fill it."""


def give_way(core: Core, short_bytes: int) -> bool:
    """Removes them, where with what is idle they are enough for so many bytes; whether it did."""
    with core.memory:
        size_bytes = core.ledger.quarantine_bytes
        if not size_bytes or short_bytes > core.idle_bytes() + size_bytes:
            return False
    with core.writing():
        return empty(core, dry_run=False) > 0


def empty(core: Core, *, dry_run: bool) -> int:
    """Removes what lies there, as far as that can be; its bytes. Call it with the writer lock."""
    size_bytes = core.ledger.quarantine_bytes
    if dry_run:
        return size_bytes
    trim(core, kept=0)
    return size_bytes - core.ledger.quarantine_bytes


def trim(core: Core, kept: int = KEPT) -> None:
    """Keeps the newest few, and counts them, with what cannot be removed."""
    with os.scandir(core.layout.quarantine) as entries:
        there = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries]
    there.sort(key=lambda found: found[0].st_ctime_ns, reverse=True)
    left = there[:kept]
    for status, path in there[kept:]:
        try:
            if stat.S_ISDIR(status.st_mode):  # it lay among the artifacts
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except OSError as error:  # of another user's folder
            log.error("%s cannot be removed: %s; remove it by hand", path, error)
            left.append((status, path))
    size = sum(_disk_bytes(status, path) for status, path in left)
    with core.memory:
        core.ledger.quarantine_bytes = size


def _disk_bytes(status: os.stat_result, path: str) -> int:
    below = durable.tree_bytes(path) if stat.S_ISDIR(status.st_mode) else 0
    return durable.disk_bytes(status) + below
