"""A chunk of a stream: items that are read together, looked up and prepared like a small data set.

Its recipe, its function and what the cache has of the recipe are those of the stream.

Invariants:
    1. What is said of the function, or of the daemon, is said once for the stream, not for each chunk.
    2. Samples that are made on access and neither committed yet nor in files of this job are those of
       `MAX_BEHIND` chunks at most.
    3. An executor is used by the process that it was given in: its threads and pipes are not in others.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from prepcache.fill.call import Job
from prepcache.fill.on_access import OnAccess
from prepcache.fill.recipe_guard import line
from prepcache.index.artifact_set import ArtifactSet
from prepcache.index.item_index import Array, Distinct
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import Recipe
from prepcache.keys.snapshot import Stamps
from prepcache.progress import Flow, Once
from prepcache.protocol.observed import draws_text
from prepcache.reasons import changed_inputs, stream_line
from prepcache.samples import Preprocessing, Samples
from prepcache.streaming.recipe_index import ChunkCatalogue, RecipeIndex

MAX_BEHIND = 4
"""Chunks whose samples, made on access, wait in memory to be committed; more are not kept."""


class StreamPreprocessing(Preprocessing):
    """How the samples of a stream are made, or of those of its items that need a recipe of their own.

    Args:
        said: what was said of the stream.
        verify_fraction: share of the hits that is made again and compared.
    """

    is_stream = True

    def __init__(
        self,
        said: Once,
        recipe: Recipe,
        job: Job,
        artifacts: ArtifactSet,
        *,
        verify_fraction: float,
        is_lazy: bool,
        num_workers: int,
        executor: Executor | None,
        progress: bool | None,
    ) -> None:
        super().__init__(
            recipe, job, artifacts, is_lazy=is_lazy, num_workers=num_workers, executor=executor,
            progress=progress,
        )  # fmt: skip
        self.verify_fraction = verify_fraction
        self.why: list[str] = []
        self.is_speaker = True
        self._said = said
        self._opened_in = os.getpid()
        self._flow: Flow | None = None
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

    def beside(self, recipe: Recipe, observer: Observer | None) -> StreamPreprocessing:
        """That of items that need another recipe."""
        other = StreamPreprocessing(
            self._said, recipe, replace(self.job, observer=observer, of=secrets.token_hex(8)),
            self.artifacts.beside(recipe, RecipeIndex), verify_fraction=self.verify_fraction,
            is_lazy=self.is_lazy, num_workers=self.num_workers, executor=self.executor,
            progress=self.progress,
        )  # fmt: skip
        other._opened_in, other._behind = self._opened_in, self._behind
        return other

    def begin_epoch(self, *, is_speaker: bool, others: Callable[[], Sequence[int]]) -> None:
        """Another epoch begins, in this process.

        Args:
            is_speaker: other processes, which read other shares, say nothing.
            others: tells what they have so far; see `Flow`.
        """
        self.artifacts.claim()
        self.is_speaker = is_speaker
        self._flow = Flow(self.name, self.progress if is_speaker else False, self.tell, others)

    @property
    def others(self) -> Callable[[], Sequence[int]]:
        """What the other workers have of the epoch."""
        assert self._flow is not None
        return self._flow.others

    def say(self, line: str, topic: str = "", *, is_wrong: bool = False) -> None:
        if self.is_speaker and (not topic or self._said.is_news(topic)):
            super().say(line, topic, is_wrong=is_wrong)

    def watcher(self, total: int, there: int) -> Flow:
        assert self._flow is not None
        return self._flow.chunk(total, there)

    def executor_here(self) -> Executor | None:
        return self.executor if os.getpid() == self._opened_in else None

    def begin_keeping(self, make: Callable[[], OnAccess]) -> OnAccess | None:
        busy = [one for one in self._behind if one.pid == os.getpid() and one.is_collecting]
        self._behind.clear()
        self._behind.extend(busy)
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

    def why_so(self) -> tuple[str, ...]:
        """What explains the counts of a report, a line each."""
        reason = [self.artifacts.reason] if self.artifacts.reason else []
        return tuple(dict.fromkeys([*self.why, *changed_inputs(self.artifacts), *reason]))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_flow": None, "_behind": deque()}


class Chunk:
    """Some items of a stream, looked up when it is made.

    Args:
        numbers: those of the items in the stream.
        digests, stamps: as they were read.
    """

    def __init__(
        self,
        by: StreamPreprocessing,
        items: Sequence[Any],
        numbers: Sequence[int],
        digests: Array,
        stamps: Stamps,
    ) -> None:
        distinct = Distinct(digests)
        by.artifacts.look_if_unknown()
        catalogue = ChunkCatalogue(distinct, by.artifacts.index, is_expanded=by.job.is_expanded)
        self.samples = Samples(by, items, distinct, stamps, catalogue, numbers)
        self.noted: Array | None = None
        """What was counted of it the last time."""
        self._by = by

    def begin(self) -> None:
        """Prepares what is missing.

        Raises:
            PreprocessError, SampleError, VerifyError: as at the opening of a `CachedDataset`.
        """
        self.samples.note_hits()
        if self._by.verify_fraction:
            self.samples.making.verify(self._by.verify_fraction)
        if not self._by.is_lazy and not self._by.is_adrift(self.samples):
            self.samples.prepare()
        self.samples.originals.end_opening()

    def given(self, items: Sequence[int]) -> Iterator[Any]:
        """The samples of its items at these positions."""
        yield from self.samples.of_items(items)
        if (here := self.samples.on_access) is not None and self._by.artifacts.session.is_away:
            here.flush(time.monotonic())  # into files of this job, where later chunks find it
