"""What a data set is opened with: options, their types and checks, a dataset that is wrapped, and what
`prepcache fill` changes.

Invariants:
    1. An `OpeningMode` applies to the whole process, which is the command's, and to the user's data sets.
    2. `cached()`, streams, and data sets whose samples are the items of others are prepared whole: the script
       needs what they give to name its items.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from numbers import Real
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypedDict, TypeVar

from prepcache.daemon.launcher import BaseClient
from prepcache.keys import recipes
from prepcache.keys.items import load

if TYPE_CHECKING:
    from prepcache.daemon.client import Client
    from prepcache.dataset import CachedDataset
    from prepcache.keys.files.digest import Trust
    from prepcache.keys.paths import Read

S_co = TypeVar("S_co", covariant=True)


class Options(TypedDict, total=False):
    """The keyword arguments of `CachedDataset`, `CachedIterableDataset` and `cached`, besides `expand`."""

    name: str | None
    code: recipes.Code
    version: str | int | None
    untracked: Sequence[str]
    environment: Sequence[str] | None
    read: Read
    root: str | os.PathLike[str] | None
    trust: Trust
    lazy: bool
    verify_fraction: float
    num_workers: int
    executor: Executor | None
    progress: bool | None
    client: Client | None


_KINDS: dict[str, tuple[Any, str]] = {
    "transform": (Callable | None, "callable as transform(sample)"),
    "name": (str | None, "a str"),
    "untracked": (Iterable, "a list of names"),
    "environment": (Iterable | None, "a list of names"),
    "root": (str | os.PathLike | None, "the path of a folder"),
    "verify_fraction": (Real, "a number between 0 and 1"),
    "num_workers": (SupportsIndex, "a number of workers, or 0 for this process"),
    "lazy": (bool, "True or False"),
    "expand": (bool, "True or False"),
    "executor": (Executor | None, "a concurrent.futures.Executor"),
    "client": (BaseClient | None, "a prepcache.Client"),
}
"""Types of options, and their names in messages."""
_OF_A_RECIPE = inspect.signature(recipes.recipe).parameters
"""`preprocess` and the options that `prepcache.recipe` takes."""
_CLAIMS = ("__signature__", "__text_signature__")


class DatasetOptions:
    """What a data set is opened with, checked.

    Attributes:
        function: `preprocess`, or that of the `Recipe` given in its place.
        how: the options of its recipe.
        asks: `client`, or one by the environment.

    Raises:
        ValueError, TypeError: an option is invalid, or excludes another one; the message says what to do.
    """

    def __init__(self, preprocess: Callable[..., Any] | recipes.Recipe, **given: Any) -> None:
        for name, (kind, told) in _KINDS.items():
            if name in given and not isinstance(given[name], kind):
                raise TypeError(f"{name} must be {told}, not {type(given[name]).__name__}")
        self.function, self.how = _function_of(preprocess, given)
        self.asks: BaseClient = given.get("client") or BaseClient()
        self.root: str | os.PathLike[str] | None = given.get("root")
        self.lazy: bool = given.get("lazy", False)
        self.verify_fraction: float = given.get("verify_fraction", 0.0)
        self.num_workers: int = given.get("num_workers", 0)
        self.executor: Executor | None = given.get("executor")
        self.progress: bool | None = given.get("progress")
        if not 0.0 <= self.verify_fraction <= 1.0:
            raise ValueError(f"verify_fraction must be between 0 and 1, not {self.verify_fraction}")
        if self.num_workers < 0:
            raise ValueError(f"num_workers must be 0 or a number of workers, not {self.num_workers}")
        if self.num_workers and self.executor is not None:
            raise ValueError("num_workers= and executor= exclude each other: give one of them")
        if self.lazy and self.how["expand"]:
            raise ValueError(
                "lazy=True and expand=True exclude each other: the length is known only after all items are "
                "preprocessed"
            )


def _function_of(
    made: Callable[..., Any] | recipes.Recipe, given: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function, and the options of its recipe."""
    defaults = {name: one.default for name, one in _OF_A_RECIPE.items() if name != "preprocess"}
    how = {name: given.get(name, default) for name, default in defaults.items()}
    if not isinstance(made, recipes.Recipe):
        return made, how
    if told := [name for name, value in how.items() if value != defaults[name]]:
        raise TypeError(f"the recipe already has {', '.join(told)}: pass it to prepcache.recipe() only")
    if made.preprocess is None:
        raise TypeError(f"{made!r} came from another process without its function: create it in this process")
    return made.preprocess, {name: value for name, value in made.asked.items() if name in how}


