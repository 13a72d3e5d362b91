"""The items of a data set, or of a stream's chunk: which were altered, where each lies in the mapped
artifacts, and a view of their samples.

Items belong to the caller, who may change them while the data set is open. What is preprocessed of an
altered item is not kept, and the item is named.

Invariants:
    1. Distinct items are numbered in the order in which they first occur: work is done in that order.
    2. A digest is found by its first 8 bytes and accepted by all 32.
    3. Under 100 bytes an item are kept, and nothing is looped over in Python.
    4. `Catalogue.places` is replaced, never changed: a reader that took it sees one moment. A slot that it
       names may be let go at any time: who does not find it looks again.
    5. A view never changes, and keeps the maps that it reads.
    6. An item is compared before the function gets it: what the function changes in it is no alteration.
       Nothing is compared that the opening preprocesses: nothing ran since the digests were made.
    7. An item that was found altered stays so: another thread may be at a sample of what it was in between.

Locking: the recipe index's lock guards every change; reading needs none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prepcache.artifact.header import sort_digests
from prepcache.artifact.sample_tree import copied
from prepcache.batching.gather import Rows
from prepcache.digests import DIGEST_BYTES
from prepcache.errors import UnkeyableError
from prepcache.forks import kept
from prepcache.index.recipe_index import RecipeIndex, Slot, matches, ranges, reopened
from prepcache.keys.items import BLOCK_ITEMS, ItemHasher, Stamps
from prepcache.protocol.units import shortened

if TYPE_CHECKING:
    from prepcache.fill.pending import LocalFile
    from prepcache.protocol.wire import ArtifactRef

Array = NDArray[Any]

BLOCK_BYTES = 256 << 10
BLOCK_ROWS = 64  # with 64 rows a sample takes half the time that it takes by itself; with 256 little less
MISSING = -1
FOUND_AT_ONCE = 16_384  # looked for together: sorted, and what that takes is small
SHOWN = 500
"""Characters of an item that an error shows."""
UNSTEADY = (
    "its items are random: item 0 had different bytes when it was read twice, so its samples would never "
    "hit; pass the items before the random step, and move that step to transform="
)
_LISTS = (list, tuple, range, str, bytes, dict)
"""Sequence types that return the same object at every access."""


class Distinct:
    """The distinct item digests of a data set: `digests` uint8[u, 32], `first` int32[u], the position where
    each occurs first, and `inverse` int32[n], the distinct item of each position."""

    def __init__(self, digests: Array) -> None:
        digests = np.ascontiguousarray(digests, "u1").reshape(-1, DIGEST_BYTES)
        words = digests.view("<u8")
        order, is_same = sort_digests(words)
        heads = order[np.concatenate(([True], ~is_same))[: len(order)]]
        by_first = np.argsort(heads, kind="stable")
        number = np.empty(len(heads), "i4")
        number[by_first] = np.arange(len(heads), dtype="i4")
        self.inverse: Array = np.empty(len(order), "i4")
        runs = np.concatenate(([0], np.cumsum(~is_same)))[: len(order)]
        self.inverse[order] = number[runs]
        self.first: Array = heads[by_first].astype("i4")
        self.digests: Array = digests if len(heads) == len(order) else digests[self.first]
        self._of: Array = number
        self._prefix: Array = words[heads, 0]

    def __len__(self) -> int:
        return len(self.first)

    def find(self, table: Array) -> Array:
        """The distinct item of each row of an item table, or `MISSING`: uint8[m, 32] -> int32[m]."""
        found = np.full(len(table), MISSING, "i4")
        if len(self.first):
            own = self.digests.view("<u8")
            for start in range(0, len(table), FOUND_AT_ONCE):
                words = np.ascontiguousarray(table[start : start + FOUND_AT_ONCE]).view("<u8")
                query, at = matches(self._prefix, words[:, 0])
                candidate = self._of[at]
                is_equal = (own[candidate] == words[query]).all(axis=1)
                found[start + query[is_equal]] = candidate[is_equal]
        return found


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


@dataclass(frozen=True, slots=True)
class Places:
    """Where the samples of the distinct items lie."""

    artifact: Array  # int32[u], a slot of the catalogue or `MISSING`
    row: Array  # int64[u], the first row
    count: Array | None  # int64[u], rows of an item that expands, else None (one each)

    def copy(self) -> Places:
        count = None if self.count is None else self.count.copy()
        return Places(self.artifact.copy(), self.row.copy(), count)


def rows_of(inverse: Array, places: Places) -> tuple[Array, Array]:
    """The slot and row of every sample of a data set, in order: int32[samples], int64[samples]. A missing
    item of one sample gives the slot `MISSING`; one that expands gives nothing."""
    if places.count is None:
        return places.artifact[inverse], places.row[inverse]
    counts = np.where(places.artifact >= 0, places.count, 0)[inverse]
    return np.repeat(places.artifact[inverse], counts), ranges(places.row[inverse], counts)


class Catalogue:
    """What of some items is there, in which artifacts by number; `version` rises with every change."""

    def __init__(self, distinct: Distinct, index: RecipeIndex, *, is_expanded: bool = False) -> None:
        self.distinct = distinct
        self.index = index
        rows = np.zeros(len(distinct), "i8")
        self.places = Places(np.full(len(distinct), MISSING, "i4"), rows, rows if is_expanded else None)
        self.slots: dict[int, Slot] = {}
        self.version = 0
        with index.lock:
            index.catalogues.add(self)
            if index.slots:
                self.take_in(index.slots, (), index.find(distinct.digests))

    def __getstate__(self) -> dict[str, Any]:
        own = {number: slot.address() for number, slot in list(self.slots.items()) if slot.ref is None}
        return self.__dict__ | {"slots": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = reopened(state.pop("slots"))
        self.__dict__.update(state)
        # What was made since the index was sent has a number that the index here gives to another artifact.
        first = next(self.index.numbers)
        there = self.index.slots | {number: slot for number, slot in own.items() if number < first}
        used = self._used(self.places)
        self.slots = {number: there[number] for number in used if number in there}
        self.lose(used - set(self.slots))
        self.index.catalogues.add(self)

    @property
    def missing(self) -> Array:
        return np.flatnonzero(self.places.artifact == MISSING)

    def slot_of(self, index: int) -> tuple[Slot | None, int]:
        """The slot and row of a distinct item, or no slot if it is missing."""
        while True:
            places = self.places
            number = int(places.artifact[index])
            held = self.slots.get(number)
            if held is not None or number == MISSING:  # else it was let go this moment: look again
                return held, int(places.row[index])

    @property
    def refs(self) -> list[ArtifactRef]:
        return [slot.ref for slot in list(self.slots.values()) if slot.ref is not None]

    @property
    def kept(self) -> int:
        return int(np.count_nonzero(self.is_shared(np.arange(len(self.distinct)))))

    def is_shared(self, indices: Any) -> Array:
        """Of distinct items, which are in artifacts that other jobs have, too; `bool[k]`."""
        there = self.places.artifact[np.asarray(indices, "i8")]
        found: Array = (there != MISSING) & ~np.isin(there, self._own())
        return found

    def _own(self) -> Array:
        return np.array([number for number, slot in list(self.slots.items()) if slot.ref is None], "i4")

    # -- changes: call these with the index's lock

    def take_in(
        self,
        new: Mapping[int, Slot],
        stale: Collection[int],
        hits: Iterable[tuple[int, Array, Array]] | None = None,
    ) -> int:
        """Finds what is missing, lies in stale artifacts, or only this job has, in new artifacts, the highest
        edition first; how many were missing. `hits` are as `RecipeIndex.find` gives them."""
        places = self.places.copy()
        missing = self.missing
        moving = [*stale, *self._own()]  # what only this job has holds the same samples
        is_stale = np.isin(places.artifact, np.array(moving, "i4"))
        if hits is None:
            hits = ((number, *self._found_in(slot)) for number, slot in new.items())
        for number, items, rows in hits:
            self._place(places, number, new[number], items, rows, is_stale)
        self._publish(places)
        return int(np.count_nonzero(self.places.artifact[missing] != MISSING))

    def add_local(self, file: LocalFile) -> None:
        """Finds what is missing in an artifact that only this job has. It takes the lock."""
        with self.index.lock:
            places = self.places.copy()
            slot, is_stale = Slot(file.artifact, None, file), np.zeros(len(places.artifact), "?")
            self._place(places, next(self.index.numbers), slot, *self._found_in(slot), is_stale)
            self._publish(places)

    def lose(self, numbers: Collection[int]) -> int:
        """Drops these slots; how many items are missing again."""
        if not numbers:
            return 0
        places, missing = self.places.copy(), len(self.missing)
        places.artifact[np.isin(places.artifact, [*numbers])] = MISSING
        self._publish(places)
        return len(self.missing) - missing

    def _found_in(self, slot: Slot) -> tuple[Array, Array]:
        found = self.distinct.find(slot.artifact.item_digests)
        rows = np.flatnonzero(found != MISSING)
        return found[rows], rows

    def _place(
        self, places: Places, number: int, slot: Slot, items: Array, rows: Array, is_stale: Array
    ) -> None:
        mapped = slot.artifact
        self.slots[number] = slot
        is_wanted = (places.artifact[items] == MISSING) | is_stale[items]
        rows, items = rows[is_wanted], items[is_wanted]
        is_stale[items] = False
        places.row[items] = mapped.first_row[rows]
        places.artifact[items] = number
        if places.count is not None:
            places.count[items] = mapped.row_count[rows]

    def _publish(self, places: Places) -> None:
        """Makes `places` the current ones, and drops slots that they do not name."""
        used = self._used(places)
        self.places = places  # first: who finds a slot gone looks again, and finds the item elsewhere
        self.slots = {number: slot for number, slot in self.slots.items() if number in used}
        self.version += 1

    def _used(self, places: Places) -> set[int]:
        counts = np.bincount(places.artifact + 1)[1:]  # np.unique would sort
        return set(np.flatnonzero(counts).tolist())


class View(Rows):
    """The samples of a data set that are there: no item is missing where it `is_whole`."""

    def __init__(self, catalogue: Catalogue) -> None:
        while True:
            self.version, places = catalogue.version, catalogue.places
            slots, rows = rows_of(catalogue.distinct.inverse, places)
            used = np.flatnonzero(np.bincount(slots + 1)[1:])  # np.unique would sort
            held = [catalogue.slots.get(slot) for slot in used.tolist()]
            artifacts = [slot.artifact for slot in held if slot is not None]
            if len(artifacts) == len(held):  # else one was let go this moment: look again
                break
        self.is_whole = bool((places.artifact != MISSING).all())
        number = np.full(used[-1] + 2 if len(used) else 1, MISSING, np.int32)  # the last for `MISSING`
        number[used] = np.arange(len(used), dtype=np.int32)
        super().__init__(artifacts, number[slots], rows)

    @kept
    def block_rows(self) -> int:
        if not self.is_whole or not self._artifacts:
            return 1
        rows: int = sum(artifact.rows for artifact in self._artifacts)
        nbytes: int = sum(artifact.size_bytes for artifact in self._artifacts)
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES * rows // nbytes))
