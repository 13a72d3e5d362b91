"""A stream: items that are read one after the other, a chunk at a time, each looked up and prepared whole.

Invariants:
    1. The recipe is made once, at the opening; an item whose instances' classes count beside it has a recipe
       of its own class, whichever items it was read with.
    2. What was read before the items raised, or a sample failed in a later chunk, is given first.
    3. Memory is bounded by one chunk, however long the stream is: its items, and what is made of them.
    4. The first chunk is short, later ones as long as `SPAN_S` of work: the first sample comes soon.

Not here: reading (chunked_reader.py), one chunk (chunk.py), whose share it is (sharding.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from types import FunctionType
from typing import Any

import numpy as np

from prepcache.daemon.client import Client
from prepcache.dataset import job_of, open_recipe
from prepcache.forks import ForkLock
from prepcache.index.artifact_set import ArtifactSet
from prepcache.keys import recipes
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.keys.items import ItemHasher
from prepcache.keys.observation.observer import Observer
from prepcache.progress import Once
from prepcache.report import Report, shared_zeros
from prepcache.streaming.chunk import Chunk, StreamPreprocessing
from prepcache.streaming.chunked_reader import Reading, Source
from prepcache.streaming.recipe_index import RecipeIndex
from prepcache.streaming.sharding import Split

FIRST_ITEMS = 8
MOST_ITEMS = 8192
"""Items of the first chunk, and of any. A warm one of so many is looked up in a few milliseconds."""
GROWTH = 4
SPAN_S = 2.0
"""Work that a chunk is to be: its first sample waits for its last, and what is made is one artifact."""
_MAX_WHY = 100

Classes = frozenset[type | FunctionType]


class Stream:
    """What a `CachedIterableDataset` is over items that are no sequence.

    Args:
        said: what was said of it.
        options: as `CachedDataset` takes them, but for `transform`.
    """

    def __init__(
        self,
        said: Once,
        items: Any,
        preprocess: Callable[..., Any],
        config: Mapping[str, Any] | None,
        **options: Any,
    ) -> None:
        self._source = Source(items)
        self._reading = {name: options[name] for name in ("root", "read", "trust")}
        self._observes = options["code"] is not None
        how = {name: options.pop(name) for name in _OF_THE_RECIPE} | {"config": config}
        self.first = _opened(said, preprocess, how, **options)
        self._firsts: dict[Classes, StreamPreprocessing] = {frozenset(): self.first}
        self._totals = Totals()
        self._said, self._progress = said, options["progress"]

    def length(self, ranks: Any) -> int:
        """Nobody knows it.

        Raises:
            TypeError: says so.
        """
        raise TypeError(f"{self.first.name}: a stream has no length")

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next one is, for items that are in another order in each."""
        self._source.set_epoch(epoch)

    def samples(self, split: Split) -> Iterator[Any]:
        """The samples of a share of the items, from the beginning."""
        before = self._totals.of_others()

        def others() -> Sequence[int]:
            return [now - then for now, then in zip(self._totals.of_others(), before, strict=True)]

        for first in list(self._firsts.values()):
            first.begin_epoch(is_speaker=split.is_first, others=others)
        reading = Reading(self._source, split)
        size, is_over = FIRST_ITEMS, False
        while not is_over:
            began = time.monotonic()
            items, numbers, error = reading.read(size)
            if items:
                chunks = self._begun(items, numbers)
                took_s = max(time.monotonic() - began, 1e-6)
                size = max(1, min(MOST_ITEMS, int(size * min(GROWTH, SPAN_S / took_s))))
                yield from self._given(chunks)
                del chunks  # before others are read
            if error is not None:
                raise error
            is_over = reading.is_at_end

    def _begun(self, items: list[Any], numbers: range) -> list[tuple[Chunk, Sequence[int]]]:
        """Chunks of items that were read together, prepared, and each one's positions among them."""
        hasher = ItemHasher(**self._reading, stat_cache=user_stat_cache())
        hasher.says_text_files = says = self._said.is_news("files")
        digests, stamps = hasher.digest_many(items, numbers.start, numbers.step)
        if says and hasher.says_text_files:
            self._said.take_back("files")  # there were none
        if not hasher.classes:
            chunk = Chunk(self.first, items, numbers, digests, stamps)
            parts: list[tuple[Chunk, Sequence[int]]] = [(chunk, range(len(items)))]
        else:
            parts = list(self._by_classes(items, numbers, hasher))
        for chunk, _ in parts:
            try:
                chunk.begin()
            finally:
                self._totals.note(chunk)
        return parts

    def _by_classes(
        self, items: list[Any], numbers: range, hasher: ItemHasher
    ) -> Iterator[tuple[Chunk, Sequence[int]]]:
        places: dict[Classes, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(hasher.classes_of(item), []).append(place)
        for classes, own in places.items():
            some = [items[place] for place in own]
            digests, stamps = hasher.digest_many(some)
            by = self._first_of(classes)
            yield Chunk(by, some, [numbers[place] for place in own], digests, stamps), own

    def _first_of(self, classes: Classes) -> StreamPreprocessing:
        if (known := self._firsts.get(classes)) is not None:
            return known
        made, first = recipes.with_classes(self.first.recipe, classes), self.first
        if made.digest != first.recipe.digest:  # else they are of libraries
            observer = None
            if self._observes:
                root, trust = self._reading["root"], self._reading["trust"]
                observer = Observer(made, root=root, stat_cache=user_stat_cache(), trust=trust)
            first = first.beside(made, observer)
            first.begin_epoch(is_speaker=self.first.is_speaker, others=self.first.others)
        return self._firsts.setdefault(classes, first)

    def _given(self, chunks: list[tuple[Chunk, Sequence[int]]]) -> Iterator[Any]:
        try:
            if len(chunks) == 1:
                chunk, places = chunks[0]
                yield from chunk.given(range(len(places)))
                return
            order = [
                (place, number, at)
                for number, (_, places) in enumerate(chunks)
                for at, place in enumerate(places)
            ]
            for number, run in groupby(sorted(order), key=lambda one: one[1]):
                yield from chunks[number][0].given([at for _, _, at in run])
        finally:
            for chunk, _ in chunks:
                self._totals.note(chunk)

    def report(self) -> Report:
        """What was there, made and given so far, in all epochs."""
        return self._totals.report(self.first.why_so())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_firsts": {frozenset(): self.first}}


_OF_THE_RECIPE = ("name", "code", "version", "untracked", "environment", "read", "expand", "trust")


def _opened(
    said: Once,
    function: Callable[..., Any],
    how: dict[str, Any],
    *,
    root: Any,
    client: Client | None,
    lazy: bool,
    verify_fraction: float,
    num_workers: int,
    executor: Any,
    progress: bool | None,
) -> StreamPreprocessing:
    client = client or Client()
    recipe = open_recipe(function, how, client, progress)
    artifacts = ArtifactSet(recipe, RecipeIndex, client, root=root, trust=how["trust"])
    by = StreamPreprocessing(
        said, recipe, job_of(function, recipe, how, root), artifacts, verify_fraction=verify_fraction,
        is_lazy=lazy, num_workers=num_workers, executor=executor, progress=progress,
    )  # fmt: skip
    by.open()
    return by


_FIELDS = ("items", "hit", "computed", "waited", "declined", "bytes", "seconds", "seconds_saved")
_PROCESSES = 1024
"""Rows of counts; a process has that of its number, so that no two of a job write into one."""


class Totals:
    """Counts over all chunks, in memory that forked DataLoader workers share; a spawned one has its own."""

    def __init__(self) -> None:
        self._rows = shared_zeros(_PROCESSES * len(_FIELDS), "f8").reshape(_PROCESSES, -1)
        self._why: dict[str, None] = {}
        self._lock = ForkLock(is_reentrant=True)  # a collector that runs within may end another epoch

    def note(self, chunk: Chunk) -> None:
        """Adds what a chunk has counted since it was noted last."""
        report = chunk.samples.report()
        counts = np.array([getattr(report, name) for name in _FIELDS], "f8")
        before, chunk.noted = chunk.noted, counts
        with self._lock:
            self._rows[os.getpid() % _PROCESSES] += counts if before is None else counts - before
            if len(self._why) < _MAX_WHY:
                self._why.update(dict.fromkeys(report.why))

    def of_others(self) -> list[int]:
        """What the other processes have counted, in all epochs: hit, computed, by other jobs."""
        rows = self._rows
        counts = rows.sum(axis=0) - rows[os.getpid() % _PROCESSES]
        return [round(counts[_FIELDS.index(name)]) for name in ("hit", "computed", "waited")]

    def report(self, why: Sequence[str]) -> Report:
        whole = self._rows.sum(axis=0).tolist()
        numbers = dict(zip(_FIELDS, whole, strict=True))
        counts = {name: round(numbers[name]) for name in _FIELDS[:6]}
        lines = tuple(dict.fromkeys([*why, *self._why]))
        return Report(**counts, seconds=numbers["seconds"], seconds_saved=numbers["seconds_saved"], why=lines)

    def __reduce__(self) -> Any:
        return Totals, ()
