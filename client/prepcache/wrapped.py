"""An existing map-style Dataset, cached item by item: what `CachedDataset.wrap(dataset, key=...)` calls.

Invariants:
    1. An item is what `key(i)` gives: the files in it count by their bytes, in any order and subset.
    2. Of the dataset, the code of `__getitem__` counts, and every attribute that it reads, lists of all
       files and labels included. A list whose entries `key` names entirely is left out by `untracked=`.
    3. A dataset that draws random numbers is refused: its samples would be the same in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from prepcache.keys.items import load

S_co = TypeVar("S_co", covariant=True)


class MapStyle(Protocol[S_co]):
    """A dataset that has samples by their positions."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> S_co: ...


class Wrapped:
    """The function of a wrapped dataset: gives `dataset[i]` for the item `key(i)`."""

    def __init__(self, dataset: Any, names: list[Any]) -> None:
        self.dataset = dataset
        self._positions = {_told_apart(load(name)): i for i, name in reversed([*enumerate(names)])}

    @property
    def method(self) -> Callable[..., Any]:
        method: Callable[..., Any] = self.dataset.__getitem__
        return method

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
