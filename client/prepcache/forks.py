"""What a forked child sets right: locks that threads of its parent may hold, and what belonged to those."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class OfProcess(Protocol):
    """An object that a forked child sets right."""

    def after_fork(self) -> None:
        """Called in the child, before anything else of it runs."""


_ALL: weakref.WeakSet[OfProcess] = weakref.WeakSet()


def note(one: OfProcess) -> None:
    """Has `one.after_fork()` called in every forked child, as long as it is there."""
    _ALL.add(one)


class ForkLock:
    """A lock that is free in a forked child."""

    def __init__(self) -> None:
        self.after_fork()
        note(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


def _after_fork_in_child() -> None:
    for one in list(_ALL):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
