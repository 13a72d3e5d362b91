"""The samples of some items: looked up, made where they are missing, and read.

A data set is one `Samples` over one `Preprocessing`. A stream has a `Samples` for each chunk that it reads,
and they share their `Preprocessing`.

Invariants:
    1. `sample(position)` equals `preprocess(item, **config)` as of the opening, wherever it comes from.
    2. Maps and what is being collected belong to one process. A fork shares the maps; what is pickled maps
       the files again where it arrives.
    3. Where items expand, the number of samples does not change between two calls of `prepare`.

Not here: what the daemon has (artifact_set.py), how missing items are made (filler.py), how samples made on
access are committed (on_access.py), which items were altered (input_guard.py).
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.errors import PreprocessError, SampleError, UnkeyableError
from prepcache.fill.backlog import behind_text
from prepcache.fill.call import Job, Part, copied
from prepcache.fill.collect import Task
from prepcache.fill.input_guard import SHOWN, UNSTEADY, Originals
from prepcache.fill.on_access import OnAccess, made_by
from prepcache.fill.recipe_guard import Steady, line
from prepcache.fill.verify import put_away, verify
from prepcache.fill.workers import Crew, crew_of
from prepcache.index.item_index import MISSING, Array, Distinct
from prepcache.index.snapshot import View, given
from prepcache.keys.randomness import Guard, describe, guard
from prepcache.pickling import sendable
from prepcache.progress import Progress, say
from prepcache.protocol.observed import draws_text, with_draws
from prepcache.protocol.units import count_text
from prepcache.reasons import (
    WITHOUT,
    ended_early,
    left_text,
    opening_line,
    unobserved_text,
    why_missing,
    why_so,
)
from prepcache.report import Report, Tally
from prepcache.wrapped import Wrapped, draws_refused

if TYPE_CHECKING:
    from prepcache.index.artifact_set import ArtifactSet
    from prepcache.index.catalogue import Catalogue
    from prepcache.keys.observation.context import Notice
    from prepcache.keys.recipes import Recipe
    from prepcache.keys.snapshot import Stamps

MAX_FILLS = 3
"""How often what is missing of a data set that expands is made, before it is said that nothing keeps it."""
CHANGED_SAID = 3
"""Items that changed during a fill and are named, each on a line."""
LOOK_AGAIN_S = 5.0
"""How often a lazy data set that misses asks what others have committed meanwhile."""


class Preprocessing:
    """How samples are made, and what the cache has of them.

    Args:
        job: the function, and how it is called.
        artifacts: those of the recipe.
        is_lazy: nothing is made ahead.
        num_workers, executor, progress: as given to the data set.
    """

    is_stream = False

    def __init__(
        self,
        recipe: Recipe,
        job: Job,
        artifacts: ArtifactSet,
        *,
        is_lazy: bool,
        num_workers: int,
        executor: Executor | None,
        progress: bool | None,
    ) -> None:
        self.recipe = recipe
        self.job = job
        self.artifacts = artifacts
        self.steady = Steady(recipe)
        self.is_lazy = is_lazy
        self.num_workers = num_workers
        self.executor = executor
        self.progress = progress

    @property
    def name(self) -> str:
        """The recipe's."""
        return self.recipe.name

    def say(self, line: str, topic: str = "", *, is_wrong: bool = False) -> None:
        """Says a line.

        Args:
            topic: of what is wrong: every process says it, and a stream once, whichever chunk it is of.
        """
        say(line, self.progress, is_wrong=is_wrong or bool(topic))

    def say_of_it(self, text: str, topic: str = "", *, is_wrong: bool = False) -> None:
        """Says something of the data set, after its name."""
        self.say(f"{self.name}: {text}", topic, is_wrong=is_wrong)

    def watcher(self, total: int, there: int) -> Progress:
        """Shows how a fill goes."""
        return Progress(self.name, total, there, self.progress, self.tell)

    def tell(self, done: int, total: int) -> None:
        """Lets the daemon know how far a fill is."""
        if self.artifacts.mode.is_writing:
            self.artifacts.session.progress(self.recipe, done, total)

    def crew(self, item_of: Callable[[int], Any]) -> Crew:
        """Who calls the function."""
        return crew_of(self.executor, self.num_workers, self.job, item_of, self.steady)

    def begin_keeping(self, make: Callable[[], OnAccess]) -> OnAccess | None:
        """What makes and keeps samples on access; None where as many as may be are at work."""
        return make()

    def sendable(self, *, is_whole: bool) -> Preprocessing:
        """What is sent to another process: without the function, where it cannot be sent and is not needed.

        Args:
            is_whole: no sample is missing.
        """
        sent = sendable(self.job, self.recipe) if is_whole else None
        if sent is None:
            return self
        copy = object.__new__(type(self))
        job, recipe = sent
        artifacts = self.artifacts.sent_with(recipe)
        copy.__dict__.update(
            self.__dict__, job=job, recipe=recipe, steady=Steady(recipe), artifacts=artifacts
        )
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "executor": None}


