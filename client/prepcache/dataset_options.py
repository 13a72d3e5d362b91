"""Options of a data set: their types, what is refused at the opening, and what `prepcache fill` changes.

Invariants:
    1. An `OpeningMode` applies to the whole process, which is the command's: a script may open its data sets
       in a thread of its own.
    2. It applies to the user's data sets. `cached()` and the parts of a stream open whole and are prepared,
       since the script needs what they give to name its items.
    3. A data set whose samples are the items of another one is prepared whole when these are read, so that
       parts of the other one leave nothing out.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypedDict

from prepcache.errors import UnkeyableError
from prepcache.keys import recipes

if TYPE_CHECKING:
    from prepcache.daemon.client import Client
    from prepcache.dataset import CachedDataset
    from prepcache.keys.files.digest import Trust
    from prepcache.keys.paths import Read


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


def check(
    verify_fraction: float,
    num_workers: int,
    executor: Executor | None,
    transform: Any,
    *,
    lazy: bool = False,
    expand: bool = False,
) -> None:
    """Refuses numbers out of range, options that exclude each other, and what cannot be called.

    Raises:
        ValueError: the message says what there is instead.
        TypeError: one is of another type than it may be.
    """
    if not (transform is None or callable(transform)):
        raise TypeError(f"transform must be callable as transform(sample), not {type(transform).__name__}")
    if not (executor is None or isinstance(executor, Executor)):
        raise TypeError(f"executor must be a concurrent.futures.Executor, not {type(executor).__name__}")
    if not 0.0 <= verify_fraction <= 1.0:
        raise ValueError(f"verify_fraction must be between 0 and 1, not {verify_fraction}")
    for name, flag in (("lazy", lazy), ("expand", expand)):
        if flag not in (True, False):
            raise TypeError(f"{name} must be True or False, not {flag!r}")
    if not hasattr(num_workers, "__index__"):
        raise TypeError(f"num_workers must be 0 (this process) or a number of workers, not {num_workers!r}")
    if num_workers < 0:
        raise ValueError(f"num_workers must be 0 (this process) or a number of workers, not {num_workers}")
    if num_workers and executor is not None:
        raise ValueError("num_workers= and executor= exclude each other: give one of them")
    if lazy and expand:
        raise ValueError(
            "lazy=True and expand=True exclude each other: the length is known only after all items are "
            "preprocessed"
        )


_OF_A_RECIPE = inspect.signature(recipes.recipe).parameters
"""`preprocess` and the options that `prepcache.recipe` takes."""


def taken_from(
    preprocess: Callable[..., Any] | recipes.Recipe, how: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function and the options of its recipe; those of a `Recipe` that was given in place of a function.

    Raises:
        TypeError: options were given beside a recipe, or its function is not in this process.
        UnkeyableError: what the recipe counts was changed since it was made.
    """
    if not isinstance(preprocess, recipes.Recipe):
        return preprocess, how
    given = [name for name, value in how.items() if value != _OF_A_RECIPE[name].default]
    if given:
        raise TypeError(f"the recipe already has {', '.join(given)}: pass it to prepcache.recipe() only")
    if preprocess.preprocess is None:
        raise TypeError(
            f"{preprocess!r} came from another process without its function: create it in this process"
        )
    asked = {name: value for name, value in preprocess.asked.items() if name in _OF_A_RECIPE}
    made = recipes.recipe(preprocess.preprocess, **asked)
    if made.digest != preprocess.digest and "classes" not in preprocess.asked:
        raise UnkeyableError(
            f"{preprocess.name}: its code, config or environment changed since the recipe was created: "
            "call prepcache.recipe() again"
        )
    return preprocess.preprocess, asked


def check_keywords(function: Callable[..., Any], config: Mapping[str, Any] | None) -> None:
    """Raises TypeError for a config key that the function does not take, before any item is read."""
    if not isinstance(function, FunctionType | MethodType):
        return
    code: Any = getattr(function, "__code__", None)  # not a signature, which a decorator may claim
    if isinstance(code, CodeType) and not code.co_flags & inspect.CO_VARKEYWORDS:
        first = max(code.co_posonlyargcount, 1 + isinstance(function, MethodType))
        taken = code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount]
        if unknown := sorted(set(config or {}).difference(taken)):
            keys = "config has " + ", ".join(unknown)
            raise TypeError(f"{keys}, but {code.co_name}() takes {', '.join(taken) or 'only an item'}")


def refuse_unordered(items: Any) -> None:
    """Refuses items that are no sequence.

    Raises:
        UnkeyableError: it is one item, or has no order that is the same in every process.
    """
    is_table = hasattr(items, "iloc") and items.ndim != 1
    is_many = hasattr(items, "__getitem__") or isinstance(items, Iterable)
    if is_table or not is_many or isinstance(items, str | bytes | Mapping | set | frozenset):
        raise UnkeyableError(
            f"items is a {type(items).__name__}, not a sequence: pass a list, such as [item], sorted(items), "
            "list(d.items()) or df.to_dict('records')"
        )


def sequence_of(items: Any) -> Sequence[Any]:
    """The items by position. A list is copied: its owner may change it.

    What pandas has by label is taken by position: `series[i]` of a shuffled or filtered series is another
    item than its i-th, or none.

    Raises:
        UnkeyableError: as `refuse_unordered`.
    """
    refuse_unordered(items)
    if hasattr(items, "iloc"):
        items = items.array
    is_sequence = type(items) is not list and hasattr(items, "__getitem__") and hasattr(items, "__len__")
    return items if is_sequence else list(items)


@dataclass(frozen=True)
class OpeningMode:
    """How data sets are opened.

    Args:
        prepares: whether what is missing is preprocessed.
        shard, shards: of what is missing, only every `shards`-th item is preprocessed, beginning with number
            `shard` (from 0).
        opened: the data sets that were opened so.
    """

    prepares: bool = True
    shard: int = 0
    shards: int = 1
    opened: list[CachedDataset[Any]] = field(default_factory=list)

    def part_of(self, count: int) -> range | None:
        """The positions of this shard's items; None: all."""
        return None if self.shards == 1 else range(self.shard, count, self.shards)


_mode: OpeningMode | None = None


def opening_mode() -> OpeningMode | None:
    """How data sets are opened now; None in a training job."""
    return _mode


@contextlib.contextmanager
def opened_as(mode: OpeningMode) -> Iterator[None]:
    """Opens the data sets of this process so, in all its threads."""
    global _mode
    _mode = mode
    try:
        yield
    finally:
        _mode = None
