"""CachedIterableDataset: samples one after the other, preprocessed once, for items that come as a stream.

Items are read a chunk at a time. A chunk is a small data set: its items are looked up and prepared whole. All
chunks have one recipe, one function and one set of artifacts.

Invariants:
    1. The shares of all workers of all ranks of a job have each item once; each gives its own in the order of
       the items. How many a rank has does not depend on the number of its workers. A rank that is known where
       workers are started is known in them.
    2. The recipe is made once, at the opening. An item that is an instance of a class of the project, whose
       code would count beside the recipe, is refused.
    3. What was read before the items raised, or a sample failed in a later chunk, is given first. An item is
       taken as it is when it is read: a reader may fill one dict or array again and again.
    4. Memory is bounded by one chunk. Samples that were made on access are in files at its end.
    5. The first chunk is short, later ones as long as `SPAN_S` of work: the first sample comes soon.
    6. What is said of the function, or of the daemon, is said once for the stream, by its first worker.

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
from dataclasses import replace
from itertools import islice
from pathlib import PosixPath
from traceback import walk_stack
from typing import Any, NamedTuple

import numpy as np

from prepcache.artifact.sample_tree import copied
from prepcache.batching.collation import lend_to_job
from prepcache.dataset import IterableDataset, Opened, T_co, open_recipe
from prepcache.dataset_options import DatasetOptions, refuse_unordered
from prepcache.errors import ConfigError, UnkeyableError
from prepcache.fill.call import weight
from prepcache.index.item_index import Catalogue, Distinct
from prepcache.keys import recipes
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.keys.items import ItemHasher
from prepcache.report import Once, Report, Shared, changed_inputs, say, stream_line
from prepcache.samples import TOLD_BARE, Preprocessing, Samples

FIRST_ITEMS = 8
MOST_ITEMS = 8192
"""Items of the first chunk, and of any. A warm one of so many is looked up in a few milliseconds."""
GROWTH = 4
SPAN_S = 2.0
"""Work of one chunk: its first sample waits for its last, and what is made is one artifact."""
_MAX_WHY = 100
_COUNTS = ("items", "hit", "computed", "waited", "declined", "bytes", "not_stored")
_FIELDS = (*_COUNTS, "seconds", "seconds_saved")
_PROCESSES = 1024
"""Rows of counts: a process adds to that of its number modulo this."""
_DEALERS = ("accelerate.data_loader", "transformers.trainer_pt_utils")
READ_S = 0.25
"""Seconds of reading after which a chunk ends, so that slow items are not waited for."""
READ_BYTES = 64 << 20
"""Memory that the items of a chunk may take."""
ITEM_BYTES = 64
_SMALL = frozenset({int, float, bool, type(None), PosixPath})
_FROZEN = _SMALL | {str, bytes}
_END = object()


class CachedIterableDataset(Opened[T_co], IterableDataset[T_co]):
    """An iterable data set whose samples are cached by the daemon.

    Items are read, looked up and prepared a few thousand at a time, by the process that iterates. It has no
    length: items that fit into a list are better given to `CachedDataset`.

    All arguments except `items`, and all errors, are those of `CachedDataset`. Errors of items are raised
    where it is iterated.

    Args:
        items: a sequence, an iterable (read again in each epoch), an iterator (good for one epoch), or a
            function that returns one of these.

    Raises:
        RuntimeError: an iterator was used up in an earlier epoch, or is read in another process.
        TypeError: items have no order.
        UnkeyableError: an item is an instance of a class of the project.
    """

    def _begin(self, items: Any, given: DatasetOptions) -> None:
        self._ranks: Split | None = None
        self._said = Once()
        self._source = Source(items)
        self._hashing = {"root": given.root, "read": given.how["read"], "trust": given.how["trust"]}
        self._verify_fraction = given.verify_fraction
        self._counts = Counts()
        self._by = Preprocessing(given, open_recipe(given), self._said, is_stream=True)

    def _go_on(self, given: DatasetOptions) -> None:
        by = self._by
        said, self._why = stream_line(by.name, by.recipe.digest, by.artifacts)
        by.say(said)
        self._why += by.say_draws()
        for note in by.recipe.notes:
            by.say_of_it(note)

    def __prepcache_key__(self) -> Any:
        """How it counts where a function holds it."""
        raise UnkeyableError(f"{self!r} is a stream, whose items are unknown: name it in untracked=")

    def __repr__(self) -> str:
        return f"<CachedIterableDataset {self.name} recipe={self.recipe.digest[:12]}>"

    def __iter__(self) -> Iterator[T_co]:
        split = split_here(self._ranks)
        self._tell(split)
        samples = self._samples(split)
        return samples if self.transform is None else map(self.transform, samples)

    def _samples(self, split: Split) -> Iterator[Any]:
        lend_to_job(sys._getframe())
        self._by.artifacts.claim()
        self._by.is_speaker = split.worker == 0
        reading = Reading(self._source, split)
        size = FIRST_ITEMS
        try:
            while not reading.is_at_end:
                began = time.monotonic()
                items, numbers, error = reading.read(size)
                if items:
                    chunk = self._looked_up(items, numbers)
                    try:
                        chunk.note_hits()
                        if self._verify_fraction:
                            chunk.verify(self._verify_fraction)
                        if not self._by.is_lazy:
                            chunk.prepare()
                        chunk.originals.end_opening()
                        took_s = max(time.monotonic() - began, 1e-6)
                        size = max(1, min(MOST_ITEMS, int(size * min(GROWTH, SPAN_S / took_s))))
                        yield from chunk
                        if (here := chunk.on_access) is not None:
                            here.run()  # into files: in an outage, memory would hold all that was made
                    finally:
                        self._counts.note(chunk.report(), self._by.artifacts.trouble)
                    del chunk  # before others are read
                if error is not None:
                    raise error
        except TOLD_BARE as caught:
            raise caught.with_traceback(None) from caught.__cause__

    def _looked_up(self, items: list[Any], numbers: range) -> Samples:
        by = self._by
        hasher = ItemHasher(**self._hashing, stat_cache=user_stat_cache())
        stamps = hasher.digest_many(items, numbers.start, numbers.step)
        if stamps.note and self._said.is_news("files"):
            stamps.warn()
        if recipes.with_classes(by.recipe, hasher.classes).digest != by.recipe.digest:
            names = ", ".join(sorted(one.__qualname__ for one in hasher.classes))
            raise UnkeyableError(
                f"{by.name}: items of a stream hold {names}, whose code would count: yield dicts, tuples or "
                "plain values (dataclasses.asdict(item)), or pass a list to CachedDataset"
            )
        distinct = Distinct(stamps.digests)
        if not (by.artifacts.is_known or by.artifacts.session.is_gone):
            by.artifacts.look_from(0)
        catalogue = Catalogue(distinct, by.artifacts, is_expanded=by.is_expanded)
        return Samples(by, items, distinct, stamps, catalogue, numbers)

    def _tell(self, split: Split) -> None:
        if split.ranks > 1 and split.worker == 0 and self._said.is_news("ranks"):
            share = f"this is rank {split.rank}, which yields one item in {split.ranks}"
            say(f"{self.name}: split over {split.ranks} ranks: {share}", self._by.progress)

    def set_epoch(self, epoch: int) -> None:
        """Passes the number of the epoch to a stream that shuffles its items; trainers call this."""
        self._source.set_epoch(epoch)

    def report(self) -> Report:
        """How many items hit and were preprocessed in all epochs so far, and what that cost."""
        artifacts = self._by.artifacts
        reason = [artifacts.trouble] if artifacts.trouble else []
        return self._counts.report([*self._why, *changed_inputs(artifacts), *reason])

    def __getstate__(self) -> dict[str, Any]:
        ranks = ranks_here(self._ranks)
        self._tell(ranks)
        return {**self.__dict__, "_ranks": ranks}


class Counts:
    """Sums over all chunks, in memory that DataLoader workers share."""

    def __init__(self) -> None:
        self._rows = Shared(np.zeros((_PROCESSES, len(_FIELDS))))
        self._why: dict[str, None] = {}

    def note(self, report: Report, trouble: str) -> None:
        report = report if trouble else replace(report, not_stored=0)  # it is on its way
        self._rows.array[os.getpid() % _PROCESSES] += [getattr(report, name) for name in _FIELDS]
        if len(self._why) < _MAX_WHY:
            self._why.update(dict.fromkeys(report.why))

    def report(self, why: list[str]) -> Report:
        sums = dict(zip(_FIELDS, self._rows.array.sum(axis=0).tolist(), strict=True))
        counts = {name: round(sums.pop(name)) for name in _COUNTS}
        return Report(**counts, **sums, why=tuple(dict.fromkeys([*why, *self._why])))


class Split(NamedTuple):
    """A share of the items: every `step`-th one from `first` on."""

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1

    @property
    def first(self) -> int:
        return self.worker * self.ranks + self.rank

    @property
    def step(self) -> int:
        return self.ranks * self.workers


def ranks_here(known: Split | None = None) -> Split:
    """The share of this rank, as torch.distributed, who sent this data set (`known`) or torchrun says."""
    if _is_dealt_out():
        return Split()
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Split(distributed.get_rank(), distributed.get_world_size())
    if known is not None:
        return known
    given = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in given:
        return Split()
    rank, ranks = (int(text) if text and text.isdecimal() else -1 for text in given)
    if not 0 <= rank < ranks:
        raise ConfigError(f"RANK={given[0]!r} and WORLD_SIZE={given[1]!r} are not valid: mend or unset them")
    return Split(rank, ranks)


def split_here(known: Split | None = None) -> Split:
    """The share of this worker of this rank."""
    loaders: Any = sys.modules.get("torch.utils.data")
    ask = getattr(loaders, "get_worker_info", None)  # there is none while torch is being loaded
    split, info = ranks_here(known), ask and ask()
    return split if info is None else split._replace(worker=info.id, workers=info.num_workers)


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
    is_loaded = any(name in sys.modules for name in _DEALERS)
    frames = walk_stack(sys._getframe()) if is_loaded else ()
    return any(frame.f_globals.get("__name__") in _DEALERS for frame, _ in frames)


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
                raise TypeError(f"items() must return an iterable, not {type(items).__name__}")
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
