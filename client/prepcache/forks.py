"""Fork hooks: a forked child gets fresh locks, and lets go of what belongs to threads of its parent."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Living(Generic[T]):
    """Objects as long as somebody has them. Unlike a `WeakSet`, it may be read while a thread adds one."""

    def __init__(self) -> None:
        self._by_identity: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, one: T) -> None:
        self._by_identity[id(one)] = one

    def discard(self, one: T) -> None:
        self._by_identity.pop(id(one), None)

    def __iter__(self) -> Iterator[T]:
        return iter([one for ref in self._by_identity.valuerefs() if (one := ref()) is not None])


_NOTED: Living[Any] = Living()


def note(one: Any) -> None:
    """Has `one.before_fork()` called before each fork, then `one.after_fork_here()` in the process itself and
    `one.after_fork()` in the forked child before anything else, as far as it has these, and as long as it is
    there."""
    _NOTED.add(one)


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
    for one in _NOTED:
        if (method := getattr(one, name, None)) is not None:
            method()


os.register_at_fork(
    before=lambda: _call("before_fork"),
    after_in_parent=lambda: _call("after_fork_here"),
    after_in_child=lambda: _call("after_fork"),
)
