"""CachedDataset: a map-style data set whose samples are preprocessed once, by one of the jobs that want them.

    ds = prepcache.CachedDataset(files, decode, config={"size": 224}, root=folder)
    loader = torch.utils.data.DataLoader(ds, batch_size=256, shuffle=True)

Invariants:
    1. `ds[i]` equals `preprocess(items[i], **config)` as of the opening, wherever it comes from; the
       daemon's trouble is never an exception here.
    2. What is returned is the caller's: writes into it never reach the cache.
    3. Maps, sessions and what is being collected belong to one process. A fork shares the maps; a pickled
       data set maps the files anew where it arrives.
    4. `len` of a data set whose items expand does not change between two calls of `prepare()`.

Not here: what is there and how it is filled (artifact_set.py), what is kept on access (on_access.py),
which items were altered (input_guard.py).
"""

from __future__ import annotations

import errno
import functools
import operator
import os
import random
import reprlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

import numpy as np

from prepcache.batching import by_index
from prepcache.batching.batch import Batch
from prepcache.daemon.client import Client
from prepcache.dataset_key import key_of, opening
from prepcache.dataset_options import Options, check, check_call, sequence_of, taken_from
from prepcache.errors import PreprocessError, SampleError, UnkeyableError
from prepcache.fill.backlog import behind_text
from prepcache.fill.call import Job, Part, copied
from prepcache.fill.collect import Task
from prepcache.fill.input_guard import SHOWN, UNSTEADY, Originals
from prepcache.fill.on_access import Keeper, made_by
from prepcache.fill.recipe_guard import Steady, line
from prepcache.fill.verify import put_away, verify
from prepcache.fill.workers import Crew, crew_of
from prepcache.index.artifact_set import Supply
from prepcache.index.in_order import given
from prepcache.index.item_index import MISSING, Array, Distinct
from prepcache.index.snapshot import View
from prepcache.keys import recipes
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.keys.items import ItemHasher
from prepcache.keys.observation.context import Notice
from prepcache.keys.observation.observer import Observer
from prepcache.keys.randomness import describe, guard
from prepcache.keys.recipes import Recipe
from prepcache.opening_mode import opening_mode
from prepcache.pickling import state_of
from prepcache.progress import Progress, say
from prepcache.protocol.explain import shortened
from prepcache.protocol.observed import draws_text, with_draws
from prepcache.protocol.units import count_text
from prepcache.reasons import (
    WITHOUT,
    barred_line,
    ended_early,
    left_text,
    opening_line,
    unobserved_text,
    why_missing,
    why_so,
)
from prepcache.report import Report, Tally
from prepcache.torch_types import Dataset, T_co

if TYPE_CHECKING:
    from torch.utils.data import ConcatDataset

    from prepcache.keys.files.digest import Trust
    from prepcache.keys.paths import Read

R = TypeVar("R")
S = TypeVar("S")
"""What a function returns; what a sample is after a transform."""

MAX_FILLS = 3
"""How often what is missing of a data set that expands is made, before it is said that nothing keeps it."""
CHANGED_SAID = 3
"""Items that changed during a fill and are named, each on a line."""
LOOK_AGAIN_S = 5.0
"""How often a lazy data set that misses asks what others have committed meanwhile."""


