"""Space that is kept for making space: on a full disk not even the DELETE before an unlink can be written.

Invariants:
    1. It is given up by who is about to remove something, or to open the index, and only where the disk has
       less left than a removal may need; housekeeping takes it again while there is room.
    2. It holds what one transaction may write: as much as the whole index, and no more than a batch of a
       purge changes.
"""

from __future__ import annotations

import contextlib
import os

from prepcached.store import durable
from prepcached.store.layout import Layout

STEP_BYTES = 1 << 20
"""What an index of any size needs: new files of the log, and the folders' own blocks."""
MAX_BYTES = 16 << 20
"""500 rows, each with its pages of the table and its indexes."""
SHARE = 4
"""No more than this part of what is free."""


def give_up(layout: Layout) -> None:
    """Frees the reserve where it is needed."""
    if _free_bytes(layout) >= MAX_BYTES:
        return
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(layout.reserve, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, 0)
            os.fsync(fd)  # blocks that a journal still frees cannot be had yet
        finally:
            os.close(fd)


def take(layout: Layout) -> None:
    """Takes the reserve, or what it lacks, as far as the disk has room."""
    needed = os.path.getsize(layout.index) // STEP_BYTES * STEP_BYTES + 2 * STEP_BYTES
    size_bytes = min(needed, MAX_BYTES, _free_bytes(layout) // SHARE)
    with contextlib.suppress(OSError):  # others were quicker, or a quota: tried again next turn
        fd = os.open(layout.reserve, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if durable.disk_bytes(os.fstat(fd)) < size_bytes:
                os.posix_fallocate(fd, 0, size_bytes)
        finally:
            os.close(fd)


def _free_bytes(layout: Layout) -> int:
    fs = os.statvfs(layout.versioned)
    return fs.f_bavail * fs.f_frsize
