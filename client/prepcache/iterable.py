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
from prepcache.dataset import CachedDataset
from prepcache.dataset_options import Options, check, taken_from
from prepcache.errors import UnkeyableError
from prepcache.progress import Once, say
from prepcache.report import Report
from prepcache.streaming.chunked_reader import is_stream
from prepcache.streaming.sharding import Ranks, Split, batch_here, ranks_here, split_here
from prepcache.streaming.stream import Stream
from prepcache.torch_types import IterableDataset, T_co

if TYPE_CHECKING:
    from prepcache.keys.files.digest import Trust
    from prepcache.keys.paths import Read
    from prepcache.keys.recipes import Code, Recipe

S = TypeVar("S")
"""What a function returns."""


class CachedIterableDataset(IterableDataset[T_co]):
    """An iterable data set whose samples are cached by the daemon.

    A sequence is looked up and prepared when the data set is opened. A stream is read, looked up and
    prepared a few thousand items at a time, by the process that iterates. `len(ds)` is the number of samples
    of this rank; a stream, and a data set with `expand=True`, has none.

    All arguments except `items`, and all errors, are those of `CachedDataset`. Errors of a stream's items are
    raised where it is iterated.

    Args:
        items: a sequence, an iterable (read again in each epoch), an iterator (good for one epoch), or a
            function that returns one of these.

    Raises:
        RuntimeError: an iterator was used up in an earlier epoch.
        TypeError: `len` of a stream; an iterator that cannot be sent to a spawned worker.
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
        self._over: Stream | CachedDataset[Any]
        if is_stream(items):
            self._over = Stream(self._said, items, function, how, **options)
        else:
            self._over = CachedDataset(items, function, **how, **options)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    @property
    def recipe(self) -> Recipe:
        """How the samples are made; `prepcache.recipe`."""
        return self._over.by.recipe if isinstance(self._over, Stream) else self._over.recipe

    def __prepcache_key__(self) -> Any:
        """How it counts where a function holds it."""
        if isinstance(self._over, Stream):
            raise UnkeyableError(f"{self!r} is a stream, whose items are unknown: name it in untracked=")
        return self._over.__prepcache_key__(), self.transform

    def __repr__(self) -> str:
        return f"<CachedIterableDataset {self.name} recipe={self.recipe.digest[:12]}>"

    def __len__(self) -> int:
        if isinstance(self._over, Stream) or self._over.is_expanded:
            why = "a stream" if isinstance(self._over, Stream) else "a stream with expand=True"
            raise TypeError(f"{self.name}: {why} has no length")
        ranks = ranks_here(self._ranks)
        return len(range(ranks.rank, len(self._over.items), ranks.ranks))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[T_co]:
        split, over = split_here(self._ranks), self._over
        self._tell(split)
        samples = over.samples(split) if isinstance(over, Stream) else _share_of(over, split)
        return samples if self.transform is None else map(self.transform, samples)

    def _tell(self, split: Split) -> None:
        if split.ranks > 1 and split.is_first and self._said.is_news("ranks"):
            share = f"this is rank {split.rank}, which yields one item in {split.ranks}"
            say(f"{self.name}: split over {split.ranks} ranks: {share}", self._progress)

    def set_epoch(self, epoch: int) -> None:
        """Passes the number of the epoch to a stream that shuffles its items; trainers call this."""
        if isinstance(self._over, Stream):
            self._over.set_epoch(epoch)

    def report(self) -> Report:
        """How many items hit and were preprocessed, and what that cost.

        Of a stream, in all epochs so far, without what spawned workers did: they have reports of their own.
        """
        return self._over.report()

    def __getstate__(self) -> dict[str, Any]:
        split = Split(*ranks_here(self._ranks), 0, 1)
        self._tell(split)
        return {**self.__dict__, "_ranks": Ranks(split.rank, split.ranks)}


def _share_of(ds: CachedDataset[Any], split: Split) -> Iterator[Any]:
    """The samples of a share of the items. Being a generator, it is run by whoever wants batches."""
    batch = 1 if ds.is_expanded else batch_here()  # how many samples an item has, no batch tells
    yield from ds.samples_of(split.of(len(ds.items), batch))
