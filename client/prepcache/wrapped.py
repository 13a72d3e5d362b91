"""An existing map-style Dataset, cached item by item: what `CachedDataset.wrap(dataset, key=...)` calls.

    old = Photos(paths, transform)      # its __getitem__(i) reads paths[i]
    ds = prepcache.CachedDataset.wrap(old, key=lambda i: old.paths[i])

Invariants:
    1. An item is what `key(i)` gives: the files in it count by their bytes, in any order and subset.
    2. Of the dataset, the code of `__getitem__` counts, and every attribute that it reads. Left out are
       lists of one entry an item that `key` reads, too: `key` names their entries.
    3. A dataset that draws random numbers is refused: its samples would be the same in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Protocol, TypeVar

from prepcache.keys.items import load

S_co = TypeVar("S_co", covariant=True)


class MapStyle(Protocol[S_co]):
    """A dataset that has samples by their positions."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> S_co: ...


class Wrapped:
    """The function of a wrapped dataset: gives `dataset[i]` for the item `key(i)`.

    Args:
        names: the items, in order; of equal ones the first is preprocessed for all.
    """

    def __init__(self, dataset: Any, names: list[Any]) -> None:
        self.dataset = dataset
        self._positions = {load(name): i for i, name in reversed([*enumerate(names)])}

    @property
    def method(self) -> Callable[..., Any]:
        """What counts in the key."""
        method: Callable[..., Any] = self.dataset.__getitem__
        return method

    def __call__(self, item: Any) -> Any:
        return self.dataset[self._positions[item]]


def wrapped(dataset: Any, key: Callable[[int], Any]) -> tuple[list[Any], Wrapped, tuple[str, ...]]:
    """The items of a dataset, the function that makes their samples, and the attributes that do not count.

    Raises:
        TypeError: it is no map-style dataset, or `key` gives what has no hash.
    """
    if not (hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")):
        raise TypeError(
            f"wrap() takes a map-style dataset, with __getitem__ and __len__, not {type(dataset).__name__}: "
            "for a stream there is CachedIterableDataset"
        )
    names = [key(i) for i in range(len(dataset))]
    try:
        function = Wrapped(dataset, names)
    except TypeError as error:
        raise TypeError(
            f"key(0) gave {names[0]!r:.100}: a key is a path, a text, a number, or a tuple of those ({error})"
        ) from None
    return names, function, _listings(dataset, key)


def draws_refused(name: str, drawn: set[str]) -> str:
    """Why a dataset that draws is refused, and what to do instead."""
    return (
        f"{name} draws random numbers ({', '.join(sorted(drawn))}), so that a cached sample would be the "
        "same in every epoch. Build the dataset with its deterministic transforms only, and pass the random "
        "ones to wrap() as transform=, which is called on every access."
    )


def _listings(dataset: Any, key: Any) -> tuple[str, ...]:
    """The attributes with one entry an item that `key` reads: by name, or as what it holds."""
    function = getattr(key, "__func__", key)
    code = getattr(function, "__code__", None)
    names = set(_names(code)) if code is not None else set[str]()
    scope = getattr(function, "__globals__", {})
    held = [scope[name] for name in names if name in scope]
    held += [getattr(key, "__self__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        held.append(cell.cell_contents)
    return tuple(
        name
        for name, value in sorted(getattr(dataset, "__dict__", {}).items())
        if _is_listing(value, len(dataset)) and (name in names or any(value is one for one in held))
    )


def _is_listing(value: Any, count: int) -> bool:
    try:
        return not isinstance(value, str | bytes | dict) and len(value) == count
    except TypeError:  # it has no length
        return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