def refuse_unknown(opened: str, options: Mapping[str, Any]) -> None:
    """Raises TypeError for a misspelt option, in the name of what the user called."""
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise TypeError(f"{opened}() got an unexpected keyword argument {unknown[0]!r}")


def check_keywords(function: Callable[..., Any], config: Mapping[str, Any] | None) -> None:
    """Raises TypeError where a function cannot be called as `function(item, **config)`, before any item is
    read. A callable object, or a function that claims to take something else, is called to find out."""
    code = function.__func__ if type(function) is MethodType else function
    if type(code) is not FunctionType or not vars(code).keys().isdisjoint(_CLAIMS):
        return
    given = "".join(f", {name}=" for name in config or {})
    try:
        signature = inspect.signature(function, follow_wrapped=False)
        signature.bind(None, **(config or {}))
    except TypeError as error:
        called = f"{code.__name__}{signature} cannot be called as {code.__name__}(item{given})"
        raise TypeError(f"{called}: {error}; config= gives the keyword arguments") from None


def refuse_unordered(items: Any) -> None:
    """Raises TypeError for one item, and for items without an order that is alike in every process."""
    is_table = hasattr(items, "iloc") and items.ndim != 1
    is_many = hasattr(items, "__getitem__") or isinstance(items, Iterable)
    if is_table or not is_many or isinstance(items, str | bytes | Mapping | set | frozenset):
        way = "[item], sorted(folder.glob('*')), sorted(items), list(d.items()) or df.to_dict('records')"
        way = "the items come first, then the function" if callable(items) else f"pass a list, such as {way}"
        raise TypeError(f"items must be a sequence, not {type(items).__name__}: {way}")


def sequence_of(items: Any) -> Sequence[Any]:
    """The items by position. A list is copied: its owner may change it; pandas' `series[i]` is by label."""
    refuse_unordered(items)
    is_kept = hasattr(items, "__getitem__") and hasattr(items, "__len__") and not hasattr(items, "iloc")
    return items if is_kept and not isinstance(items, list) else list(items)


class MapStyle(Protocol[S_co]):
    """A dataset that has samples by their positions."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> S_co: ...


class Wrapped:
    """The function of a dataset that `CachedDataset.wrap` takes: gives `dataset[i]` for the item `key(i)`.

    The files in an item count by their bytes. Of the dataset, the code of `__getitem__` counts, and every
    attribute that it reads, lists of all files and labels included: a list whose entries `key` names entirely
    is left out by `untracked=`. One that draws random numbers is refused: its samples would be the same in
    every epoch.
    """

    def __init__(self, dataset: Any, names: list[Any]) -> None:
        self.dataset = dataset
        self._positions = {_told_apart(load(name)): i for i, name in reversed([*enumerate(names)])}

    def __call__(self, item: Any) -> Any:
        return self.dataset[self._positions[_told_apart(item)]]


def _told_apart(name: Any) -> Any:
    """A key of a dict for an item: 1, 1.0 and True are three items, and so they are in tuples."""
    if isinstance(name, tuple):
        return tuple(_told_apart(one) for one in name)
    return type(name), repr(name) if isinstance(name, float) else name


def wrapped(dataset: Any, key: Callable[[int], Any]) -> tuple[list[Any], Wrapped]:
    """The items of a dataset, and the function that makes their samples."""
    if not (hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")):
        raise TypeError(
            f"wrap() takes a map-style dataset, with __getitem__ and __len__, not {type(dataset).__name__}: "
            "for a stream use CachedIterableDataset"
        )
    if not callable(key):
        raise TypeError(f"key must be callable as key(i), not {type(key).__name__}")
    names = [key(i) for i in range(len(dataset))]
    try:
        return names, Wrapped(dataset, names)
    except TypeError as error:  # there is one that has no hash
        raise TypeError(f"key(i) must give a path, str, number, or tuple of those: {error}") from None


@dataclass(frozen=True)
class OpeningMode:
    """How `prepcache fill` and `plan` open data sets.

    Args:
        prepares: whether what is missing is preprocessed: every `shards`-th item, from `shard` on.
        opened: the data sets that were opened so.
    """

    prepares: bool = True
    shard: int = 0
    shards: int = 1
    opened: list[CachedDataset[Any]] = field(default_factory=list)

    def part_of(self, count: int) -> range | None:
        """The positions of this shard's items; None means all."""
        return None if self.shards == 1 else range(self.shard, count, self.shards)


_mode: OpeningMode | None = None


def opening_mode() -> OpeningMode | None:
    """None in a training job."""
    return _mode


@contextlib.contextmanager
def opened_as(mode: OpeningMode) -> Iterator[None]:
    global _mode
    _mode = mode
    try:
        yield
    finally:
        _mode = None
