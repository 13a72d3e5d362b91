"""Options of a data set that cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from prepcache.errors import ConfigError, UnkeyableError


def check(verify_fraction: float, num_workers: int, executor: Executor | None) -> None:
    """Refuses numbers out of their range, and options that exclude each other.

    Raises:
        ConfigError: the message says what there is instead.
    """
    if not 0.0 <= verify_fraction <= 1.0:
        raise ConfigError(f"verify_fraction={verify_fraction}: a share of the hits is between 0 and 1")
    if num_workers < 0:
        raise ConfigError(f"num_workers={num_workers}: 0 preprocesses in this process, N forks N workers")
    if num_workers and executor is not None:
        raise ConfigError("num_workers= and executor= both say who preprocesses: give one of them")


def sequence_of(items: Any) -> Sequence[Any]:
    """The items by position. A list is copied: its owner may change it.

    Raises:
        UnkeyableError: it is one item, or has no positions.
    """
    if isinstance(items, (str, bytes)):
        raise UnkeyableError(f"items is one {type(items).__name__}, not a sequence of items: give a list")
    if isinstance(items, Mapping):
        raise UnkeyableError(
            f"items is a {type(items).__name__}, which has no positions: give list(d.items()) or list(d)"
        )
    is_sequence = type(items) is not list and hasattr(items, "__getitem__") and hasattr(items, "__len__")
    return items if is_sequence else list(items)