class Samples:
    """The samples of some items.

    Args:
        items: the items.
        distinct, stamps: their digests, and their files, as they were read.
        catalogue: where the samples lie.
        numbers: the numbers of the items in their stream; by default, their positions.
    """

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
        self.is_expanded = by.job.is_expanded
        self.originals = Originals(items, distinct, stamps, numbers)
        self.tally = Tally(distinct, catalogue)
        self._items = items
        self._stamps = stamps
        self._drawn: set[str] = set()
        self._guards: dict[int, Guard] = {}
        """Those of the calls on access that are under way, by `id`: they are equal to each other."""
        self._keeps = by.is_lazy  # samples made on access
        self._is_part = False
        self._view: View | None = None
        self.on_access: OnAccess | None = None

    # -- looking up

    def look(self, *, not_within_s: float = 0.0) -> bool:
        """Takes in what has been committed since; whether anything missing was found."""
        found = self.by.artifacts.look(not_within_s=not_within_s)
        placed = self.catalogue.place()
        return found if placed is None else bool(len(placed))

    def note_hits(self) -> None:
        """What is there now was there at the opening."""
        self.by.artifacts.found(*self.tally.note_hits())

    def take_waiting(self) -> None:
        """Takes what other data sets of this process have made and could not commit yet."""
        if waiting := self.by.artifacts.take_waiting():
            self._making().adopt(waiting)

    def say_opening(self, root: str | os.PathLike[str] | None) -> None:
        """Says what is there, and why the rest is not."""
        artifacts = self.by.artifacts
        reasons = why_missing(artifacts, self._items, root)
        if self.originals.is_unsteady and len(self.catalogue.missing):
            reasons = [UNSTEADY]
        self.tally.why.extend(reasons)
        if reasons == [artifacts.client.budget.warned]:
            reasons = [WITHOUT]  # why, the warning has just said
        to_do, told = len(self.catalogue.missing), self.tally.report(())
        recipe = self.by.recipe
        self.by.say(opening_line(recipe.name, recipe.digest, told, to_do, reasons, artifacts.mode))
        self._refuse_draws(artifacts.drawn)
        # Each job that is given such samples says it: whoever made them may have been another.
        if artifacts.drawn and self.tally.note_drawn():
            self.tally.why.append(draws_text(artifacts.drawn))
            self.by.say_of_it(draws_text(artifacts.drawn), "drawn")

    def verify(self, fraction: float) -> None:
        """Makes a share of what is there again, and compares."""
        away = partial(put_away, self.by.artifacts)
        verify(self.by.job, self.catalogue, self.originals, fraction, random.Random(), away)

    # -- making what is missing

    def prepare_opened(self) -> None:
        """Makes what is missing, unless something that counts in the recipe was changed since the opening.

        Raises:
            PreprocessError, SampleError, UnkeyableError: as `CachedDataset.prepare`.
        """
        if len(self.catalogue.missing) and (changed := self.by.steady.changed(is_due=True)):
            raise UnkeyableError(f"{self.by.name}: {line(changed)}", names=changed)
        self.prepare()

    def prepare(self, positions: range | None = None) -> None:
        """Makes what is missing. An error or Ctrl-C shows the job's line that asked for it, and no frame of
        ours.

        Args:
            positions: only of these items; the first access to another missing sample makes all of them.
        """
        try:
            self._is_part = positions is not None
            self._prepare(positions)
        except (KeyboardInterrupt, PreprocessError, SampleError) as error:
            raise error.with_traceback(None) from error.__cause__

    def _prepare(self, positions: range | None) -> None:
        self.by.job.refuse_itself()
        if (here := self.present) is not None:
            here.flush_soon()  # what it has leased is no other job's to wait for
        with self.by.artifacts.filling:
            if len(missing := self._missing(positions)):
                if not self.may_fill:
                    return
                self._fill(missing)
            if self.is_expanded and positions is None:
                self._view = self._whole_view()
                if self.count and not len(self._view) and not self.by.is_stream:
                    which = count_text(self.count, "item", "items")
                    text = f"{self.by.name} yielded no sample for any of {which}: is a yield missing?"
                    self.by.say(text, is_wrong=True)

    def _whole_view(self) -> View:
        """A view of all samples; an artifact that was purged since the fill is made again.

        Raises:
            OSError: neither the cache nor the temporary folder takes them.
        """
        for _ in range(MAX_FILLS):
            view = View(self.catalogue)
            if view.is_whole:
                return view
            self._fill(self.catalogue.missing)
        where = f"neither the cache nor {tempfile.gettempdir()} or /var/tmp takes the samples"
        raise OSError(errno.ENOSPC, f"{self.by.name}: {where}: free space there, or set TMPDIR")

    @property
    def may_fill(self) -> bool:
        """Whether filling is of use: where nothing can be kept, each sample is made when it is asked for."""
        return self.is_expanded or self.by.artifacts.mode.is_writing

    def _missing(self, positions: range | None) -> Array:
        """The distinct items that are missing, of all or of those at these positions."""
        missing = self.catalogue.missing
        if positions is None:
            return missing
        return np.intersect1d(missing, self.catalogue.distinct.inverse[positions.start :: positions.step])

    def _fill(self, todo: Array) -> None:
        artifacts, catalogue = self.by.artifacts, self.catalogue
        total, said = len(catalogue.distinct), artifacts.reason
        progress = self.by.watcher(total, total - len(todo))
        try:
            self.originals.compare(todo)
            self._try_one(int(todo[0]))
            crew = self.by.crew(self.originals.item)
            filled = artifacts.fill(crew, progress, self._task(todo), lambda: self._making().adopt)
        except (KeyboardInterrupt, PreprocessError, SampleError) as error:
            progress.close()
            self.by.say_of_it(
                ended_early(error, catalogue.kept, total, is_part=self.by.is_stream), is_wrong=True
            )
            raise
        finally:
            progress.close()
        self.by.steady.filled()
        artifacts.found(*self.tally.note_fill(filled, todo))
        self._keeps = self.by.is_lazy or filled.is_cut_off or bool(filled.reason and not filled.is_declined)
        if filled.aside and artifacts.mode.is_writing:
            self._making().adopt(filled.aside)
        self._say_filled(filled, said)
        self._refuse_draws(filled.drawn)

    def _try_one(self, index: int) -> None:
        """Makes a sample of a wrapped dataset before any is stored: one that draws is refused."""
        job = self.by.job
        if isinstance(job.function, Wrapped):
            with guard(job.function, job.probe) as watched:
                next(iter(job.parts(index, self.originals.item(index))), None)
            self._refuse_draws(watched.drawn)

    def _refuse_draws(self, drawn: set[str]) -> None:
        """
        Raises:
            UnkeyableError: a wrapped dataset has drawn random numbers.
        """
        if drawn and isinstance(self.by.job.function, Wrapped):
            raise UnkeyableError(draws_refused(self.by.name, drawn))

    def _say_filled(self, filled: Any, said: str) -> None:
        """Says what there is to say of a fill.

        Args:
            said: the daemon's trouble before it, which was said.
        """
        by, artifacts = self.by, self.by.artifacts
        self._say_changed(filled.changed)
        self._say_notices(filled.notices)
        if filled.unobserved:
            self._say_unobserved(*next(iter(filled.unobserved.items())))
        if filled.left:
            by.say_of_it(behind_text(len(filled.left)), "slow")
        if filled.nothing:
            item = self.originals.item(filled.nothing[0])
            by.say(f"{by.name} gave None for {item!r:.200}: is a return missing?", "nothing")
        if filled.drawn:
            by.say(describe(by.name, filled.drawn), "drawn")
        if filled.reason and filled.reason != said and artifacts.mode.is_writing:
            why = WITHOUT if filled.reason == artifacts.client.budget.warned else filled.reason
            by.say_of_it(f"{left_text(len(self.catalogue.missing), is_part=by.is_stream)}: {why}", "left")

    def _task(self, todo: Array) -> Task:
        by, originals = self.by, self.originals
        return Task(
            by.recipe, self.catalogue, todo, by.artifacts.generation, originals.item,
            originals.position, originals.name, originals.changed, made_by(by.recipe.name), by.steady,
            self.is_expanded,
        )  # fmt: skip

    def _say_changed(self, changed: dict[int, list[str]]) -> None:
        """Of items that were made at once: the first by name, as a folder may be written to meanwhile."""
        news = [names for index, names in changed.items() if self.tally.note_changed(index, names)]
        told = [", ".join(names[:3]) for names in news[:CHANGED_SAID]]
        if len(news) > len(told):
            told.append(f"{len(news) - len(told):,} more items")
        for what in told:
            self.by.say_of_it(f"{what} changed since the data set was opened: not stored", is_wrong=True)

    def _say_notices(self, notices: Iterable[Notice]) -> None:
        """Each topic once, whichever processes came upon it."""
        for topic, text in notices:
            if self.tally.note_once(topic):
                self.by.say_of_it(text, topic)

    def _say_unobserved(self, index: int, why: str) -> None:
        """Once, whatever the number of such items: what one of them reads, the others mostly read, too."""
        if self.tally.note_once("unobserved"):
            self.by.say_of_it(unobserved_text(self.originals.name(index), why), is_wrong=True)

    # -- reading

    def __len__(self) -> int:
        return len(self._expanded_view()) if self.is_expanded else self.count

    def sample(self, position: int) -> Any:
        """The sample at a position, which is made if it is missing."""
        self.by.artifacts.touch()
        if self.is_expanded:
            return self._expanded_view().sample(position)
        index = int(self.catalogue.distinct.inverse[position])
        held, row = self.catalogue.slot_of(index)
        return self._make([index])[index] if held is None else held.artifact.sample(row)

    def batch(self, indices: Any) -> list[Any]:
        """The samples at these positions: gathered at once where they are there."""
        return self.view().take(indices, self._make)

    def gathered(self, positions: Array) -> list[Any]:
        """The same, for a worker that found these samples."""
        if not self.is_expanded and not self.catalogue.holds(positions):
            self.look()
        return self.batch(positions)

    def of_items(self, items: Any) -> Iterator[Any]:
        """The samples of the items at these positions, one after the other."""
        return given(np.asarray(items, "i8"), self.view, self._make)

    def view(self) -> View:
        """The samples that are there. Where items expand, those of the last preparation: the length must not
        change under its reader.
        """
        self.by.artifacts.touch()
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

    # -- making on access

    def _make(self, indices: Sequence[int]) -> dict[int, Any]:
        """The samples of distinct items that are missing."""
        by = self.by
        if self._is_part:
            self.prepare_opened()
        for index in indices:
            by.job.refuse_itself(index)
        drifted = by.steady.changed(is_due=not by.steady.is_settled)
        if drifted and by.steady.is_news():
            by.say_of_it(line(drifted), "drifted")
        here = None if drifted else self._wanted()
        watched = guard(by.job.function, by.job.probe)
        self._guards[id(watched)] = watched
        try:
            with watched:
                made = self._made(indices) if here is None else here.samples(indices, self._kept_call)
        finally:
            del self._guards[id(watched)]
            self._drawn |= watched.drawn
        if watched.drawn and self.tally.note_drawn():
            by.say(describe(by.name, watched.drawn), "drawn")
        return made

    def _made(self, indices: Sequence[int]) -> dict[int, Any]:
        """The samples of distinct items, of which what is missing is made and not kept."""
        if self._is_keeping:
            self.look(not_within_s=LOOK_AGAIN_S)
        made = {}
        for index in indices:
            held, row = self.catalogue.slot_of(index)
            if held is not None:
                made[index] = held.artifact.sample(row)
            else:  # the next call may give the same memory
                made[index] = copied(self._call(index, self.originals.item(index)).samples[0])
        return made

    def _kept_call(self, index: int) -> tuple[Part, bool]:
        """Makes a sample of an item; whether it may be kept.

        Raises:
            SampleError: no column can hold it.
        """
        part = self._call(index, self.originals.compared(index))
        if part.unobserved or self.originals.changed(index):
            return part, False
        if (refusal := part.looked_at().refusal) is not None:
            raise SampleError(f"{self.originals.name(index)}: {refusal.message}", **refusal.data)
        return part, True

    def _call(self, index: int, item: Any) -> Part:
        """Makes a sample of an item; says what is to be said of that."""
        (part,) = self.by.job.parts(index, item)
        self.by.steady.settle()
        if part.error is not None:
            self._fail(part)
        if isinstance(self.by.job.function, Wrapped):
            self._refuse_draws(self._drawn_so_far())
        self.tally.note_made(index, part.cost_s)
        self._say_notices(part.notices)
        if part.unobserved:
            self._say_unobserved(index, part.unobserved)
        elif changed := self.originals.changed(index):
            self._say_changed({index: changed})
        return part

    def _fail(self, part: Part) -> None:
        error, originals = part.error, self.originals
        raise PreprocessError(
            f"preprocessing {originals.name(part.index)} failed: {type(error).__qualname__}: {error}",
            index=originals.position(part.index),
            item=repr(originals.item(part.index))[:SHOWN],
        ) from error

    @property
    def _is_keeping(self) -> bool:
        """Whether samples made on access are kept, and looked for at other jobs."""
        return self._keeps or self.by.artifacts.has_lost

    def _wanted(self) -> OnAccess | None:
        """Who makes and keeps samples on access; None if nobody wants them."""
        if not self._is_keeping or not self.by.artifacts.mode.is_writing:
            return None
        here = self.present or self.by.begin_keeping(self._making)
        return here if here is not None and here.wants_more else None

    @property
    def present(self) -> OnAccess | None:
        """What this process makes on access, if it makes any."""
        here = self.on_access
        return here if here is not None and here.pid == os.getpid() else None

    def _making(self) -> OnAccess:
        here = self.present
        if here is None:
            here = self.on_access = OnAccess(
                self.by.artifacts, self._task(self.catalogue.missing), self._observed
            )
        return here

    def _observed(self) -> list[dict[str, Any]]:
        """What the function was seen to read on access, and the generators that it drew from."""
        return with_draws(self.by.job.observed(), self._drawn_so_far())

    def _drawn_so_far(self) -> set[str]:
        for watched in list(self._guards.values()):
            self._drawn |= watched.check()
        return self._drawn

    # -- what there is

    def are_there(self, positions: Array, *, not_within_s: float) -> Array:
        """Which of the samples at these positions are there; `bool[k]`.

        Args:
            not_within_s: the daemon is not asked again so soon.
        """
        if self.is_expanded:
            return np.ones(len(positions), np.bool_)
        self.look(not_within_s=not_within_s)
        there: Array = self.catalogue.places.artifact[self.catalogue.distinct.inverse[positions]] != MISSING
        return there

    def cached(self) -> int:
        """How many of the items are there; asks the daemon."""
        self.look()
        return int(
            np.count_nonzero(self.catalogue.places.artifact[self.catalogue.distinct.inverse] != MISSING)
        )

    def report(self) -> Report:
        """What is known here; asks nobody."""
        return self.tally.report(why_so(self.by.artifacts, self._stamps, self.tally))

    # -- to other processes

    def __getstate__(self) -> dict[str, Any]:
        is_whole = not len(self.catalogue.missing)
        by = self.by.sendable(is_whole=is_whole)
        if not is_whole:
            self.tally.note_copied()
        return {**self.__dict__, "by": by, "on_access": None, "_view": None, "_guards": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # What was lost on the way is made again: without it, positions would name other samples.
        if self.is_expanded and not len(self.catalogue.missing):
            self._view = View(self.catalogue)
