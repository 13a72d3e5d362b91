"""A stream: items that are read one after the other, a chunk at a time, each looked up and prepared whole.

A chunk is a small data set. All chunks have one recipe, one function and one set of artifacts.

Invariants:
    1. The recipe is made once, at the opening. An item that is an instance of a class of the project, whose
       code would count beside the recipe, is refused.
    2. What was read before the items raised, or a sample failed in a later chunk, is given first.
    3. Memory is bounded by one chunk, however long the stream is: its items, and what is made of them.
       Samples made on access wait in memory for at most `MAX_BEHIND` chunks.
    4. The first chunk is short, later ones as long as `SPAN_S` of work: the first sample comes soon.
    5. What is said of the function, or of the daemon, is said once for the stream, by its first worker.
    6. An executor is used by the process that it was given in: its threads and pipes are not in others.

Not here: reading (chunked_reader.py), whose share it is (sharding.py).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from prepcache.daemon.client import Client
from prepcache.dataset import job_of, open_recipe
from prepcache.errors import UnkeyableError
from prepcache.fill.on_access import OnAccess
from prepcache.fill.recipe_guard import line
from prepcache.index.artifact_set import ArtifactSet
from prepcache.index.item_index import Distinct
from prepcache.keys import recipes
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.keys.items import ItemHasher
from prepcache.progress import Once, Progress
from prepcache.protocol.observed import draws_text
from prepcache.reasons import changed_inputs, stream_line
from prepcache.report import Report, shared_zeros
from prepcache.samples import Preprocessing, Samples
from prepcache.streaming.chunked_reader import Reading, Source
from prepcache.streaming.recipe_index import ChunkCatalogue, RecipeIndex
from prepcache.streaming.sharding import Split

FIRST_ITEMS = 8
MOST_ITEMS = 8192
"""Items of the first chunk, and of any. A warm one of so many is looked up in a few milliseconds."""
GROWTH = 4
SPAN_S = 2.0
"""Work of one chunk: its first sample waits for its last, and what is made is one artifact."""
MAX_BEHIND = 4
"""Chunks whose samples, made on access, wait in memory to be committed; more are not kept."""
_MAX_WHY = 100


class StreamPreprocessing(Preprocessing):
    """How the samples of a stream are made.

    Args:
        said: what was said of the stream.
    """

    is_stream = True

    def __init__(self, said: Once, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.why: list[str] = []
        self.is_speaker = True
        self._said = said
        self._opened_in = os.getpid()
        self._behind: deque[OnAccess] = deque()

    def open(self) -> None:
        """Asks the daemon for the first time, and says what is there."""
        self.artifacts.open()
        said, reasons = stream_line(self.name, self.recipe.digest, self.artifacts)
        self.why.extend(reasons)
        self.say(said)
        if self.artifacts.drawn:
            self.why.append(draws_text(self.artifacts.drawn))
            self.say_of_it(draws_text(self.artifacts.drawn), "drawn")
        for note in self.recipe.notes:
            self.say_of_it(note)

    def say(self, line: str, topic: str = "", *, is_wrong: bool = False) -> None:
        if self.is_speaker and (not topic or self._said.is_news(topic)):
            super().say(line, topic, is_wrong=is_wrong)

    def watcher(self, total: int, there: int) -> Progress:
        return Progress(self.name, total, there, self.progress if self.is_speaker else False, self.tell)

    def executor_here(self) -> Executor | None:
        return self.executor if os.getpid() == self._opened_in else None

    def begin_keeping(self, make: Callable[[], OnAccess]) -> OnAccess | None:
        busy = [one for one in self._behind if one.pid == os.getpid() and one.is_collecting]
        self._behind = deque(busy)
        if len(busy) >= MAX_BEHIND:
            return None
        self._behind.append(here := make())
        return here

    def is_adrift(self, samples: Samples) -> bool:
        """Whether samples that were made now would not belong to the recipe; then they are made on access."""
        if samples.is_expanded or not len(samples.catalogue.missing) or not samples.may_fill:
            return False
        drifted = self.steady.changed(is_due=True)
        if drifted:
            self.say_of_it(line(drifted), "drifted")
        return bool(drifted)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_behind": deque()}


class Stream:
    """What a `CachedIterableDataset` is over items that are no sequence.

    Args:
        said: what was said of it.
        how: the options of its recipe, with `read` and `trust`; others as `CachedDataset` takes them.
    """

    def __init__(
        self,
        said: Once,
        items: Any,
        function: Callable[..., Any],
        how: dict[str, Any],
        *,
        root: Any,
        client: Client | None,
        lazy: bool,
        verify_fraction: float,
        num_workers: int,
        executor: Executor | None,
        progress: bool | None,
    ) -> None:
        client = client or Client()
        recipe = open_recipe(function, how, client, progress)
        artifacts = ArtifactSet(recipe, RecipeIndex, client, root=root, trust=how["trust"])
        self.by = StreamPreprocessing(
            said, recipe, job_of(function, recipe, how, root), artifacts, is_lazy=lazy,
            num_workers=num_workers, executor=executor, progress=progress,
        )  # fmt: skip
        self._said = said
        self._source = Source(items)
        self._hashing = {"root": root, "read": how["read"], "trust": how["trust"]}
        self._verify_fraction = verify_fraction
        self._counts = Counts()
        self.by.open()

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next one is, for items that are in another order in each."""
        self._source.set_epoch(epoch)

    def samples(self, split: Split) -> Iterator[Any]:
        """The samples of a share of the items, from the beginning."""
        self.by.artifacts.claim()
        self.by.is_speaker = split.is_first
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
                    if (here := chunk.on_access) is not None and self.by.artifacts.session.is_away:
                        here.flush()  # into files of this job, where later chunks find it
                finally:
                    self._counts.note(chunk.report())
                del chunk  # before others are read
            if error is not None:
                raise error

    def _looked_up(self, items: list[Any], numbers: range) -> Samples:
        """The samples of items that were read together.

        Raises:
            UnkeyableError: an item has no stable bytes, or is an instance of a class whose code counts.
        """
        by = self.by
        hasher = ItemHasher(**self._hashing, stat_cache=user_stat_cache())
        hasher.says_text_files = says = self._said.is_news("files")
        digests, stamps = hasher.digest_many(items, numbers.start, numbers.step)
        if says and hasher.says_text_files:
            self._said.take_back("files")  # there were none
        if recipes.with_classes(by.recipe, hasher.classes).digest != by.recipe.digest:
            names = ", ".join(sorted(one.__qualname__ for one in hasher.classes))
            raise UnkeyableError(
                f"{by.name}: items of a stream hold {names}, whose code would count: yield dicts, tuples or "
                "plain values (dataclasses.asdict(item)), or pass a list to CachedDataset"
            )
        distinct = Distinct(digests)
        by.artifacts.look_if_unknown()
        catalogue = ChunkCatalogue(distinct, by.artifacts.index, is_expanded=by.job.is_expanded)
        return Samples(by, items, distinct, stamps, catalogue, numbers)

    def _prepare(self, chunk: Samples) -> None:
        """Verifies what was found of a chunk, and makes what is missing.

        Raises:
            PreprocessError, SampleError, VerifyError: as at the opening of a `CachedDataset`.
        """
        chunk.note_hits()
        if self._verify_fraction:
            chunk.making.verify(self._verify_fraction)
        if not self.by.is_lazy and not self.by.is_adrift(chunk):
            chunk.prepare()
        chunk.originals.end_opening()

    def report(self) -> Report:
        """What was there, made and given so far, in all epochs."""
        artifacts = self.by.artifacts
        reason = [artifacts.reason] if artifacts.reason else []
        return self._counts.report([*self.by.why, *changed_inputs(artifacts), *reason])


_FIELDS = ("items", "hit", "computed", "waited", "declined", "bytes", "seconds", "seconds_saved")
_PROCESSES = 1024
"""Rows of counts; a process has that of its number, so that no two of a job write into one."""


class Counts:
    """Sums over all chunks, in memory that forked DataLoader workers share; a spawned one has its own."""

    def __init__(self) -> None:
        self._rows = shared_zeros(_PROCESSES * len(_FIELDS), "f8").reshape(_PROCESSES, -1)
        self._why: dict[str, None] = {}

    def note(self, report: Report) -> None:
        """Adds what a chunk has counted."""
        self._rows[os.getpid() % _PROCESSES] += [getattr(report, name) for name in _FIELDS]
        if len(self._why) < _MAX_WHY:
            self._why.update(dict.fromkeys(report.why))

    def report(self, why: list[str]) -> Report:
        sums = dict(zip(_FIELDS, self._rows.sum(axis=0).tolist(), strict=True))
        counts = {name: round(sums.pop(name)) for name in _FIELDS[:6]}
        return Report(**counts, **sums, why=tuple(dict.fromkeys([*why, *self._why])))

    def __reduce__(self) -> Any:
        return Counts, ()
