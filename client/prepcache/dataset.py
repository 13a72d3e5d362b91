"""CachedDataset: a map-style data set whose samples are preprocessed once, by one of the jobs that want them.

NOTE [ The walk of a sample ]
    `open_recipe` gives the recipe and `ItemHasher` the item digests: together they name the samples.
    `ArtifactSet.look_from` asks the daemon for the recipe's artifacts, maps them and holds them; the
    `Catalogue` finds every digest in their item tables. `Samples.prepare` makes what is missing: the fill
    leases items, calls the function and commits artifacts, which go into the catalogue. `ds[i]` reads a row
    of a mapped artifact, and a batch is one gather for each column.

Invariants:
    1. `ds[i]` equals `preprocess(items[i], **config)` as of the opening, wherever it comes from; the
       daemon's trouble is never an exception here.
    2. What is returned is the caller's: writes into it never reach the cache.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, Unpack, overload

from prepcache.batching.collation import as_asked, get_worker_info, lend_to_job
from prepcache.dataset_options import (
    DatasetOptions,
    MapStyle,
    Options,
    Wrapped,
    check_keywords,
    opening_mode,
    refuse_unknown,
    sequence_of,
    wrapped,
)
from prepcache.errors import UnkeyableError
from prepcache.index.item_index import Array, Catalogue, Distinct
from prepcache.keys import recipes
from prepcache.keys.code.project import class_label
from prepcache.keys.files.stat_cache import user_stat_cache
from prepcache.keys.items import ItemHasher
from prepcache.samples import TOLD_BARE, Preprocessing, Samples

if TYPE_CHECKING:
    from torch.utils.data import Dataset as Dataset
    from torch.utils.data import IterableDataset as IterableDataset

    from prepcache.keys.recipes import Recipe
    from prepcache.report import Report

S = TypeVar("S")
"""What a function returns."""
T_co = TypeVar("T_co", covariant=True)
"""What a sample of a data set is."""
Items: TypeAlias = Iterable[Any] | Callable[[], Iterable[Any]]
"""A function of a stream only."""

if not TYPE_CHECKING:
    try:
        from torch.utils.data import Dataset, IterableDataset
    except ImportError:  # a job of numpy alone

        class Dataset(Generic[T_co]):
            """Stands for torch's."""

        IterableDataset = Dataset


_OWN_ATTRIBUTES = frozenset({"items", "transform", "_by", "_samples"})
"""Others are of a derived class, whose methods may use them."""
_NOT_OPEN = (
    "it is a data set that is not open yet, so its own preprocess cannot refer to it. Make "
    "preprocess a function, or a method of another object, and pass it what it needs in config="
)


