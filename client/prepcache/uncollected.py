"""Puts Python's cyclic garbage collector off while many objects are made that stay.

Loading a hundred modules and making a recipe does that, and enough of it lets the collector look for garbage
through everything that there is: 60 ms beside torch, a third of a warm start, to find nothing.

Invariants:
    1. It is off only in such a block, and on again afterwards if it was on; also in a process that another
       thread forks meanwhile.
    2. Where the job has turned it off, it stays off.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Pause:
    """How many blocks are being worked on, and whether the collector was on before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal's handler may come to a block of its own at any line
        self.blocks = 0
        self.was_on = False

    def begin(self) -> None:
        with self.lock:
            self.blocks += 1
            if self.blocks == 1:
                self.was_on = gc.isenabled()
                gc.disable()

    def end(self) -> None:
        with self.lock:
            if self.blocks == 1 and self.was_on:
                gc.enable()
            self.blocks -= 1


_PAUSE = _Pause()


def _after_fork_in_child() -> None:
    """The threads that were in a block are not there, and one of them may have held the lock."""
    global _PAUSE
    if _PAUSE.blocks and _PAUSE.was_on:
        gc.enable()
    _PAUSE = _Pause()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def uncollected() -> Iterator[None]:
    """A block of work whose many objects stay."""
    pause = _PAUSE
    pause.begin()
    try:
        yield
    finally:
        pause.end()
