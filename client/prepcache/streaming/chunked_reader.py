"""Where a stream's items come from: what can be iterated once, or again, or a function that opens it.

Invariants:
    1. An iterator is begun once in a process. What an epoch that was left had read ahead is gone with it, so
       that to go on where it stands would lose items.
    2. A process that was forked reads no iterator that shares an open file with its parent: the place in the
       file is one for all of them.
    3. An item is taken as it is when it is read: who gives one dict or array again and again, with other
       contents, gives other items.
"""

from __future__ import annotations

import gc
import io
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import PosixPath
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from prepcache.artifact.sample_tree import copied
from prepcache.fill.call import weight
from prepcache.pickling import refusal
from prepcache.streaming.sharding import Split, unsplit

READ_S = 0.25
"""A chunk ends where reading has taken so long: who gives items slowly is not waited for."""
READ_BYTES = 64 << 20
"""Or where its items take so much memory."""
_ANEW = "pass an iterable, or a function that returns a new iterator (`lambda: read(path)`)"
_MOST_LOOKED_AT, _MOST_IN_ONE = 1000, 64
ITEM_BYTES = 64
_SMALL = frozenset({int, float, bool, type(None), PosixPath})
_FROZEN = _SMALL | {str, bytes}
_END = object()


def is_stream(items: Any) -> bool:
    """Whether items are read one after the other, and not looked up by position."""
    if isinstance(items, str | bytes | Mapping | set | frozenset):
        return False  # a sequence is asked for, and they are refused there
    theirs: Any = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    if isinstance(items, theirs):
        return True  # of torch's, those have `__getitem__`, and some a length
    if hasattr(items, "iloc") or (hasattr(items, "__getitem__") and hasattr(items, "__len__")):
        return False
    return isinstance(items, Iterable) or callable(items) or hasattr(items, "__getitem__")


class Source:
    """Gives items, from their beginning."""

    def __init__(self, items: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self._items = items
        self._is_iterator = isinstance(items, Iterator)
        self._made_in = os.getpid()
        self._begun_in = 0

    def __getstate__(self) -> dict[str, Any]:
        items = self._items
        if why := refusal(items, is_sure=not self._is_iterator and not callable(items)):
            raise TypeError(
                f"items, a {type(items).__name__}, cannot be sent to a worker that is not forked ({why}): "
                "pass a function that returns an iterator, at the top level of a module"
            )
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _made_in=os.getpid())  # what pickle takes shares no file

    def set_epoch(self, epoch: int) -> None:
        """Tells the items, where they want to know."""
        if callable(tell := getattr(self._items, "set_epoch", None)):
            tell(epoch)

    def begin(self) -> Iterator[Any]:
        """An iterator at the first item.

        Raises:
            RuntimeError: an iterator was begun before, or shares an open file with other processes.
            TypeError: the function gave nothing that can be iterated.
        """
        items = self._items
        if self._is_iterator:
            self._begin_once()
        elif not isinstance(items, Iterable) and callable(items):
            items = items()
            if not (isinstance(items, Iterable) or hasattr(items, "__getitem__")):
                raise TypeError(f"items() returned a {type(items).__name__}, which is not iterable")
        return iter(items)  # type: ignore[arg-type]

    def _begin_once(self) -> None:
        what = f"items is an iterator (a {type(self._items).__name__})"
        if self._begun_in == os.getpid():
            raise RuntimeError(f"{what}, which an earlier epoch has exhausted: {_ANEW}")
        if os.getpid() != self._made_in and (file := _open_file(self._items)):
            raise RuntimeError(f"{what} over {file}, whose position several processes share: {_ANEW}")
        self._begun_in = os.getpid()


class Reading:
    """One epoch's way through a share of the items.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, source: Source, split: Split, clock: Callable[[], float] = time.monotonic) -> None:
        self._split = split
        self._clock = clock
        self._next = split.first
        self.is_at_end = False
        with unsplit():
            self._items = islice(source.begin(), split.first, None, split.step)

    def read(self, count: int) -> tuple[list[Any], range, Exception | None]:
        """The next items of the share, at most so many; fewer where they come slowly, or are large.

        Returns:
            They, their numbers in the stream, and what was raised where another was asked for.
        """
        items: list[Any] = []
        error = None
        until, nbytes = self._clock() + READ_S, 0
        with unsplit():
            try:
                while len(items) < count and nbytes < READ_BYTES:
                    item = next(self._items, _END)
                    if item is _END:
                        self.is_at_end = True
                        break
                    kind = type(item)
                    if kind not in _FROZEN:
                        item = copied(item)
                    items.append(item)
                    nbytes += ITEM_BYTES if kind in _SMALL else weight(item)
                    if self._clock() > until:
                        break
            except Exception as caught:  # noqa: BLE001 - raised again when what was read before is given
                error = caught
        numbers = range(self._next, self._next + len(items) * self._split.step, self._split.step)
        self._next = numbers.stop
        return items, numbers, error


def _open_file(items: Any) -> str:
    """An open file or socket that an iterator holds; "" if none is found."""
    todo, seen = [items], set[int]()
    while todo and len(seen) < _MOST_LOOKED_AT:
        found = todo.pop()
        if id(found) in seen or isinstance(found, type | ModuleType | FunctionType | FrameType):
            continue
        seen.add(id(found))
        if isinstance(found, io.IOBase | socket.socket) and _is_open(found):
            return f"an open {type(found).__name__}"
        if isinstance(found, GeneratorType):
            todo += [] if found.gi_frame is None else found.gi_frame.f_locals.values()
            todo.append(found.gi_yieldfrom)
        elif not isinstance(found, list | dict | deque) or len(found) <= _MOST_IN_ONE:
            todo += gc.get_referents(found)
    return ""


def _is_open(file: io.IOBase | socket.socket) -> bool:
    try:
        return file.fileno() >= 0
    except (OSError, ValueError):  # it is closed, or in memory
        return False