class CachedDataset(Dataset[T_co]):
    """A data set whose samples are kept by the daemon.

    Args:
        items: paths, values, or tuples and dicts of those; what is preprocessed.
        preprocess: `(item, **config) -> sample`; with `expand=True` an iterable of samples. Or a `Recipe`,
            which has the function and its options.
        config: keyword arguments of `preprocess`; part of the key.
        transform: `sample -> sample`, on every access, never cached: random augmentation belongs here.
        name: a label for people, not in the key; the function's name by default.
        code: what of the code is in the key: "script", "function", a list of files, or None.
        version: joins the key.
        untracked: names of globals and closure variables that do not count.
        environment: distributions that count, instead of those that the code imports.
        read: what the function receives for a path: "path", "bytes" or "text".
        root: paths under it count by their name relative to it.
        expand: one item gives any number of samples.
        trust: "content" reads every file at every opening.
        lazy: prepare nothing ahead; keep what is touched.
        verify_fraction: share of the hits that is preprocessed again and compared.
        num_workers: processes that preprocess; `executor`: or any `concurrent.futures.Executor`.
        progress: False shows nothing, True a bar even in a log, None decides.
        client: the daemon to use.

    Raises:
        UnkeyableError: an item, the function or its config has no stable bytes.
        PreprocessError: the function raised; SampleError: it returned what no column can hold.
        VerifyError: a hit, made again, had other bytes.
        ValueError, TypeError: an option takes no such value, or excludes another.
        ConfigError: `PREPCACHE*` variables that cannot work.
    """

    _is_part = False
    _follows_mode = True
    """Whether `prepcache fill` and `prepcache plan` may open a part of it, or leave it unprepared."""

    @overload
    def __init__(
        self: CachedDataset[S],
        items: Iterable[Any],
        preprocess: Callable[..., S],
        config: Mapping[str, Any] | None = None,
        transform: None = None,
        *,
        expand: Literal[False] = False,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: CachedDataset[S],
        items: Iterable[Any],
        preprocess: Callable[..., R],
        config: Mapping[str, Any] | None = None,
        transform: Callable[[R], S] = ...,
        *,
        expand: Literal[False] = False,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: CachedDataset[S],
        items: Iterable[Any],
        preprocess: Callable[..., Iterable[S]],
        config: Mapping[str, Any] | None = None,
        transform: None = None,
        *,
        expand: Literal[True],
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: CachedDataset[S],
        items: Iterable[Any],
        preprocess: Callable[..., Iterable[R]],
        config: Mapping[str, Any] | None = None,
        transform: Callable[[R], S] = ...,
        *,
        expand: Literal[True],
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self,
        items: Iterable[Any],
        preprocess: Recipe,
        config: None = None,
        transform: Callable[[Any], T_co] | None = None,
        *,
        expand: Literal[False] = False,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self,
        items: Iterable[Any],
        preprocess: Callable[..., Any],
        config: Mapping[str, Any] | None = None,
        transform: Callable[[Any], T_co] | None = None,
        *,
        expand: bool = False,
        **options: Unpack[Options],
    ) -> None: ...

    def __init__(
        self,
        items: Iterable[Any],
        preprocess: Callable[..., Any] | Recipe,
        config: Mapping[str, Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        name: str | None = None,
        code: recipes.Code = "script",
        version: str | int | None = None,
        untracked: Sequence[str] = (),
        environment: Sequence[str] | None = None,
        read: Read = "path",
        root: str | os.PathLike[str] | None = None,
        expand: bool = False,
        trust: Trust = "stat",
        lazy: bool = False,
        verify_fraction: float = 0.0,
        num_workers: int = 0,
        executor: Executor | None = None,
        progress: bool | None = None,
        client: Client | None = None,
    ) -> None:
        function, how = taken_from(
            preprocess,
            {
                "config": config, "code": code, "version": version, "expand": expand, "untracked": untracked,
                "environment": environment, "read": read, "name": name, "trust": trust,
            },
        )  # fmt: skip
        config, code, read, trust = how["config"], how["code"], how["read"], how["trust"]
        check(verify_fraction, num_workers, executor, transform, lazy=lazy, expand=how["expand"])
        mode = opening_mode() if self._follows_mode else None
        self.items = sequence_of(items)
        if mode is not None:
            if mode.shards > 1:  # not by a slice: some sequences take ints only
                self.items = [self.items[i] for i in range(mode.shard, len(self.items), mode.shards)]
            mode.opened.append(self)
        self.transform = transform
        self.lazy = lazy
        self._is_expanded = how["expand"]
        self._num_workers = num_workers
        self._executor = executor
        self._progress = progress
        self._keeper: Keeper | None = None
        self._keeps = self.lazy  # samples made on access
        self._view: View | None = None
        client = client or Client()
        client.begin()
        if barred := barred_line(client):
            self._say(barred)
        memo = user_stat_cache()
        with opening(function) as notes:
            self._recipe = recipes.recipe(function, **how)
        check_call(function, config)
        hasher = ItemHasher(root, read, trust, memo)
        digests, self._stamps = hasher.digest_many(self.items)
        self._recipe = recipes.with_classes(self._recipe, hasher.classes)
        distinct = Distinct(digests)
        self._count = len(digests)
        self._originals = Originals(self.items, distinct, self._stamps)
        self._originals.read_again(hasher)
        self._supply = self._supply_of(distinct, client, root, trust)
        self._steady = Steady(self._recipe)
        observer = None if code is None else Observer(self._recipe, root=root, memo=memo, trust=trust)
        self._job = Job(
            function, self._recipe.config, self._is_expanded, read, observer, of=secrets.token_hex(8)
        )
        self._drawn: set[str] = set()
        self._supply.open()
        if waiting := self._supply.take_waiting():
            self._own_keeper().adopt(waiting)
        self._tally = Tally(distinct, self._supply.catalogue)
        self._supply.found(*self._tally.note_hits())
        self._say(self._opening_line(root))
        self._say_drawn_before()
        for note in (*self._recipe.notes, *notes):
            self._say(f"{self.name}: {note}")
        if verify_fraction:
            verify(
                self._job, self._supply.catalogue, self._originals, verify_fraction, random.Random(),
                functools.partial(put_away, self._supply),
            )  # fmt: skip
        if not self.lazy and (mode is None or mode.prepares):
            self._prepare_briefly()
        self._originals.end_opening()
        by_index.register(self)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # torch asks for batches first: a subclass that has a `__getitem__` of its own makes them by it.
        place = {name: place for place, base in reversed([*enumerate(cls.__mro__)]) for name in vars(base)}
        if place["__getitem__"] < place["__getitems__"]:
            cls.__getitems__ = _one_by_one  # type: ignore[method-assign]

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self._recipe.name

    @property
    def recipe(self) -> Recipe:
        """How the samples are made; `prepcache.recipe`."""
        return self._recipe

    @property
    def is_expanded(self) -> bool:
        """Whether an item gives any number of samples."""
        return bool(self._is_expanded)

    def __prepcache_key__(self) -> Any:
        """How it counts where a function holds it."""
        return key_of(self)

    def __repr__(self) -> str:
        return f"<CachedDataset {self.name} items={self._count} recipe={self._recipe.digest[:12]}>"

    def _supply_of(self, distinct: Distinct, client: Client, root: Any, trust: Any) -> Supply:
        return Supply(self._recipe, distinct, client, is_expanded=self._is_expanded, root=root, trust=trust)

    def _say(self, line: str, topic: str = "") -> None:
        say(line, self._progress)

    # -- filling

    def prepare(self) -> None:
        """Preprocesses what is missing, together with all other jobs that want it.

        Raises:
            PreprocessError, SampleError: what was done stays done; the message names the item.
            UnkeyableError: a global or the config was changed since the opening; the message names it.
        """
        if len(self._supply.catalogue.missing) and (changed := self._steady.changed(is_due=True)):
            raise UnkeyableError(f"{self.name}: {line(changed)}", names=changed)
        self._prepare_briefly()

    def _prepare_briefly(self) -> None:
        """Prepares; an error or Ctrl-C shows the line of the job's that asked for it, and no page of ours."""
        try:
            self._prepare()
        except (KeyboardInterrupt, PreprocessError, SampleError) as error:
            raise error.with_traceback(None) from error.__cause__

    def _prepare(self) -> None:
        self._job.refuse_itself()
        with self._supply.filling:
            catalogue = self._supply.catalogue
            if len(catalogue.missing) and not self._may_fill:
                return
            if len(catalogue.missing):
                self._fill(catalogue)
            if self._is_expanded:
                self._view = self._whole_view(catalogue)
                if self._count and not len(self._view) and not self._is_part:
                    which = count_text(self._count, "item", "items")
                    self._say(f"{self.name} yielded no sample for any of {which}: is a yield missing?")

    def _whole_view(self, catalogue: Any) -> View:
        """A view of all samples; an artifact that was purged since the fill is made again.

        Raises:
            OSError: neither the cache nor the temporary folder takes them.
        """
        for _ in range(MAX_FILLS):
            view = View(catalogue)
            if view.is_whole:
                return view
            self._fill(catalogue)
        where = f"neither the cache nor {tempfile.gettempdir()} or /var/tmp takes the samples"
        raise OSError(errno.ENOSPC, f"{self.name}: {where}: free space there, or set TMPDIR")

    @property
    def _may_fill(self) -> bool:
        """Whether filling is of use: where nothing can be kept, each sample is made when it is asked for."""
        return self._is_expanded or self._supply.mode.is_writing

    def _fill(self, catalogue: Any) -> None:
        total = len(catalogue.distinct)
        said = self._supply.reason
        progress = self._watcher(total, total - len(catalogue.missing))
        try:
            self._originals.compare(catalogue.missing)
            filled = self._supply.fill(self._crew(), progress, self._task(), lambda: self._own_keeper().adopt)
        except (KeyboardInterrupt, PreprocessError, SampleError) as error:
            progress.close()
            ended = ended_early(error, catalogue.kept, total, is_part=self._is_part)
            self._say(f"{self.name}: {ended}")
            raise
        finally:
            progress.close()
        self._steady.filled()
        self._supply.found(*self._tally.note_fill(filled))
        self._keeps = self.lazy or filled.is_cut_off or bool(filled.reason and not filled.is_declined)
        if filled.aside and self._supply.mode.is_writing:
            self._own_keeper().adopt(filled.aside)
        self._say_changed(filled.changed)
        self._say_notices(filled.notices)
        if filled.unobserved:
            self._say_unobserved(*next(iter(filled.unobserved.items())))
        if filled.left:
            self._say(f"{self.name}: {behind_text(len(filled.left))}", "slow")
        if filled.nothing:
            item = self._originals.item(filled.nothing[0])
            self._say(f"{self.name} gave None for {item!r:.200}: is a return missing?", "nothing")
        if filled.drawn:
            self._say(describe(self.name, filled.drawn), "drawn")
        if filled.reason and filled.reason != said and self._supply.mode.is_writing:
            self._say_left(len(catalogue.missing), filled.reason)

    def _say_left(self, left: int, reason: str) -> None:
        """The fill ended early."""
        why = WITHOUT if reason == self._supply.client.budget.warned else reason
        self._say(f"{self.name}: {left_text(left, is_part=self._is_part)}: {why}", "left")

    def _watcher(self, total: int, there: int) -> Progress:
        return Progress(self.name, total, there, self._progress, self._tell)

    def _task(self) -> Task:
        return self._supply.task(self._originals, self._steady, made_by())

    def _tell(self, done: int, total: int) -> None:
        if self._supply.mode.is_writing:
            self._supply.session.progress(self._recipe, done, total)

    def _crew(self) -> Crew:
        return crew_of(self._executor, self._num_workers, self._job, self._originals.item, self._steady)

    def _say_changed(self, changed: dict[int, list[str]]) -> None:
        """Of items that were made at once: the first by name, as a folder may be written to meanwhile."""
        news = [names for index, names in changed.items() if self._tally.note_changed(index, names)]
        told = [", ".join(names[:3]) for names in news[:CHANGED_SAID]]
        if len(news) > len(told):
            told.append(f"{len(news) - len(told):,} more items")
        for what in told:
            self._say(f"{self.name}: {what} changed since the data set was opened: not stored")

    def _say_drawn_before(self) -> None:
        """Said by each job that is given such samples: whoever made them may have been another."""
        if self._supply.drawn and self._tally.note_drawn():
            said = draws_text(self._supply.drawn)
            self._tally.why.append(said)
            self._say(f"{self.name}: {said}", "drawn")

    def _say_notices(self, notices: Iterable[Notice]) -> None:
        """Each topic once, whichever processes came upon it."""
        for topic, text in notices:
            if self._tally.note_once(topic):
                self._say(f"{self.name}: {text}", topic)

    def _say_unobserved(self, index: int, why: str) -> None:
        """Once, whatever the number of such items: what one of them reads, the others mostly read, too."""
        if self._tally.note_once("unobserved"):
            self._say(f"{self.name}: {unobserved_text(self._originals.name(index), why)}")

    # -- reading

    def __len__(self) -> int:
        if not self._is_expanded:
            return self._count
        return len(self._expanded_view())

    def __getitem__(self, index: int) -> T_co:
        try:
            at = operator.index(index)
        except TypeError:
            raise TypeError(
                f"a data set gives one sample, by its position, not by {shortened(reprlib.repr(index), 40)}: "
                "for several ask a DataLoader, or take a torch.utils.data.Subset"
            ) from None
        count = len(self) if self._is_expanded else self._count
        if not -count <= at < count:
            raise IndexError(f"index {at} is out of range for a data set of {count} samples")
        sample = self._sample(at + count if at < 0 else at)
        return sample if self.transform is None else self.transform(sample)  # type: ignore[no-any-return]

    def __getitems__(self, indices: Any) -> list[T_co]:
        """The samples at these positions: gathered at once where they are there."""
        batch = self._batch(indices)
        if self.transform is not None:
            return [self.transform(sample) for sample in batch]
        if isinstance(batch, Batch):
            batch.source = self
        return batch

    def __add__(self, other: Any) -> ConcatDataset[Any]:
        """Both, end to end; batches of it are gathered whole, as torch's `ConcatDataset` does not."""
        from prepcache.concatenation import Concatenation

        return Concatenation([self, other])

    def __iter__(self) -> Iterator[T_co]:
        for index in range(len(self)):
            yield self[index]

    def _sample(self, position: int) -> Any:
        self._supply.touch()
        if self._is_expanded:
            return self._expanded_view().sample(position)
        index = int(self._supply.catalogue.distinct.inverse[position])
        held, row = self._place_of(index)
        return self._make(index) if held is None else held.artifact.sample(row)

    def _place_of(self, index: int) -> tuple[Any, int]:
        """The slot and row of a distinct item, or no slot if it is missing."""
        catalogue = self._supply.catalogue
        while True:
            places = catalogue.places
            held = None if (slot := int(places.artifact[index])) == MISSING else catalogue.slots[slot]
            if slot == MISSING or held is not None:  # else it was let go this moment: look again
                return held, int(places.row[index])

    def _batch(self, indices: Any) -> list[Any]:
        self._supply.touch()
        view = self._expanded_view() if self._is_expanded else self._current_view()
        return view.take(indices, self._sample)

    def whole_view(self) -> View | None:
        """All samples as rows to be gathered; None where some are missing, or not given as they are kept."""
        if self.transform is not None or type(self).__getitems__ is not CachedDataset.__getitems__:
            return None
        self._supply.touch()
        view = self._expanded_view() if self._is_expanded else self._current_view()
        return view if view.is_whole else None

    # -- batches that DataLoader workers name by their positions: see by_index.py

    @property
    def token(self) -> str:
        """Alike in all copies of this data set."""
        return self._job.of

    @property
    def opened_in(self) -> int:
        """The process that opened it."""
        return self._supply.owner

    def is_known_to_parent(self) -> bool:
        """Whether the process that started this one has, or finds, all samples that are here."""
        return bool(self._supply.catalogue.is_known_to_parent)

    def gathered(self, positions: Array) -> list[Any]:
        """The samples at these positions, without the transform."""
        if not self._is_expanded and not self._supply.catalogue.holds(positions):
            self._supply.look()  # a worker found them there, or made them
        return self._batch(positions)

    def samples_of(self, items: Any) -> Iterator[Any]:
        """The samples of the items at these positions, one after the other, without the transform."""
        self._supply.touch()
        view_now = self._expanded_view if self._is_expanded else self._current_view
        return given(np.asarray(items, "i8"), view_now, self._sample)

    def _current_view(self) -> View:
        view = self._view
        if view is None or view.version != self._supply.catalogue.version:
            view = self._view = View(self._supply.catalogue)
        return view

    def _expanded_view(self) -> View:
        """The view of the last preparation: the length must not change under its reader."""
        if self._view is None:
            self.prepare()
        assert self._view is not None
        return self._view

    def _make(self, index: int) -> Any:
        """Preprocesses one item on access."""
        self._job.refuse_itself(index)
        if self._is_keeping and self._supply.look(not_within_s=LOOK_AGAIN_S):
            held, row = self._place_of(index)
            if held is not None:
                return held.artifact.sample(row)
        drifted = self._steady.changed(is_due=not self._steady.is_settled)
        if drifted and self._steady.is_news():
            self._say(f"{self.name}: {line(drifted)}", "drifted")
        here = self._present_keeper
        if here is not None and not drifted and here.bring(index):
            held, row = self._place_of(index)
            if held is not None:
                return held.artifact.sample(row)
        keeper = None if drifted else self._wanting_keeper()
        item = self._originals.item(index) if keeper is None else self._originals.compared(index)
        with guard(self._job.function, self._job.probe) as watched:
            (part,) = self._job.parts(index, item)
        self._steady.settle()
        if part.error is not None:
            self._fail(part)
        self._drawn |= watched.drawn
        if watched.drawn and self._tally.note_drawn():
            self._say(describe(self.name, watched.drawn), "drawn")
        self._tally.note_made(index, part.cost_s)
        changed = self._originals.changed(index)
        self._say_notices(part.notices)
        if part.unobserved:
            self._say_unobserved(index, part.unobserved)
        elif changed:
            self._say_changed({index: changed})
        elif keeper is not None:
            self._keep(keeper, part)
        return copied(part.samples[0])  # the next call may give the same memory

    def _fail(self, part: Part) -> None:
        error = part.error
        raise PreprocessError(
            f"preprocessing {self._originals.name(part.index)} failed: {type(error).__qualname__}: {error}",
            index=self._originals.position(part.index),
            item=repr(self._originals.item(part.index))[:SHOWN],
        ) from error

    @property
    def _is_keeping(self) -> bool:
        """Whether samples made on access are kept, and looked for at other jobs."""
        return self._keeps or self._supply.has_lost

    def _wanting_keeper(self) -> Keeper | None:
        """Who keeps samples that are made on access; None if nobody wants them."""
        if not self._is_keeping or not self._supply.mode.is_writing:
            return None
        keeper = self._own_keeper()
        return keeper if keeper.wants_more else None

    @property
    def _present_keeper(self) -> Keeper | None:
        """That of this process, if it has one."""
        keeper = self._keeper
        return keeper if keeper is not None and keeper.pid == os.getpid() else None

    def _own_keeper(self) -> Keeper:
        keeper = self._present_keeper
        if keeper is None:
            keeper = self._keeper = Keeper(self._supply, self._task(), self._observed)
        return keeper

    def _observed(self) -> list[dict[str, Any]]:
        """What the function was seen to read on access, and the generators that it drew from."""
        return with_draws(self._job.observed(), self._drawn)

    def _keep(self, keeper: Keeper, part: Part) -> None:
        try:
            keeper.add(part)
        except SampleError as error:
            raise SampleError(f"{self._originals.name(part.index)}: {error.message}", **error.data) from None

    # -- what there is

    def cached(self) -> int:
        """How many of the items are there; asks the daemon, preprocesses nothing."""
        self._supply.look()
        catalogue = self._supply.catalogue
        return int(np.count_nonzero(catalogue.places.artifact[catalogue.distinct.inverse] != MISSING))

    def report(self) -> Report:
        """What was there, what was preprocessed, and what that cost.

        Where DataLoader workers made samples, the daemon is asked what they have committed.
        """
        if self._tally.count_not_kept():
            self._supply.look()
        return self.counted()

    def counted(self) -> Report:
        """The same of what is known here; asks nobody."""
        return self._tally.report(why_so(self._supply, self._stamps, self._tally))

    def _opening_line(self, root: str | os.PathLike[str] | None) -> str:
        reasons = why_missing(self._supply, self.items, root)
        if self._originals.is_unsteady and len(self._supply.catalogue.missing):
            reasons = [UNSTEADY]
        self._tally.why.extend(reasons)
        if reasons == [self._supply.client.budget.warned]:
            reasons = [WITHOUT]  # why, the warning has just said
        to_do, told = len(self._supply.catalogue.missing), self._tally.report(())
        return opening_line(self.name, self._recipe.digest, told, to_do, reasons, self._supply.mode)

    # -- to other processes

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _keeper=None, _executor=None, _view=None)
        # What was lost on the way is made again: without it, positions would name other samples.
        if self._is_expanded and not len(self._supply.catalogue.missing):
            self._view = View(self._supply.catalogue)
        by_index.register(self)


def _one_by_one(self: CachedDataset[Any], indices: Iterable[Any]) -> list[Any]:
    return [self[operator.index(index)] for index in indices]
