"""What a forked child sets right: locks that threads of its parent may hold, and what belonged to those."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_ALL: weakref.WeakSet[Any] = weakref.WeakSet()


def note(one: Any) -> None:
    """Has `one.after_fork()` called in every forked child before anything else, as long as it is there."""
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
