"""The items of a data set as they were digested, and which of them were altered since.

Items belong to the caller, who may change them while the data set is open. What is preprocessed of an
altered item is not kept, and the item is named.

Invariants:
    1. An item is compared before the function gets it: what the function changes in it is no alteration.
    2. Nothing is compared that the opening preprocesses: nothing ran since the digests were made.
    3. An item that was found altered stays so: another thread may be at a sample of what it was in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prepcache.artifact.sample_tree import copied
from prepcache.errors import UnkeyableError
from prepcache.index.item_index import Array, Distinct
from prepcache.keys.items import BLOCK_ITEMS, ItemHasher, Stamps
from prepcache.protocol.units import shortened

SHOWN = 500
"""Characters of an item that an error shows."""
UNSTEADY = (
    "its items are random: item 0 had different bytes when it was read twice, so its samples would never "
    "hit; pass the items before the random step, and move that step to transform="
)
_LISTS = (list, tuple, range, str, bytes, dict)
"""Sequence types that return the same object at every access."""


class Originals:
    """Gives items by their distinct number.

    Args:
        numbers: by which people know the items, where they are part of a stream; by default, their positions.
    """

    def __init__(
        self, items: Sequence[Any], distinct: Distinct, stamps: Stamps, numbers: Sequence[int] | None = None
    ) -> None:
        self._items = items
        self._numbers = numbers
        self._distinct = distinct
        self._stamps = stamps
        self._altered: set[int] = set()
        self._is_opening = True
        self.is_unsteady = False

    def read_again(self, hasher: ItemHasher) -> None:
        """Finds out whether a wrapped data set gives another item each time, as one that draws does."""
        if isinstance(self._items, _LISTS) or not len(self._items):
            return
        try:
            digests = hasher.digest_many([self._items[0]]).digests
        except UnkeyableError:
            return
        self.is_unsteady = bool((digests[0] != self._distinct.digests[self._distinct.inverse[0]]).any())

    def item(self, index: int) -> Any:
        """An item, in memory of its own where the sequence may give the next one in the same."""
        item = self._items[int(self._distinct.first[index])]
        return item if isinstance(self._items, _LISTS) else copied(item)

    def position(self, index: int) -> int:
        at = int(self._distinct.first[index])
        return at if self._numbers is None else self._numbers[at]

    def name(self, index: int, chars: int = SHOWN) -> str:
        shown = shortened(repr(self.item(index)), chars)
        is_alone = self._numbers is None and len(self._items) == 1
        return shown if is_alone else f"item {self.position(index)} ({shown})"

    def changed(self, index: int) -> list[str]:
        """The names in an item of files that are no longer what they were; the item itself, if altered."""
        at, shown = int(self._distinct.first[index]), f"item {self.position(index)}"
        changed = [shown if name == f"item {at}" else name for name in self._stamps.changed(at)]
        return changed or ([shown] if index in self._altered else [])

    def compared(self, index: int) -> Any:
        item = self.item(index)
        self._note([index], [item])
        return item

    def compare(self, indices: Array) -> None:
        """Compares items that are about to be preprocessed; none while the data set is being opened."""
        if self._is_opening:
            self._is_opening = False
            return
        for start in range(0, len(indices), BLOCK_ITEMS):
            some = indices[start : start + BLOCK_ITEMS].tolist()
            self._note(some, [self.item(index) for index in some])

    def end_opening(self) -> None:
        self._is_opening = False

    def _note(self, indices: list[int], items: list[Any]) -> None:
        try:
            digests = self._stamps.hasher.digests_now(items)
        except UnkeyableError:  # of one of them
            self._altered.update(indices)
            return
        pairs = zip(indices, digests, strict=True)
        own = self._distinct.digests
        self._altered.update(index for index, digest in pairs if digest != bytes(own[index]))
