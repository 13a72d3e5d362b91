"""Claims: the items that a job makes while no daemon can lease them; the user's other jobs leave them out.

A claim is a lock on one byte of a file of the recipe, which the kernel lets go when the process ends.

Invariants:
    1. An item is claimed by one process at a time. Claims bind jobs of one user on one machine, and only
       while they cannot ask the daemon: its leases decide otherwise.
    2. A claim is kept until what was made under it is committed, or its process ends.
    3. A process claims at most `MAX_CLAIMS` items: for each, the kernel looks through all locks of the file.
       A job that makes more in one outage makes cheap items, which may be made twice.
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


class Claims:
    """One process's claims on items of one recipe.

    Args:
        recipe: its digest.
        is_new: whether the recipe's file is made where there is none.
    """

    def __init__(self, recipe: str, *, is_new: bool) -> None:
        self._fd, self._left = -1, MAX_CLAIMS
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

    def take(self, digest: bytes) -> bool:
        """Claims an item; False where another process has it."""
        if not self.is_there or not self._left:
            return True
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock_on(digest))
        except OSError as error:
            return error.errno not in _TAKEN
        self._left -= 1
        return True

    def is_taken(self, digest: bytes) -> bool:
        """Whether another process has claimed an item."""
        if not self.is_there:
            return False
        with contextlib.suppress(OSError):
            found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _lock_on(digest))
            return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)
        return False

    def close(self) -> None:
        """Gives up all claims."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _lock_on(digest: bytes) -> bytes:
    """A write lock on the item's byte."""
    return _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, int.from_bytes(digest[:8], "big") >> 2, 1, 0)


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
