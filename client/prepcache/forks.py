"""Fork hooks: a forked child gets fresh locks, and lets go of what belongs to threads of its parent."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_ALL: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By identity: a `WeakSet` cannot be read while a thread adds."""


def note(one: Any) -> None:
    """Has `one.before_fork()` called before each fork, and `one.after_fork()` in every forked child before
    anything else, as far as it has these, and as long as it is there."""
    _ALL[id(one)] = one


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


class kept(Generic[T]):
    """`functools.cached_property` without its lock, which a child of Python 3.11 may find held for ever."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function

    def __get__(self, one: Any, of: Any = None) -> T:
        if one is None:
            return self  # type: ignore[return-value]
        value: T = vars(one).setdefault(self._function.__name__, self._function(one))
        return value


def _call(name: str) -> None:
    for one in [one for ref in _ALL.valuerefs() if (one := ref()) is not None]:
        if (method := getattr(one, name, None)) is not None:
            method()


os.register_at_fork(before=lambda: _call("before_fork"), after_in_child=lambda: _call("after_fork"))
