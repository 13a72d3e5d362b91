"""File locks by which a user's jobs share out items while the daemon does not answer.

A lock is on one byte of a file (open file description locks, fcntl(2)). Recipes whose digests begin alike
share a file, which is empty and stays. Where the filesystem has no such locks, everything may be taken.
"""

from __future__ import annotations

import fcntl
import os
import struct

from prepcache import forks
from prepcache.protocol.places import cache_folder

MAX_LOCKS = 4096
"""Most locks that one object takes: for each, the kernel searches all locks of the file. Items beyond are not
locked, and other jobs may make them too."""
_FLOCK = struct.Struct("hhqqi0q")


class ItemLocks:
    """Locks on items of one recipe. They end when nothing refers to this any more, or with the process."""

    def __init__(self, recipe: str) -> None:
        self._path = cache_folder(os.environ) / "locks" / recipe[:2]
        self._base = int(recipe[2:18], 16)
        self._fd, self._count = -1, 0
        forks.note(self)

    def take(self, digest: bytes) -> bool:
        """Locks an item; False where another `ItemLocks` has it, also one of this process."""
        if self._count >= MAX_LOCKS:
            return True
        is_free = self._ask(fcntl.F_OFD_SETLK, digest, os.O_CREAT) is not None
        self._count += is_free
        return is_free

    def is_taken(self, digest: bytes | None = None) -> bool:
        """Whether another has an item; without one, whether others have any in this file."""
        return self._ask(fcntl.F_OFD_GETLK, digest) == fcntl.F_WRLCK

    def _ask(self, command: int, digest: bytes | None, flags: int = 0) -> int | None:
        at = 0 if digest is None else (int.from_bytes(digest[:8], "big") ^ self._base) >> 2
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, digest is not None, 0)  # a length of 0: all
        try:
            if self._fd < 0:
                if flags:
                    self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
            return int(_FLOCK.unpack(fcntl.fcntl(self._fd, command, asked))[0])
        except OSError as error:
            return None if isinstance(error, BlockingIOError) else fcntl.F_UNLCK

    def after_fork(self) -> None:
        """In a child: the locks are its parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = after_fork
