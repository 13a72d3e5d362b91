"""CachedIterableDataset: samples one after the other, preprocessed once, for items that come as a stream.

Items are read a chunk at a time. A chunk is a small data set: its items are looked up and prepared whole. All
chunks have one recipe, one function and one set of artifacts.

Invariants:
    1. The samples of all workers of all ranks together are those of all items, once each (streaming.py); each
       gives its own in the order of the items.
    2. The recipe is made once, at the opening. An item that is an instance of a class of the project, whose
       code would count beside the recipe, is refused.
    3. What was read before the items raised, or a sample failed in a later chunk, is given first.
    4. Memory is bounded by one chunk. Samples that were made on access are in files at its end.
    5. The first chunk is short, later ones as long as `SPAN_S` of work: the first sample comes soon.
    6. What is said of the function, or of the daemon, is said once for the stream, by its first worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prepcache.dataset import IterableDataset, Opened, T_co, open_recipe
from prepcache.dataset_options import DatasetOptions
from prepcache.errors import UnkeyableError
from prepcache.index.item_index import Catalogue, Distinct
from prepcache.keys import recipes
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.keys.items import ItemHasher
from prepcache.progress import Once, say
from prepcache.report import Report, changed_inputs, shared_zeros, stream_line
from prepcache.samples import Preprocessing, Samples
from prepcache.streaming import Ranks, Reading, Source, Split, ranks_here, split_here

if TYPE_CHECKING:
    from prepcache.keys.recipes import Recipe

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

    def _begin(self, items: Any, given: DatasetOptions) -> Preprocessing:
        self._ranks: Ranks | None = None
        self._said = Once()
        self._source = Source(items)
        self._hashing = {"root": given.root, "read": given.how["read"], "trust": given.how["trust"]}
        self._verify_fraction = given.verify_fraction
        self._counts = Counts()
        self._by = Preprocessing(given, open_recipe(given), self._said, is_stream=True)
        return self._by

    def _go_on(self, given: DatasetOptions) -> None:
        by = self._by
        said, self._why = stream_line(by.name, by.recipe.digest, by.artifacts)
        by.say(said)
        self._why += by.say_draws()
        for note in by.recipe.notes:
            by.say_of_it(note)

    @property
    def recipe(self) -> Recipe:
        """How the samples are made; `prepcache.recipe`."""
        return self._by.recipe

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
        self._by.artifacts.claim()
        self._by.is_speaker = split.is_first
        reading = Reading(self._source, split)
        size = FIRST_ITEMS
        while not reading.is_at_end:
            began = time.monotonic()
            items, numbers, error = reading.read(size)
            if items:
                chunk = self._looked_up(items, numbers)
                try:
                    self._prepare(chunk)
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
        catalogue = Catalogue(distinct, by.artifacts, is_expanded=by.job.is_expanded)
        return Samples(by, items, distinct, stamps, catalogue, numbers)

    def _prepare(self, chunk: Samples) -> None:
        chunk.note_hits()
        if self._verify_fraction:
            chunk.verify(self._verify_fraction)
        if not self._by.is_lazy:
            chunk.prepare()
        chunk.originals.end_opening()

    def _tell(self, split: Split) -> None:
        if split.ranks > 1 and split.is_first and self._said.is_news("ranks"):
            share = f"this is rank {split.rank}, which yields one item in {split.ranks}"
            say(f"{self.name}: split over {split.ranks} ranks: {share}", self._by.progress)

    def set_epoch(self, epoch: int) -> None:
        """Passes the number of the epoch to a stream that shuffles its items; trainers call this."""
        self._source.set_epoch(epoch)

    def report(self) -> Report:
        """How many items hit and were preprocessed in all epochs so far, and what that cost.

        What spawned workers did is not in it.
        """
        artifacts = self._by.artifacts
        reason = [artifacts.trouble] if artifacts.trouble else []
        return self._counts.report([*self._why, *changed_inputs(artifacts), *reason])

    def __getstate__(self) -> dict[str, Any]:
        split = Split(*ranks_here(self._ranks), 0, 1)
        self._tell(split)
        return {**self.__dict__, "_ranks": Ranks(split.rank, split.ranks)}


class Counts:
    """Sums over all chunks, in memory that forked DataLoader workers share; a spawned one has its own."""

    def __init__(self) -> None:
        self._rows = shared_zeros(_PROCESSES * len(_FIELDS), "f8").reshape(_PROCESSES, -1)
        self._why: dict[str, None] = {}

    def note(self, report: Report, trouble: str) -> None:
        report = report if trouble else replace(report, not_stored=0)  # it is on its way
        self._rows[os.getpid() % _PROCESSES] += [getattr(report, name) for name in _FIELDS]
        if len(self._why) < _MAX_WHY:
            self._why.update(dict.fromkeys(report.why))

    def report(self, why: list[str]) -> Report:
        sums = dict(zip(_FIELDS, self._rows.sum(axis=0).tolist(), strict=True))
        counts = {name: round(sums.pop(name)) for name in _COUNTS}
        return Report(**counts, **sums, why=tuple(dict.fromkeys([*why, *self._why])))

    def __reduce__(self) -> Any:
        return Counts, ()
