"""Making the missing samples of a data set: all of them together with other jobs, or one on access.

Invariants:
    1. What was made while something that counts in the recipe changed is given to the job, and not stored.
    2. An error in the function names the item; what was done before it stays done.
    3. The threads of a process have one of these, with one `OnAccess` and one `Committer`: of two, one would
       keep what it made.
    4. Where items expand, a preparation ends with a view of all samples, or raises.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.artifact import Writer
from prepcache.artifact.sample_tree import copied
from prepcache.digests import DIGEST_BYTES, RecipeDigest
from prepcache.errors import PrepcacheError, PreprocessError, SampleError, VerifyError
from prepcache.fill.call import Job, Part
from prepcache.fill.commit import Committer, behind_text
from prepcache.fill.filler import Fill, Filled
from prepcache.fill.input_guard import SHOWN, Originals
from prepcache.fill.on_access import OnAccess
from prepcache.fill.pending import Task
from prepcache.fill.recipe_guard import line
from prepcache.fill.workers import workers_of
from prepcache.index.item_index import MISSING, Array, Catalogue, View
from prepcache.keys.randomness import Guard, describe
from prepcache.protocol.units import count_text
from prepcache.report import WITHOUT, ended_early, left_text, unobserved_text
from prepcache.wrapped import Wrapped

if TYPE_CHECKING:
    from prepcache.keys.observation.context import Notice
    from prepcache.protocol.wire import ArtifactRef
    from prepcache.report import Tally
    from prepcache.samples import Preprocessing

MAX_FILLS = 3
"""How often what is missing of a data set that expands is made, before it is said that nothing keeps it."""
CHANGED_SAID = 3
"""Items that changed during a fill and are named, each on a line."""
LOOK_AGAIN_S = 5.0
"""How often a lazy data set that misses asks what others have committed meanwhile."""


class Making:
    """Makes what is missing of some samples, for one process."""

    def __init__(self, by: Preprocessing, catalogue: Catalogue, originals: Originals, tally: Tally) -> None:
        self._by = by
        self._catalogue = catalogue
        self._originals = originals
        self._tally = tally
        self.pid = os.getpid()
        self._task = Task(self._by, self._catalogue, self._originals)
        self.committer = Committer(self._task, tally.note_full)
        self.on_access = OnAccess(self._task, self.committer)

    # -- all that is missing

    def prepare(self, positions: range | None) -> View | None:
        """Fills up what is missing, or only what is at these positions; where items expand, a view of all."""
        self.on_access.run()  # into files of this job, where the fill finds it
        with self._filling():
            missing = self._catalogue.missing
            if positions is not None:
                wanted = self._catalogue.distinct.inverse[positions.start :: positions.step]
                missing = np.intersect1d(missing, wanted)
            if len(missing):
                if not self._by.may_fill:
                    return None
                self._fill(missing)
            if not self._by.job.is_expanded or positions is not None:
                return None
            view, count = self._whole_view(), len(self._catalogue.distinct.inverse)
            if count and not len(view) and not self._by.is_stream:
                which = count_text(count, "item", "items")
                text = f"{self._by.name} yielded no sample for any of {which}: is a yield missing?"
                self._by.say(text, is_wrong=True)
            return view

    @contextmanager
    def _filling(self) -> Iterator[None]:
        by = self._by
        if by.is_in_executor:
            raise RuntimeError(
                f"{by.name}: this thread belongs to executor=, which preprocesses the items: it would wait "
                "for itself forever. Prepare the data set in another thread, or pass another executor"
            )
        with by.artifacts.filling:
            yield

    def _whole_view(self) -> View:
        """A view of all samples; an artifact that was purged since the fill is made again."""
        for _ in range(MAX_FILLS):
            view = View(self._catalogue)
            if view.is_whole:
                return view
            self._fill(self._catalogue.missing)
        where = f"the samples fit neither into the cache nor into {tempfile.gettempdir()} or /var/tmp"
        raise OSError(errno.ENOSPC, f"{self._by.name}: {where}: free some space, or set TMPDIR")

    def _fill(self, todo: Array) -> None:
        by, artifacts = self._by, self._by.artifacts
        total, said = len(self._catalogue.distinct), artifacts.reason
        progress = by.watcher(total, total - len(todo))
        try:
            self._originals.compare(todo)
            self._try_one(int(todo[0]))
            workers = workers_of(by.executor_here(), by.num_workers, by.job, self._originals.item)
            fill = Fill(self._task, workers, progress, self.committer, todo)
            with by.job.guard.filling():
                filled = fill.run()
        except (KeyboardInterrupt, PreprocessError, SampleError) as error:
            progress.close()
            by.say_of_it(ended_early(error, self._catalogue.kept, total), is_wrong=True)
            raise
        finally:
            progress.close()
        artifacts.note_filled(filled.reason, is_declined=filled.is_declined)
        artifacts.session.heartbeat.note_found(*self._tally.note_fill(filled, todo))
        by.keeps = by.is_lazy or bool(filled.reason and not filled.is_declined)
        self._say_filled(filled, said)
        by.refuse_draws(filled.drawn)

    def _try_one(self, index: int) -> None:
        """Makes a sample of a wrapped dataset before any is stored: one that draws is refused."""
        job = self._by.job
        if isinstance(job.function, Wrapped) and not self._by.artifacts.has_mapped:
            with Guard(job.guard.drawn) as watched:
                next(iter(job.parts(index, self._originals.item(index))), None)
            self._by.refuse_draws(watched.drawn)

    def verify(self, fraction: float) -> None:
        verify(self._by.job, self._catalogue, self._originals, fraction, self._remove)

    def _remove(self, ref: ArtifactRef, what: str) -> str:
        """Asks the daemon to remove an artifact; what became of it, for the message."""
        artifacts = self._by.artifacts
        if not artifacts.mode.is_writing:
            return ""
        try:
            artifacts.client.verify([ref.key], differs=what)
        except PrepcacheError as error:
            return f". Entry {ref.key[:12]} could not be removed: {error.message}"
        return f". Entry {ref.key[:12]} was removed"

    # -- some, on access

    def samples(self, indices: Sequence[int], *, is_single: bool = False) -> dict[int, Any]:
        """The samples of distinct items that are missing. `is_single`: the job asks for them one by one."""
        by, here, is_writing = self._by, self.on_access, self._by.artifacts.mode.is_writing
        by.job.refuse_itself()
        drifted = is_writing and by.job.guard.check_first()
        if drifted and by.job.guard.is_news():
            by.say_of_it(line(drifted), "drifted")
        is_keeping = by.keeps or by.artifacts.has_lost
        with by.job.filling(), here.guarded() as watched:
            if is_keeping and is_writing and not drifted and here.wants_more:
                made = here.samples(indices, self._kept_call, is_single=is_single)
            else:
                if is_keeping:
                    by.artifacts.look(not_within_s=LOOK_AGAIN_S)
                made = {index: self._made(index) for index in indices}
        if watched.drawn:
            by.say(describe(by.name, watched.drawn), "drawn")
        return made

    def _made(self, index: int) -> Any:
        slot, row = self._catalogue.slot_of(index)
        if slot is not None:
            return slot.artifact.sample(row)
        part, _ = self._call(index, self._originals.item(index))
        return copied(part.samples[0])  # the next call may give the same memory

    def _kept_call(self, index: int) -> tuple[Part, bool]:
        """Makes a sample of an item; whether it may be kept."""
        part, has_changed = self._call(index, self._originals.compared(index))
        if part.unobserved or has_changed:
            return part, False
        if (refusal := part.looked_at().refusal) is not None:
            raise self._task.refusal(index, refusal)
        return part, True

    def _call(self, index: int, item: Any) -> tuple[Part, bool]:
        """Makes one sample, and logs notices: the part, and whether the item changed meanwhile."""
        (part,) = self._by.job.parts(index, item)
        self._by.job.guard.note_call()
        if part.error is not None:
            raise self._task.failure(part)
        if isinstance(self._by.job.function, Wrapped):
            self._by.refuse_draws(self.on_access.drawn())
        self._tally.note_made(index, part.cost_s)
        self._say_notices(part.notices)
        changed = self._originals.changed(index)
        if part.unobserved:
            self._say_unobserved(index, part.unobserved)
        elif changed:
            self._say_changed({index: changed})
        return part, bool(changed)

    # -- what is said

    def _say_filled(self, filled: Filled, said: str) -> None:
        """Says what there is to say of a fill. `said`: the daemon's trouble before it, which was said."""
        by, artifacts = self._by, self._by.artifacts
        self._say_changed(filled.changed)
        self._say_notices(filled.notices)
        if filled.unobserved:
            self._say_unobserved(*next(iter(filled.unobserved.items())))
        if filled.late:
            by.say_of_it(behind_text(filled.late), "slow")
        if filled.nothing:
            item = self._originals.item(filled.nothing[0])
            by.say(f"{by.name} returned None for {item!r:.200}: is a return missing?", "nothing")
        if filled.drawn:
            by.say(describe(by.name, filled.drawn), "drawn")
        if filled.reason and filled.reason != said and artifacts.mode.is_writing:
            why = WITHOUT if filled.reason == artifacts.client.budget.warned else filled.reason
            by.say_of_it(f"{left_text(self._catalogue, is_part=by.is_stream)}: {why}", "left")

    def _say_changed(self, changed: dict[int, list[str]]) -> None:
        """Of items that were made at once: the first by name, as a folder may be written to meanwhile."""
        news = [names for index, names in changed.items() if self._tally.note_changed(index, names)]
        told = [", ".join(names[:3]) for names in news[:CHANGED_SAID]]
        if len(news) > len(told):
            told.append(f"{len(news) - len(told):,} more items")
        for what in told:
            self._by.say_of_it(f"{what} changed since the data set was opened: not stored", is_wrong=True)

    def _say_notices(self, notices: Iterable[Notice]) -> None:
        for topic, text in notices:
            self._by.say_of_it(text, topic)

    def _say_unobserved(self, index: int, why: str) -> None:
        """Of one such item: what it reads, the others mostly read, too."""
        self._by.say_of_it(unobserved_text(self._originals.name(index), why), "unobserved")


