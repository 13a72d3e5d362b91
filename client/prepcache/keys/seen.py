"""Files that a function may have read, and when one that changed is what the function itself made.

NOTE [ Outputs under paths that were built ]
    C libraries write where Python sees nothing. A file under a built path is the function's output if it is
    opened to be written, or another takes its name. Where this process wrote as much, so is one that was not
    there at first, or that is another after the work on the item for which its path was built first. Else
    who changes it edits what samples are made of.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

from prepcache.keys.files import Trust, stamp_of
from prepcache.keys.inputs import ABSENT, digest_now
from prepcache.keys.memo import Memo


@dataclass(slots=True)
class Seen:
    """A file that a function may have read."""

    path: str
    is_relative: bool
    stamp: tuple[int, ...] | None
    folder: str | None = None
    """The working directory when it was seen first."""
    has_changed: bool = False
    may_be_output: bool = False
    is_absolute: bool = False
    """Whether it was seen by its path from the root, too."""
    built_after: int | None = None
    """How many bytes this process had written when its path was built, and nothing else seen of it."""
    is_made: bool = False
    """Whether the function made it, when it had asked for it and nothing was there."""
    known: tuple[str, tuple[int, ...]] | None = None
    """A digest, and a stamp that a later write could not have left as it is."""

    def digest(
        self, info: os.stat_result | None, memo: Memo | None, trust: Trust
    ) -> tuple[str, tuple[int, ...] | None]:
        """Its digest and stamp, from what is there. Each batch asks for those of all files seen so far."""
        if info is None:
            return ABSENT, None
        if self.known is not None and self.known[1] == stamp_of(info):
            return self.known
        digest, stamp, is_racy = digest_now(self.path, memo, trust)
        if stamp is not None and not is_racy and trust == "stat":
            self.known = digest, stamp
        return digest, stamp

    def is_output(self, stamp: tuple[int, ...] | None) -> bool:
        """Whether the function may have made another file of it."""
        if not self.may_be_output or stamp == self.stamp:
            return False
        if self.built_after is None or self.stamp is None or stamp is None:
            return True
        return bytes_written() - self.built_after >= max(stamp[2] - self.stamp[2], 1)

    def makes(self, made: list[str]) -> bool:
        """Notes among what was made a file that is written, if it was asked for and was not there."""
        self.is_made |= self.stamp is None
        if self.is_made:
            made.append(self.path)
        return self.is_made


def drained(queue: deque[Any]) -> list[Any]:
    """What was in it; another thread may add to it and empty it meanwhile."""
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(queue.popleft())
    return found


def bytes_written() -> int:
    """How many bytes this process has written so far, in C too; 0 where that is not told."""
    try:
        with open("/proc/self/io", "rb") as file:
            return int(file.read().split(maxsplit=4)[3])
    except (OSError, ValueError, IndexError):
        return 0
