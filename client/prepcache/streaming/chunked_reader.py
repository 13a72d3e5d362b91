"""Where a stream's items come from: what can be iterated once, or again, or a function that opens it.

Invariants:
    1. An iterator is read once, by the process that it was given in. Where an epoch was left, what it had
       read ahead is gone with it; in a forked worker, an open file's position is shared with the others.
    2. An item is taken as it is when it is read: a reader may fill one dict or array again and again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import PosixPath
from typing import Any

from prepcache.artifact.sample_tree import copied
from prepcache.dataset_options import refuse_unordered
from prepcache.fill.call import weight
from prepcache.streaming.sharding import Split, unsplit

READ_S = 0.25
"""Seconds of reading after which a chunk ends, so that slow items are not waited for."""
READ_BYTES = 64 << 20
"""Memory that the items of a chunk may take."""
ITEM_BYTES = 64
_SMALL = frozenset({int, float, bool, type(None), PosixPath})
_FROZEN = _SMALL | {str, bytes}
_END = object()


class Source:
    """Gives items, from their beginning.

    Raises:
        UnkeyableError: they have no order that is the same in every process.
    """

    def __init__(self, items: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        if not callable(items):
            refuse_unordered(items)
        self._items = items
        self._given_in = os.getpid()
        self._is_begun = False

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to items that have a `set_epoch`."""
        if callable(tell := getattr(self._items, "set_epoch", None)):
            tell(epoch)

    def begin(self) -> Iterator[Any]:
        """An iterator at the first item.

        Raises:
            RuntimeError: an iterator was begun before, or was given in another process.
            TypeError: the function gave nothing that can be iterated.
        """
        items = self._items
        if isinstance(items, Iterator):
            why = "which an earlier epoch has exhausted" if self._is_begun else ""
            if self._given_in != os.getpid():
                why = "which DataLoader workers cannot share"
            if why:
                raise RuntimeError(
                    f"items is an iterator (a {type(items).__name__}), {why}: pass an iterable, or a "
                    "function that returns a new iterator (`lambda: read(path)`)"
                )
            self._is_begun = True
        elif not isinstance(items, Iterable) and callable(items):
            items = items()
            if not (isinstance(items, Iterable) or hasattr(items, "__getitem__")):
                raise TypeError(f"items() returned a {type(items).__name__}, which is not iterable")
        return iter(items)


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