def verify(
    job: Job,
    catalogue: Catalogue,
    originals: Originals,
    fraction: float,
    remove: Callable[[ArtifactRef, str], str],
) -> int:
    """Preprocesses a share of the items that are there, and compares; how many.

    Args:
        remove: removes the artifact that an item differs from; says what became of it.

    Raises:
        VerifyError: one has other bytes than the stored ones.
        PreprocessError: the function raised.
    """
    there = np.flatnonzero(catalogue.places.artifact != MISSING)
    compared = 0
    with Guard():
        for index in there[np.random.default_rng().random(len(there)) < fraction].tolist():
            slot, first = catalogue.slot_of(index)
            if slot is None:  # it was purged
                continue
            name = originals.name(index, SHOWN)
            try:
                again = job.call(index, originals.item(index))
            except Exception as error:
                raise PreprocessError(f"preprocessing {name} again failed: {error}") from error
            counts = catalogue.places.count
            rows = range(first, first + (1 if counts is None else int(counts[index])))
            if _digest([slot.artifact.sample(row) for row in rows]) != _digest(again):
                fate = "" if slot.ref is None else remove(slot.ref, f"{name} differs")
                raise VerifyError(
                    f"{name}, preprocessed again, differs from the cached sample: the function depends on "
                    "something that is not in its key (time, network, a file read by a C library, what "
                    "untracked= names): put it in config, or change version=. Or it draws random numbers: "
                    f"move these to transform={fate}",
                    index=originals.position(index),
                )
            compared += 1
    return compared


def _digest(samples: list[Any]) -> bytes:
    """Of an artifact with these samples: equal to the bit, NaN and -0.0 included."""
    writer = Writer(RecipeDigest("0" * 64))
    writer.add(bytes(DIGEST_BYTES), samples, 0.0)
    with open(os.memfd_create("prepcache-verify"), "r+b") as file:
        writer.write(file.fileno(), producer={})
        file.seek(0)
        return hashlib.file_digest(file, "blake2b").digest()
