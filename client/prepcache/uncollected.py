"""Puts Python's cyclic garbage collector off while many objects are made that stay.

Loading a hundred modules and making a recipe does that, and enough of it lets the collector look for garbage
through everything that there is: 60 ms beside torch, a third of a warm start, to find nothing.

Invariants:
    1. It is off only in such a block, and on again afterwards if it was on; also in a process that another
       thread forks meanwhile.
    2. Where the job has turned it off, it stays off.
    3. What the job has frozen itself stays frozen.

NOTE [ Frozen beside workers ]
    A collection that looks through everything writes into every object. Beside forked processes each page of
    them is copied for that: 0.25 s beside torch, while the workers wait for their parent. So what there was
    at the fork is left out of collections while they live, in them and in their parent.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
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


class _Frost:
    """How many want what there was left alone, and how many objects were frozen for them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holders = 0
        self.frozen = 0

    def begin(self) -> None:
        with self.lock:
            self.holders += 1
            if self.holders == 1 and not gc.get_freeze_count():
                gc.freeze()
                self.frozen = gc.get_freeze_count()

    def end(self) -> None:
        with self.lock:
            self.holders -= 1
            if not self.holders and self.frozen:
                if gc.get_freeze_count() <= self.frozen:  # else the job has frozen more meanwhile
                    gc.unfreeze()
                self.frozen = 0


_PAUSE = _Pause()
_FROST = _Frost()


def _after_fork_in_child() -> None:
    """The threads that were in a block are not there, and one of them may have held the lock."""
    global _PAUSE, _FROST
    if _PAUSE.blocks and _PAUSE.was_on:
        gc.enable()
    _PAUSE = _Pause()
    _FROST = _Frost()


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


def freeze() -> Callable[[], None]:
    """Has collections leave out what there is by now, see NOTE [ Frozen beside workers ].

    Returns:
        what ends that, to be called once and in the process that froze.
    """
    frost = _FROST
    frost.begin()
    return frost.end
