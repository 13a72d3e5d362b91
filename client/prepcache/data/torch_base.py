"""The base class of a data set: torch's `Dataset`, or `IterableDataset`, wherever torch is loaded, which is
never loaded for that.

Frameworks ask for `isinstance(ds, torch.utils.data.Dataset)`, and `ds1 + ds2` comes with it. A job without
torch need not wait for its import, and many import prepcache, or open a data set, before torch.

Invariants:
    1. A class stays one object for the life of the process, whenever torch comes: it gets another base, so
       that what was made, pickled or subclassed of it before is torch's too.
    2. A job where that cannot be goes on with what it has.
    3. What a subclass makes of its samples is in its batches.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

_MODULE = "torch.utils.data.dataset"

if TYPE_CHECKING:
    from torch.utils.data import Dataset, IterableDataset

    Base = Dataset[Any]
    IterableBase = IterableDataset[Any]
else:
    _T = TypeVar("_T", covariant=True)

    class Base(Generic[_T]):
        """Stands for torch's until it is there. Python changes bases only for those of one layout."""

    class IterableBase(Generic[_T]):
        """The same for torch's `IterableDataset`."""


def take_up(cls: type, name: str) -> bool:
    """Gives a class torch's class of that name as its base; whether torch has come."""
    theirs = getattr(sys.modules.get(_MODULE), name, None)
    if theirs is None:
        return False
    if theirs not in cls.__mro__:  # `issubclass` would remember that it was not, for an abstract class
        with suppress(TypeError):  # a class that derives from both, in an order that Python then refuses
            cls.__bases__ = (theirs,)
    return True


def follow(cls: type) -> type:
    """For a class made of one of those above: it becomes a data set of torch's now, or as soon as torch is
    imported."""
    name = "IterableDataset" if IterableBase in cls.__bases__ else "Dataset"
    if not take_up(cls, name):
        sys.meta_path.insert(0, _Watch(cls, name))
    return cls


def by_sample(cls: type) -> None:
    """Makes batches of a subclass by its own `__getitem__`, if it has one: torch asks for batches first."""
    place = {name: place for place, base in reversed([*enumerate(cls.__mro__)]) for name in vars(base)}
    if place["__getitem__"] < place["__getitems__"]:
        cls.__getitems__ = _one_by_one  # type: ignore[attr-defined]


def _one_by_one(self: Any, indices: Iterable[Any]) -> list[Any]:
    return [self[operator.index(index)] for index in indices]


class _Watch:
    """Finds no module, and sees by being asked: torch loads more of itself after its `Dataset`.

    It stays where it is: who is asked is in the middle of the list that it would be removed from.
    """

    def __init__(self, cls: type, name: str) -> None:
        self._cls = cls
        self._name = name
        self._is_done = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Nothing."""
        self._is_done = self._is_done or take_up(self._cls, self._name)
