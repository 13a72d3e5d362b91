"""The samples of some items: looked up, made where they are missing, and read.

A data set is one `Samples` over one `Preprocessing`. A stream has a `Samples` for each chunk that it reads,
and they share their `Preprocessing`.

Invariants:
    1. `sample(position)` equals `preprocess(item, **config)` as of the opening, wherever it comes from.
    2. Maps and what is being collected belong to one process. A fork shares the maps; what is pickled maps
       the files again where it arrives.
    3. Where items expand, the number of samples does not change between two calls of `prepare`.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.artifact.sample_tree import copied
from prepcache.dataset_options import DatasetOptions, Wrapped
from prepcache.errors import PreprocessError, SampleError, UnkeyableError
from prepcache.forks import ForkLock, kept
from prepcache.index.artifact_set import ArtifactSet
from prepcache.index.item_index import MISSING, UNSTEADY, Array, Catalogue, Distinct, Originals, View
from prepcache.keys.code.project import working_folder
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.protocol.wire import draws_text
from prepcache.report import WITHOUT, Once, Report, Tally, opening_line, say, why_missing, why_so

if TYPE_CHECKING:
    from prepcache.fill.call import Job
    from prepcache.fill.on_access import OnAccess
    from prepcache.keys.items import Stamps
    from prepcache.keys.recipes import Recipe
    from prepcache.progress import Progress

TOLD_BARE = KeyboardInterrupt, PreprocessError, SampleError
"""Raised with the line of the job that asked for samples, and one frame of ours."""
_BEGINNING = ForkLock()
"""Held while what makes samples is set up: threads share it."""


class Preprocessing:
    """How samples are made, and what the cache has of them.

    Attributes:
        keeps: samples made on access are kept.
        is_speaker: this process says what there is to say: of a stream's, the first worker.
    """

    def __init__(
        self, given: DatasetOptions, recipe: Recipe, said: Once | None = None, *, is_stream: bool = False
    ) -> None:
        how, root = given.how, None if given.root is None else os.path.abspath(given.root)
        self.recipe = recipe
        self.is_expanded: bool = how["expand"]
        self.is_wrapped = isinstance(given.function, Wrapped)
        self.of = secrets.token_hex(8)
        is_observed, cwd = how["code"] is not None, working_folder()
        self._asked = given.function, how["read"], is_observed, how["trust"], root, cwd
        self.artifacts = ArtifactSet(recipe, given.asks, root=root, trust=how["trust"], keeps_all=is_stream)
        self.is_stream, self.is_speaker = is_stream, True
        self.is_lazy = self.keeps = given.lazy
        self.num_workers, self.executor, self.progress = given.num_workers, given.executor, given.progress
        self.opened_in = os.getpid()
        self.said = said or Once()

    @property
    def name(self) -> str:
        return self.recipe.name

    @kept
    def job(self) -> Job:
        """What is called: loaded late, as a job whose samples are all there needs none of it."""
        from prepcache.fill.call import Job
        from prepcache.fill.recipe_guard import RecipeGuard
        from prepcache.keys.observation.inputs import Roots
        from prepcache.keys.observation.observer import Observer

        (function, read, is_observed, trust, root, cwd), observer = self._asked, None
        if is_observed:
            roots = replace(Roots.of(self.recipe, root), cwd=cwd)  # as of the opening
            observer = Observer(self.recipe, roots, user_stat_cache(), trust)
        guard = RecipeGuard(self.recipe)
        return Job(function, self.recipe.config, self.is_expanded, read, observer, self.of, guard)

    def say(self, line: str, topic: str = "", *, is_wrong: bool = False) -> None:
        """Says a line; of a `topic` of what is wrong once, whichever process comes upon it."""
        if self.is_speaker and (not topic or self.said.is_news(topic)):
            say(line, self.progress, is_wrong=is_wrong or bool(topic))

    def say_of_it(self, text: str, topic: str = "", *, is_wrong: bool = False) -> None:
        self.say(f"{self.name}: {text}", topic, is_wrong=is_wrong)

    def say_draws(self) -> list[str]:
        """Says that the samples that are there were drawn, to each job: others may have made them."""
        if not self.artifacts.drawn:
            return []
        text = draws_text(self.artifacts.drawn)
        self.say_of_it(text, "drawn")
        return [text]

    def shown(self, total: int, there: int, *, is_background: bool = False) -> Progress:
        from prepcache.progress import Progress

        is_shown = self.progress if self.is_speaker else False
        return Progress(self.name, total, there, is_shown, self._tell, is_background=is_background)

    def _tell(self, done: int, total: int) -> None:
        if self.artifacts.mode.is_writing:
            self.artifacts.session.heartbeat.note_progress(self.recipe, done, total)

    def refuse_draws(self, drawn: set[str]) -> None:
        if drawn and self.is_wrapped:
            from prepcache.keys.randomness import describe

            raise UnkeyableError(describe(self.name, drawn))

    @property
    def is_in_executor(self) -> bool:
        """Whether this thread belongs to executor=, for which a fill may wait."""
        return threading.current_thread() in getattr(self.executor, "_threads", ())

    def __getstate__(self) -> dict[str, Any]:
        job = self.job  # the guard of one that is made elsewhere would take what is there for the opening's
        return {**self.__dict__, "job": job, "executor": None}


class Samples:
    """The samples of some items; `numbers`: those of the items in their stream."""

    def __init__(
        self,
        by: Preprocessing,
        items: Sequence[Any],
        distinct: Distinct,
        stamps: Stamps,
        catalogue: Catalogue,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.by = by
        self.catalogue = catalogue
        self.count = len(distinct.inverse)
        self.is_expanded = by.is_expanded
        self.originals = Originals(items, distinct, stamps, numbers)
        self.tally = Tally(distinct, catalogue)
        self._items = items
        self._stamps = stamps
        self._is_part = False
        self._view: View | None = None
        self._here: OnAccess | None = None
        self._progress: Progress | None = None

    # -- looking up

    def look(self) -> bool:
        return self.by.artifacts.look()

    def note_hits(self) -> None:
        self.by.artifacts.session.heartbeat.note_found(*self.tally.note_hits())

    def say_opening(self, root: str | os.PathLike[str] | None) -> None:
        artifacts = self.by.artifacts
        reasons = why_missing(artifacts, self.catalogue, self._items, root)
        if self.originals.is_unsteady and len(self.catalogue.missing):
            reasons = [UNSTEADY]
        self.tally.why.extend(reasons)
        if reasons == [artifacts.client.budget.warned]:
            reasons = [WITHOUT]  # why, the warning has just said
        to_do, told = len(self.catalogue.missing), self.tally.report(())
        recipe = self.by.recipe
        self.by.say(opening_line(recipe.name, recipe.digest, told, to_do, reasons, artifacts.mode))
        self.by.refuse_draws(artifacts.drawn)
        self.tally.why.extend(self.by.say_draws())

    def follow(self) -> None:
        by, missing, total = self.by, len(self.catalogue.missing), len(self.catalogue.distinct)
        if missing and by.artifacts.mode.is_writing:
            by.artifacts.budget_bytes()  # else each worker that is forked asks
            self._making()  # and loads what makes samples
            self._progress = by.shown(total, total - missing, is_background=True)
            by.artifacts.session.listen(self)

    def on_beat(self) -> None:
        progress, artifacts = self._progress, self.by.artifacts
        if progress is None or not artifacts.is_owner or artifacts.filling.locked():  # a fill shows its own
            return
        if artifacts.session.shared is not None:  # a download would keep the beat waiting
            self.look()
        there, computed, waited = self.tally.made_since_opening()
        item_bytes = 0.0 if artifacts.reason else self.tally.item_bytes
        progress.advance(computed, waited, item_bytes, there=there)
        if progress.is_over or not len(self.catalogue.missing):
            self._progress = None
            progress.close()

    # -- making what is missing

    @property
    def on_access(self) -> OnAccess | None:
        """What makes samples in this process; None before any is missing."""
        here = self._here
        return here if here is not None and here.pid == os.getpid() else None

    def _making(self) -> OnAccess:
        """The same, loaded late: a job whose samples are all there needs none of it."""
        if (here := self.on_access) is None:
            from prepcache.fill.on_access import OnAccess
            from prepcache.fill.pending import Task

            with _BEGINNING:
                task = Task(self.by, self.catalogue, self.originals, self.tally)
                here = self._here = self.on_access or OnAccess(task)
        return here

    def verify(self, fraction: float) -> None:
        from prepcache.fill.verifier import verify

        verify(self._making().task, fraction)

    def prepare_opened(self) -> None:
        """Makes what is missing, unless something that counts in the recipe was changed since the opening."""
        if len(self.catalogue.missing) and (changed := self.by.job.guard.check()):
            from prepcache.fill.recipe_guard import line

            raise UnkeyableError(f"{self.by.name}: {line(changed)}", names=changed)
        self.prepare()

    def prepare(self, positions: range | None = None) -> None:
        """Makes what is missing, or only of the items at `positions`: another one makes all."""
        self._is_part = positions is not None
        if not (len(self.catalogue.missing) or self.is_expanded):
            return
        self.by.job.refuse_itself()
        from prepcache.fill.filler import prepare

        if (view := prepare(self._making(), positions)) is not None:
            self._view = view

    # -- reading

    def __len__(self) -> int:
        return len(self._expanded_view()) if self.is_expanded else self.count

    def sample(self, position: int) -> Any:
        self.by.artifacts.is_used = True
        if self.is_expanded:
            return self._expanded_view().sample(position)
        index, places = int(self.catalogue.distinct.inverse[position]), self.catalogue.places
        slot = self.catalogue.slots.get(int(places.artifact[index]))
        if slot is None:  # it is missing, or was let go this moment, and is found then
            return self._make([index], is_single=True)[index]
        return slot.artifact.sample(int(places.row[index]))

    def __iter__(self) -> Iterator[Any]:
        """All samples, gathered in blocks where none is missing: a sample is a view of its block's memory."""
        at, count = 0, len(self.view())
        while at < count:
            view = self.view()
            stop = min(at + view.block_rows, count)
            yield from view.take(list(range(at, stop)), self.make_missing)
            at = stop

    def make_missing(self, positions: Array) -> list[Any]:
        """Makes the missing samples at these positions together, each item once."""
        items = self.catalogue.distinct.inverse[positions].tolist()
        made, given = self._make(list(dict.fromkeys(items))), set[int]()
        samples = []
        for item in items:
            # Drawn again, or an equal item: what is done to one sample must not show in another.
            samples.append(copied(made[item]) if item in given else made[item])
            given.add(item)
        return samples

    def _make(self, indices: Sequence[int], *, is_single: bool = False) -> dict[int, Any]:
        if self._is_part:
            self.prepare_opened()
        return self._making().samples(indices, is_single=is_single)

    def view(self) -> View:
        """The samples that are there; where items expand, those of the last preparation."""
        self.by.artifacts.is_used = True
        if self.is_expanded:
            return self._expanded_view()
        view = self._view
        if view is None or view.version != self.catalogue.version:
            view = self._view = View(self.catalogue)
        return view

    def _expanded_view(self) -> View:
        if self._view is None:
            self.prepare_opened()
        assert self._view is not None
        return self._view

    # -- what there is

    def are_there(self, positions: Array) -> Array:
        if self.is_expanded:
            return np.ones(len(positions), np.bool_)
        found = self._there(positions)
        return self._there(positions) if not found.all() and self.look() else found

    def _there(self, positions: Any) -> Array:
        found: Array = self.catalogue.places.artifact[self.catalogue.distinct.inverse[positions]] != MISSING
        return found

    def cached(self) -> int:
        """How many of the items are there; asks the daemon."""
        self.look()
        return int(np.count_nonzero(self._there(slice(None))))

    def counted(self) -> tuple[Any, list[str]]:
        """What counts of them where a function holds them: items and observed inputs."""
        catalogue = self.catalogue
        chunks = {chunk for ref in catalogue.refs for chunk in ref.observed}
        # What is read after the samples were made is none of their inputs, though it may be kept for others.
        is_kept = not len(catalogue.missing) and all(slot.ref for slot in list(catalogue.slots.values()))
        rows = [
            *(() if is_kept else self.by.job.observed()),
            *(row for chunk in chunks for row in catalogue.index.observed[chunk]),
        ]
        observed = sorted({json.dumps(row, sort_keys=True) for row in rows})
        return catalogue.distinct.digests[catalogue.distinct.inverse], observed

    def report(self) -> Report:
        return self.tally.report(why_so(self.by.artifacts, self._stamps, self.tally))

    # -- to other processes

    def __getstate__(self) -> dict[str, Any]:
        if (here := self.on_access) is not None:
            here.run()
        return {**self.__dict__, "_here": None, "_view": None, "_progress": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # What was lost on the way is made again: without it, positions would name other samples.
        if self.is_expanded and not len(self.catalogue.missing):
            self._view = View(self.catalogue)
