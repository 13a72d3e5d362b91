"""CachedIterableDataset: samples one after the other, preprocessed once, for items that come as a stream.

    ds = prepcache.CachedIterableDataset(lambda: csv.DictReader(open(path)), tokenise)
    loader = torch.utils.data.DataLoader(ds, batch_size=64, num_workers=4)

Invariants:
    1. The samples of all workers of all ranks together are those of all items, once each (sharding.py); each
       gives its own in the order of the items.
    2. As in `CachedDataset`: a sample equals `preprocess(item, **config)`, wherever it comes from.

Not here: items that come one by one (stream.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from prepcache.daemon.client import Client
from prepcache.dataset import IterableDataset, T_co
from prepcache.dataset_options import Options, check, taken_from
from prepcache.errors import UnkeyableError
from prepcache.progress import Once, say
from prepcache.report import Report
from prepcache.streaming.sharding import Ranks, Split, ranks_here, split_here
from prepcache.streaming.stream import Stream

if TYPE_CHECKING:
    from prepcache.keys.files.digest import Trust
    from prepcache.keys.paths import Read
    from prepcache.keys.recipes import Code, Recipe

S = TypeVar("S")
"""What a function returns."""


class CachedIterableDataset(IterableDataset[T_co]):
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
        UnkeyableError: items have no order, or an item is an instance of a class of the project.
    """

    @overload
    def __init__(
        self: CachedIterableDataset[S],
        items: Iterable[Any] | Callable[[], Iterable[Any]],
        preprocess: Callable[..., S],
        config: Mapping[str, Any] | None = None,
        transform: None = None,
        *,
        expand: Literal[False] = False,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: CachedIterableDataset[S],
        items: Iterable[Any] | Callable[[], Iterable[Any]],
        preprocess: Callable[..., Iterable[S]],
        config: Mapping[str, Any] | None = None,
        transform: None = None,
        *,
        expand: Literal[True],
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self,
        items: Iterable[Any] | Callable[[], Iterable[Any]],
        preprocess: Callable[..., Any] | Recipe,
        config: Mapping[str, Any] | None = None,
        transform: Callable[[Any], T_co] | None = None,
        *,
        expand: bool = False,
        **options: Unpack[Options],
    ) -> None: ...

    def __init__(
        self,
        items: Iterable[Any] | Callable[[], Iterable[Any]],
        preprocess: Callable[..., Any] | Recipe,
        config: Mapping[str, Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        name: str | None = None,
        code: Code = "script",
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
        check(verify_fraction, num_workers, executor, transform, lazy=lazy, expand=how["expand"])
        self.transform = transform
        self._progress = progress
        self._ranks: Ranks | None = None
        self._said = Once()
        options: dict[str, Any] = {
            "root": root, "lazy": lazy, "verify_fraction": verify_fraction, "num_workers": num_workers,
            "executor": executor, "progress": progress, "client": client,
        }  # fmt: skip
        self._stream = Stream(self._said, items, function, how, **options)

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def recipe(self) -> Recipe:
        """How the samples are made; `prepcache.recipe`."""
        return self._stream.by.recipe

    def __prepcache_key__(self) -> Any:
        """How it counts where a function holds it."""
        raise UnkeyableError(f"{self!r} is a stream, whose items are unknown: name it in untracked=")

    def __repr__(self) -> str:
        return f"<CachedIterableDataset {self.name} recipe={self.recipe.digest[:12]}>"

    def __iter__(self) -> Iterator[T_co]:
        split = split_here(self._ranks)
        self._tell(split)
        samples = self._stream.samples(split)
        return samples if self.transform is None else map(self.transform, samples)

    def _tell(self, split: Split) -> None:
        if split.ranks > 1 and split.is_first and self._said.is_news("ranks"):
            share = f"this is rank {split.rank}, which yields one item in {split.ranks}"
            say(f"{self.name}: split over {split.ranks} ranks: {share}", self._progress)

    def set_epoch(self, epoch: int) -> None:
        """Passes the number of the epoch to a stream that shuffles its items; trainers call this."""
        self._stream.set_epoch(epoch)

    def report(self) -> Report:
        """How many items hit and were preprocessed, and what that cost.

        In all epochs so far, without what spawned workers did: they have reports of their own.
        """
        return self._stream.report()

    def __getstate__(self) -> dict[str, Any]:
        split = Split(*ranks_here(self._ranks), 0, 1)
        self._tell(split)
        return {**self.__dict__, "_ranks": Ranks(split.rank, split.ranks)}
