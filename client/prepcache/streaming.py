"""A stream's items: where they come from, and which share of them falls to this process.

Invariants:
    1. The shares of all workers of all ranks of a job have each item once.
    2. How many items a rank has does not depend on the number of its workers.
    3. A rank that is known where workers are started is known in them, though they are other processes.
    4. torch and what is built on it is asked only where the job has loaded it.
    5. An iterator is read once, by the process that it was given in. Where an epoch was left, what it had
       read ahead is gone with it.
    6. An item is taken as it is when it is read: a reader may fill one dict or array again and again.

NOTE [ Who splits twice ]
    What is split by somebody else as well loses items, and nobody sees it. Items that split themselves over
    workers (a WebDataset, a streaming data set of Hugging Face's) are read as if there were no workers. Where
    accelerate reads the data set, it deals out batches to the ranks itself: that is seen by who asks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import PosixPath
from typing import Any, NamedTuple

from prepcache.artifact.sample_tree import copied
from prepcache.dataset_options import refuse_unordered
from prepcache.errors import ConfigError
from prepcache.fill.call import weight

_DEALERS = ("accelerate.data_loader", "transformers.trainer_pt_utils")
READ_S = 0.25
"""Seconds of reading after which a chunk ends, so that slow items are not waited for."""
READ_BYTES = 64 << 20
"""Memory that the items of a chunk may take."""
ITEM_BYTES = 64
_SMALL = frozenset({int, float, bool, type(None), PosixPath})
_FROZEN = _SMALL | {str, bytes}
_END = object()


class Ranks(NamedTuple):
    rank: int = 0
    ranks: int = 1


class Split(NamedTuple):
    """Every `step`-th item from `first` on."""

    rank: int
    ranks: int
    worker: int
    workers: int

    @property
    def first(self) -> int:
        return self.worker * self.ranks + self.rank

    @property
    def step(self) -> int:
        return self.ranks * self.workers

    @property
    def is_first(self) -> bool:
        return self.worker == 0


def ranks_here(known: Ranks | None = None) -> Ranks:
    """The ranks that share out items, as torch.distributed, the process that sent this data set (`known`) or
    torchrun says."""
    if _is_dealt_out():
        return Ranks()
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    if known is not None:
        return known
    given = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in given:
        return Ranks()
    rank, ranks = (int(text) if text and text.isdecimal() else -1 for text in given)
    if not 0 <= rank < ranks:
        raise ConfigError(f"RANK={given[0]!r} and WORLD_SIZE={given[1]!r} are not valid: unset them")
    return Ranks(rank, ranks)


def split_here(known: Ranks | None = None) -> Split:
    info = _workers()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return Split(*ranks_here(known), worker, workers)


def _workers() -> Any:
    loaders: Any = sys.modules.get("torch.utils.data")
    ask = getattr(loaders, "get_worker_info", None)  # there is none while torch is being loaded
    return None if ask is None else ask()


@contextmanager
def unsplit() -> Iterator[None]:
    """While items are read: what they come from gives all of them, and leaves their splitting to us."""
    workers: Any = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(workers, "_worker_info", None)
    if info is None:
        yield
        return
    workers._worker_info = None
    try:
        yield
    finally:
        workers._worker_info = info


def _is_dealt_out() -> bool:
    if not any(name in sys.modules for name in _DEALERS):
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _DEALERS:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Source:
    def __init__(self, items: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        if not callable(items):
            refuse_unordered(items)
        self._items = items
        self._given_in = os.getpid()
        self._is_begun = False

    def set_epoch(self, epoch: int) -> None:
        if callable(tell := getattr(self._items, "set_epoch", None)):
            tell(epoch)

    def begin(self) -> Iterator[Any]:
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
    """One epoch's way through a share of the items."""

    def __init__(self, source: Source, split: Split, clock: Callable[[], float] = time.monotonic) -> None:
        self._split = split
        self._clock = clock
        self._next = split.first
        self.is_at_end = False
        with unsplit():
            self._items = islice(source.begin(), split.first, None, split.step)

    def read(self, count: int) -> tuple[list[Any], range, Exception | None]:
        """At most `count` next items of the share, fewer where they are slow or large; their numbers in
        the stream; what was raised where another was asked for."""
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
