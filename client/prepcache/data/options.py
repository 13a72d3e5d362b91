"""Options of a data set that cannot be."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from types import FunctionType
from typing import Any

from prepcache.errors import ConfigError, UnkeyableError


def check(verify_fraction: float, num_workers: int, executor: Executor | None, transform: Any) -> None:
    """Refuses numbers out of their range, options that exclude each other, and what cannot be called.

    Raises:
        ConfigError: the message says what there is instead.
        TypeError: `transform` cannot be called, `executor` is none.
    """
    if not (transform is None or callable(transform)):
        raise TypeError(f"transform must be callable as transform(sample), not {type(transform).__name__}")
    if not (executor is None or isinstance(executor, Executor)):
        raise TypeError(f"executor must be a concurrent.futures.Executor, not {type(executor).__name__}")
    if not 0.0 <= verify_fraction <= 1.0:
        raise ConfigError(f"verify_fraction={verify_fraction}: a share of the hits is between 0 and 1")
    if num_workers < 0:
        raise ConfigError(f"num_workers={num_workers}: 0 preprocesses in this process, N forks N workers")
    if num_workers and executor is not None:
        raise ConfigError("num_workers= and executor= both say who preprocesses: give one of them")


def check_call(preprocess: Any, config: Mapping[str, Any] | None) -> None:
    """Refuses a function that does not take the item and the config, where that can be told.

    Raises:
        TypeError: the message says how it is called.
    """
    if not isinstance(preprocess, FunctionType) or preprocess.__dict__:
        return  # what a decorator gives may take other arguments than it says
    try:
        inspect.signature(preprocess).bind(None, **(config or {}))
    except TypeError as error:
        given = ", ".join(["item", *(f"{name}=..." for name in config or {})])
        raise TypeError(f"{preprocess.__qualname__} is called with ({given}): {error}") from None


def sequence_of(items: Any) -> Sequence[Any]:
    """The items by position. A list is copied: its owner may change it.

    What pandas has by label is taken by position: `series[i]` of a shuffled or filtered series is another
    item than its i-th, or none.

    Raises:
        UnkeyableError: it is one item, or has no positions.
    """
    if isinstance(items, (str, bytes)):
        raise UnkeyableError(f"items is one {type(items).__name__}, not a sequence of items: give a list")
    if isinstance(items, Mapping):
        raise UnkeyableError(
            f"items is a {type(items).__name__}, which has no positions: give list(d.items()) or list(d)"
        )
    if isinstance(items, set | frozenset):
        raise UnkeyableError(
            f"items is a {type(items).__name__}, whose order is another in each process: give sorted(items)"
        )
    if not hasattr(items, "__getitem__") and not isinstance(items, Iterable):
        raise UnkeyableError(f"items is one {type(items).__name__}, not a sequence of items: give a list")
    if hasattr(items, "iloc"):
        if items.ndim != 1:
            how = "give df.to_dict('records'), or one of its columns"
            raise UnkeyableError(f"items is a {type(items).__name__}, which is indexed by columns: {how}")
        items = items.array
    is_sequence = type(items) is not list and hasattr(items, "__getitem__") and hasattr(items, "__len__")
    return items if is_sequence else list(items)
