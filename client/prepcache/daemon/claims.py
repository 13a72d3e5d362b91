"""Claims: the items that a job makes; the user's other jobs leave them out while no daemon tells them.

A claim is a lock on one byte of a file of the recipe, which the kernel lets go when the process ends.

Invariants:
    1. An item is claimed by one process at a time. Claims bind jobs of one user on one machine, and only in
       an outage and after it: the daemon's leases decide otherwise. Nobody waits for a claim longer than
       for a daemon.
    2. A claim is kept until what was made under it is committed or given up, or its process ends.
    3. A process claims at most `MAX_CLAIMS` items at once: for each, the kernel looks through all locks of
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
import time
from pathlib import Path

from prepcache.protocol.places import cache_folder

FOLDER = "claims-v1"
KEEP_S = 24 * 3600.0
"""A file that no job opened for so long is removed."""
MAX_CLAIMS = 4096
_LOCK = struct.Struct("hhqqi0q")
"""`struct flock`: type, whence, start, length, pid."""
_TAKEN = (errno.EAGAIN, errno.EACCES)
_OUTAGE_AT = 1 << 62
"""The byte behind those of all items; who fills in an outage shares a lock on it until the fill ends."""


class Claims:
    """One process's claims on items of one recipe.

    Args:
        recipe: its digest.
        is_new: whether the recipe's file is made where there is none.
    """

    def __init__(self, recipe: str, *, is_new: bool) -> None:
        self._fd, self._is_outage = -1, False
        self._mine = set[bytes]()
        folder = cache_folder(os.environ) / FOLDER
        with contextlib.suppress(OSError):
            if is_new:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _sweep(folder)
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if is_new else 0)
            self._fd = os.open(folder / recipe, flags, 0o600)
            os.utime(self._fd)

    @property
    def is_there(self) -> bool:
        """Whether there is a file: some job has claimed items of the recipe, today or now."""
        return self._fd >= 0

    @property
    def is_any(self) -> bool:
        """Whether this process has claimed an item."""
        return bool(self._mine)

    def take(self, digest: bytes) -> bool:
        """Claims an item; False where another process has it."""
        if not self.is_there or digest in self._mine or len(self._mine) >= MAX_CLAIMS:
            return True
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, _at(digest)))
        except OSError as error:
            return error.errno not in _TAKEN
        self._mine.add(digest)
        return True

    def give_up(self, digest: bytes) -> None:
        """Ends a claim, if there is one."""
        if digest in self._mine:
            self._mine.discard(digest)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, _at(digest)))

    def is_taken(self, digest: bytes) -> bool:
        """Whether another process has claimed an item."""
        return self._is_locked(_at(digest))

    def note_outage(self) -> None:
        """This process fills in an outage."""
        if self.is_there and not self._is_outage:
            self._is_outage = True
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, _OUTAGE_AT))

    def was_outage(self) -> bool:
        """Whether any fill that goes on has gone through an outage: a daemon may not know what it makes."""
        return self._is_outage or self._is_locked(_OUTAGE_AT)

    def _is_locked(self, at: int) -> bool:
        if self.is_there:
            with contextlib.suppress(OSError):
                found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, at))
                return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)
        return False

    def close(self) -> None:
        """Gives up all claims."""
        self._mine.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _at(digest: bytes) -> int:
    """The item's byte."""
    return int.from_bytes(digest[:8], "big") >> 2


def _lock(kind: int, at: int) -> bytes:
    return _LOCK.pack(kind, os.SEEK_SET, at, 1, 0)


_OPEN: dict[str, Claims] = {}


def claims_on(recipe: str, *, is_new: bool = False) -> Claims:
    """This process's claims on a recipe's items; others' can be seen by them.

    Args:
        is_new: whether it wants to claim some, and the file is made where there is none.
    """
    claims = _OPEN.get(recipe)
    if claims is None or not claims.is_there:
        claims = _OPEN[recipe] = Claims(recipe, is_new=is_new)
    return claims


def release(recipe: str) -> None:
    """Gives up all claims on a recipe's items: what was made is committed."""
    if (claims := _OPEN.pop(recipe, None)) is not None:
        claims.close()


def _sweep(folder: Path) -> None:
    oldest = time.time() - KEEP_S
    with os.scandir(folder) as found:
        for one in found:
            with contextlib.suppress(OSError):
                if one.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(one.path)


def _after_fork_in_child() -> None:
    """A child has claims of its own; what its parent has claimed stays the parent's while that lives."""
    for claims in _OPEN.values():
        claims.close()
    _OPEN.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