class Opened(Generic[T_co]):
    """What data sets and streams have in common: how they are opened."""

    @overload
    def __init__(
        self,
        items: Items,
        preprocess: Callable[..., T_co],
        config: Mapping[str, Any] | None = None,
        transform: None = None,
        *,
        expand: Literal[False] = False,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self,
        items: Items,
        preprocess: Callable[..., Iterable[T_co]],
        config: Mapping[str, Any] | None = None,
        transform: None = None,
        *,
        expand: Literal[True],
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self,
        items: Items,
        preprocess: Callable[..., Any] | Recipe,
        config: Mapping[str, Any] | None = None,
        transform: Callable[[Any], T_co] | None = None,
        *,
        expand: bool = False,
        **options: Unpack[Options],
    ) -> None: ...

    def __init__(
        self,
        items: Items,
        preprocess: Callable[..., Any] | Recipe,
        config: Mapping[str, Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        expand: bool = False,
        **options: Unpack[Options],
    ) -> None:
        refuse_unknown(type(self).__name__, options)
        self.transform = transform
        self._by: Preprocessing
        given = DatasetOptions(preprocess, config=config, transform=transform, expand=expand, **options)
        try:
            self._begin(items, given)
            self._by.artifacts.look_from(0)  # here: a request is few frames deep
            self._go_on(given)
        except TOLD_BARE as error:
            raise error.with_traceback(None) from error.__cause__

    def _begin(self, items: Any, given: DatasetOptions) -> None:
        raise NotImplementedError

    def _go_on(self, given: DatasetOptions) -> None:
        raise NotImplementedError

    @property
    def recipe(self) -> Recipe:
        """How the samples are made; `prepcache.recipe`."""
        return self._by.recipe

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name


class CachedDataset(Opened[T_co], Dataset[T_co]):
    """A map-style data set whose samples are cached by the daemon.

    Args:
        items: what is preprocessed: paths, values, or tuples and dicts of those.
        preprocess: `(item, **config) -> sample`; with `expand=True` an iterable of samples. Or a `Recipe`,
            which has the function and its options.
        config: keyword arguments of `preprocess`; part of the key.
        transform: `sample -> sample`, on every access, never cached: random augmentation belongs here.
        name: a label for people, not in the key; the function's name by default.
        code: which code counts: "script", "function", a list of files, or None.
        version: a label of your own that is part of the key.
        untracked: names of globals and closure variables that do not count.
        environment: distributions that count, instead of those that the code imports.
        read: what the function receives for a path: "path", "bytes" or "text".
        root: paths under it count by their name relative to it.
        expand: the function yields any number of samples for one item.
        trust: "content" reads every file at every opening.
        lazy: preprocess samples when they are first accessed, instead of at the opening.
        verify_fraction: share of the hits that are recomputed and compared.
        num_workers: processes that preprocess; `executor`: or any `concurrent.futures.Executor`.
        progress: False shows nothing, True a bar even in a log, None decides.
        client: the daemon to use.

    Raises:
        UnkeyableError: an item, the function or its config has no stable bytes.
        PreprocessError: the function raised; SampleError: it returned a value that cannot be stored.
        VerifyError: a recomputed hit had different bytes.
        ValueError, TypeError: an option is invalid, or excludes another one.
        ConfigError: a `PREPCACHE*` variable is invalid.
    """

    _follows_mode = True
    """Whether `prepcache fill` and `prepcache plan` may open a part of it, or leave it unprepared."""

    def _begin(self, items: Any, given: DatasetOptions) -> None:
        self.items = sequence_of(items)
        mode = opening_mode() if self._follows_mode else None
        if mode is not None:
            mode.opened.append(self)
        recipe = open_recipe(given)
        hasher = ItemHasher(given.root, given.how["read"], given.how["trust"], user_stat_cache())
        stamps = hasher.digest_many(self.items)
        stamps.warn()
        distinct = Distinct(stamps.digests)
        by = Preprocessing(given, recipes.with_classes(recipe, hasher.classes))
        if mode is not None and not mode.prepares:  # a plan is no job: it holds nothing, and misses nothing
            by.artifacts.owner, by.progress = 0, False
        catalogue = Catalogue(distinct, by.artifacts, is_expanded=by.is_expanded)
        samples = self._samples = Samples(by, self.items, distinct, stamps, catalogue)
        self._by = by  # after `_samples`, which must be pickled first: that writes pending samples to files
        samples.originals.read_again(hasher)

    def _go_on(self, given: DatasetOptions) -> None:
        samples, by, mode = self._samples, self._by, opening_mode() if self._follows_mode else None
        samples.note_hits()
        samples.say_opening(given.root)
        for note in by.recipe.notes:
            by.say_of_it(note)
        if given.verify_fraction:
            samples.verify(given.verify_fraction)
        if mode is None and by.is_lazy:
            samples.follow()
        elif mode is None or mode.prepares:
            samples.prepare(None if mode is None else mode.part_of(samples.count))
        samples.originals.end_opening()

    @classmethod
    def wrap(
        cls,
        dataset: MapStyle[S],
        *,
        key: Callable[[int], Any],
        transform: Callable[[Any], Any] | None = None,
        **options: Unpack[Options],
    ) -> CachedDataset[S]:
        """Caches an existing map-style dataset item by item.

            ds = prepcache.CachedDataset.wrap(photos, key=lambda i: photos.paths[i])

        Args:
            dataset: `dataset[i]` is called for missing samples.
            key: returns everything that differs between items: the files of item i as paths, its label.
            transform: `sample -> sample`, on every access, never cached.
            options: as `CachedDataset` takes them, without `read` and `config`.

        Raises:
            UnkeyableError: the dataset draws random numbers; the message says what to do. Or as
                `CachedDataset`.
            TypeError, ValueError: it is not a map-style dataset, or an option is invalid.
        """
        if options.get("read", "path") != "path":
            raise ValueError("wrap() takes no read=: the dataset reads its files itself")
        refuse_unknown("CachedDataset.wrap", options)
        items, function = wrapped(dataset, key)
        options["name"] = options.get("name") or class_label(type(dataset))
        return cls(items, function, None, transform, **options)

    def __prepcache_key__(self) -> Any:
        """How it counts where a function holds it: by its samples, and by what a derived class added."""
        members = vars(self)
        if "_samples" not in members:
            raise UnkeyableError(_NOT_OPEN)
        added = {name: value for name, value in members.items() if name not in _OWN_ATTRIBUTES}
        return self.recipe.digest, *self._samples.counted(), self.transform, added

    def __repr__(self) -> str:
        return f"<CachedDataset {self.name} items={self._samples.count} recipe={self.recipe.digest[:12]}>"

    def prepare(self) -> None:
        """Preprocesses all missing items, together with other jobs that need them.

        Raises:
            PreprocessError, SampleError: the message names the item; finished samples stay.
            UnkeyableError: a global or the config has changed since the opening; the message names it.
        """
        try:
            self._samples.prepare_opened()
        except TOLD_BARE as error:
            raise error.with_traceback(None) from error.__cause__

    # -- reading

    def __len__(self) -> int:
        try:
            return len(self._samples)
        except TOLD_BARE as error:
            raise error.with_traceback(None) from error.__cause__

    def __getitem__(self, index: int) -> T_co:
        at = operator.index(index)
        if get_worker_info() is not None:
            lend_to_job(sys._getframe(1))
        samples = self._samples
        try:
            count = len(samples) if samples.is_expanded else samples.count
            if not -count <= at < count:
                raise IndexError(f"index {at} is out of range for a data set of {count} samples")
            sample = samples.sample(at + count if at < 0 else at)
        except TOLD_BARE as error:
            raise error.with_traceback(None) from error.__cause__
        return sample if self.transform is None else self.transform(sample)  # type: ignore[no-any-return]

    def __getitems__(self, indices: Any) -> list[T_co]:
        """The samples at these positions: gathered at once where they are there."""
        kind = type(self)
        if (
            kind.__getitem__ is not CachedDataset.__getitem__
            and kind.__getitems__ is CachedDataset.__getitems__
        ):
            return [self[operator.index(index)] for index in indices]  # a subclass's own way
        try:
            batch = self._samples.view().take(indices, self._samples.make_missing)
        except TOLD_BARE as error:
            raise error.with_traceback(None) from error.__cause__
        if self.transform is not None:
            batch = [self.transform(sample) for sample in batch]
        return as_asked(batch, sys._getframe(1))  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T_co]:
        for index in range(len(self)):
            yield self[index]

    # -- what there is

    def are_cached(self, positions: Array) -> Array:
        """Which samples are there, `bool[k]`. Asks the daemon if any is missing."""
        return self._samples.are_there(positions)

    def cached(self) -> int:
        """The number of items that are cached. Asks the daemon; preprocesses nothing."""
        return self._samples.cached()

    def report(self) -> Report:
        """How many items hit, how many were preprocessed, and what that cost.

        If DataLoader workers preprocessed items, the daemon is asked what they have committed.
        """
        if self._samples.tally.not_stored:
            self._samples.look()
        return self._samples.report()


def open_recipe(given: DatasetOptions) -> Recipe:
    """The recipe that a data set is opened by; the daemon is started meanwhile. Raises as `recipe` does."""
    given.asks.begin()
    function = given.function
    if isinstance(function, Wrapped):
        function = function.dataset.__getitem__
    recipe = recipes.recipe(function, **given.how)
    check_keywords(function, given.how["config"])
    return recipe
