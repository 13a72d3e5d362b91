"""Unseen reads: bytes that the kernel counts over the first items, and of which nothing told.

On Python 3.11 no event tells of `cv2.imread(f"{root}/{i:04d}.png")`, and the name is in no key. The kernel's
count is compared with the sizes of the files that were seen being opened, and of those that are open. It
decides nothing: it is said once, with the remedy. Not counted are items that loaded modules, started
processes or opened connections; processes in which other threads run; files that are mapped.
"""

from __future__ import annotations

import contextlib
import os
import stat

from prepcache.keys.observation.context import Kind, Watch
from prepcache.keys.randomness import is_alone

FIRST_ITEMS = 12
ENOUGH = 2
"""Items with unseen bytes before it is said: one alone may be what a library loads when it is used first."""
SLACK_BYTES = 4096
"""Beside what was seen: headers that are read twice, and these counts themselves."""


class UnseenReads:
    """Looks for bytes that a function read unseen."""

    def __init__(self) -> None:
        self._items_left, self._items, self._size = FIRST_ITEMS, 0, 0

    def begin(self) -> int | None:
        """How many bytes were read before an item; None if it is not looked at."""
        return _bytes_read() if self._items_left > 0 and is_alone() else None

    def end(self, watch: Watch, before: int | None) -> None:
        if before is None:
            return
        self._items_left -= 1
        now = _bytes_read()
        has_loaded = any(fact.kind == Kind.MODULE for fact in watch.facts.values())
        if now is None or has_loaded or watch.programs or watch.has_connected or not is_alone():
            return
        unseen = now - before - watch.opened_bytes - sum(map(_size_of, watch.items)) - _open_bytes()
        if unseen > SLACK_BYTES:
            self._items += 1
            self._size = unseen

    @property
    def size_bytes(self) -> int:
        """Of one item; 0 if nothing is to be said."""
        return self._size if self._items >= ENOUGH else 0


def _bytes_read() -> int | None:
    """How many bytes this process has read so far; None where that is not told."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/io", "rb") as told:
        return int(told.read(512).split(maxsplit=2)[1])
    return None


def _size_of(path: str) -> int:
    """Of a file, or of the files in a folder."""
    try:
        info = os.stat(path)
        if not stat.S_ISDIR(info.st_mode):
            return info.st_size
        return sum(_size_of(entry.path) for entry in os.scandir(path))
    except OSError:
        return 0


def _open_bytes() -> int:
    """Sizes of the files that are open: what is read of them was seen when they were opened."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, ValueError):
                info = os.fstat(int(name))
                total += info.st_size if stat.S_ISREG(info.st_mode) else 0
    return total
