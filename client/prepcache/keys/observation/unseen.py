"""Bytes that a process read and of which nothing told: a C library opens files where Python sees nothing.

    cv2.imread(f"{root}/{i:04d}.png")        on Python 3.11 no event tells of it, and the name is in no key

Over the first items the kernel's count of bytes is compared with the sizes of the files that were seen being
opened, and of those that are open. It decides nothing: it is said once, with the remedy.

Not counted: items that loaded modules, started processes or opened connections; processes in which other
threads run; files that are mapped, which are not read by calls.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading

from prepcache.keys.observation.context import MODULE, Watch, is_own

FIRST_ITEMS = 12
ENOUGH = 2
"""Items with unseen bytes before it is said: one alone may be what a library loads when it is used first."""
SLACK_BYTES = 4096
"""Beside what was seen: headers that are read twice, and these counts themselves."""


class Reads:
    """Counts over the first items of a data set in this process."""

    def __init__(self) -> None:
        self.unseen_bytes = 0
        self._left = FIRST_ITEMS
        self._found = 0

    def begin(self) -> int | None:
        """The count before an item; None if it is not looked at."""
        if self._left <= 0 or not _is_alone():
            return None
        self._left -= 1
        return _bytes_read()

    def end(self, watch: Watch, before: int | None) -> None:
        """Compares, when an item is made."""
        now = None if before is None else _bytes_read()
        if now is None or before is None or watch.programs or watch.has_connected:
            return
        if any(fact.kind == MODULE for fact in watch.facts.values()) or not _is_alone():
            return
        seen = watch.opened_bytes + sum(map(_size_of, watch.items)) + _open_bytes()
        if now - before <= seen + SLACK_BYTES:
            return
        self._found += 1
        if self._found >= ENOUGH and not self.unseen_bytes:
            self.unseen_bytes = now - before - seen


def _is_alone() -> bool:
    """Whether no other thread than this one and prepcache's own runs."""
    return sum(not is_own(thread) for thread in threading.enumerate()) == 1


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
