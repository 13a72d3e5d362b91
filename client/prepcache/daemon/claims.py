"""Claims: the items that a job makes; the user's other jobs leave them out while no daemon tells them.

A claim is a lock on one byte of a file, which the kernel lets go when the process ends. Recipes share 256
files, which are empty and never removed: a job of any length keeps its claims.

Invariants:
    1. An item is claimed by one fill at a time. Claims bind jobs of one user on one machine, and only in
       an outage and after it: the daemon's leases decide otherwise. Nobody waits for a claim longer than
       for a daemon.
    2. A claim is kept until what was made under it is committed or given up, or its process ends.
    3. A fill claims at most `MAX_CLAIMS` items at once: for each, the kernel looks through all locks of
       the file. A job that has more uncommitted makes cheap items, which may be made twice.
    4. Where the filesystem has no such locks, everything may be claimed: samples are the same, made twice.

Source: open file description locks, fcntl(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct

from prepcache import forks
from prepcache.protocol.places import cache_folder

FOLDER = "claims-v2"
MAX_CLAIMS = 4096
_LOCK = struct.Struct("hhqqi0q")
"""`struct flock`: type, whence, start, length, pid."""
_TAKEN = (errno.EAGAIN, errno.EACCES)
_OUTAGE_AT = 1 << 62
"""Behind the bytes of all items: one of each recipe, which fills lock together if they meet an outage."""


class Claims:
    """The claims of one fill on items of one recipe; they end with it, as with the process.

    Args:
        recipe: its digest.
    """

    def __init__(self, recipe: str) -> None:
        self._path = cache_folder(os.environ) / FOLDER / recipe[:2]
        self._base = int(recipe[2:17], 16)
        self._fd, self._is_outage = -1, False
        self._mine = set[bytes]()
        forks.note(self)

    @property
    def is_any(self) -> bool:
        """Whether an item is claimed."""
        return bool(self._mine)

    def take(self, digest: bytes) -> bool:
        """Claims an item; False where another fill has it."""
        if digest in self._mine or len(self._mine) >= MAX_CLAIMS or not self._opened(is_new=True):
            return True
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, self._at(digest)))
        except OSError as error:
            return error.errno not in _TAKEN
        self._mine.add(digest)
        return True

    def give_up(self, digest: bytes) -> None:
        """Ends a claim, if there is one."""
        if digest in self._mine:
            self._mine.discard(digest)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, self._at(digest)))

    def is_taken(self, digest: bytes) -> bool:
        """Whether another fill has claimed an item."""
        return self._is_locked(self._at(digest))

    def note_outage(self) -> None:
        """This fill goes through an outage."""
        if not self._is_outage and self._opened(is_new=True):
            self._is_outage = True
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, _OUTAGE_AT + self._base))

    def was_outage(self) -> bool:
        """Whether any fill that goes on has gone through an outage: a daemon may not know what it makes."""
        return self._is_outage or self._is_locked(_OUTAGE_AT + self._base)

    def _at(self, digest: bytes) -> int:
        """The item's byte."""
        return (int.from_bytes(digest[:8], "big") >> 2) ^ self._base

    def _is_locked(self, at: int) -> bool:
        if self._opened(is_new=False):
            with contextlib.suppress(OSError):
                found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, at))
                return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)
        return False

    def _opened(self, *, is_new: bool) -> bool:
        """Whether the file is there, and open.

        Args:
            is_new: it is made where there is none.
        """
        if self._fd < 0:
            with contextlib.suppress(OSError):
                if is_new:
                    self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if is_new else 0)
                self._fd = os.open(self._path, flags, 0o600)
        return self._fd >= 0

    def close(self) -> None:
        """Gives up all claims."""
        self._mine.clear()
        self._is_outage = False
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close

    def after_fork(self) -> None:
        """What a parent has claimed stays the parent's while that lives."""
        self.close()


def _lock(kind: int, at: int) -> bytes:
    return _LOCK.pack(kind, os.SEEK_SET, at, 1, 0)
