"""The catalogue of a data set: the artifacts that it has mapped, and where each distinct item lies in them.

Invariants:
    1. `places` is replaced, never changed: a reader that took it sees one moment, and the artifacts in
       `slots` that it points to stay mapped as long as the reader refers to them.
    2. An item is found only whole: one that spans artifacts is missing until all its pieces are there.
    3. A slot's number is never given to another artifact.

Locking: `_lock` guards every change; reading `places` and `slots` needs none.

NOTE [ Items that span artifacts ]
    An item that expands to more than fits one artifact is stored in pieces. The first is stored under the
    item's own digest, piece k under `piece_digest(item, k)`. An artifact that holds a piece which is not
    the last also has, with no rows, the mark `more_digest(item, k)`. Digests name the pieces because the
    item table is what merging keeps, whatever else it changes; they are leased and committed like items.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from prepcache.index.item_index import MISSING, Array, Distinct, Places
from prepcache.index.mapped import NO_INPUTS, MappedArtifacts, Observed, OpenRef, Slot, reopened
from prepcache.protocol.wire import ArtifactRef

if TYPE_CHECKING:
    from prepcache.fill.commit import Batch
    from prepcache.fill.overflow import Spilled

NOTHING_NEW: Mapping[str, int] = {}
_PIECE = b"prepcache piece v1\0"
_MORE = b"prepcache more v1\0"


def piece_digest(item: bytes, number: int) -> bytes:
    """The digest under which piece `number` of an item is stored; piece 0 is the item itself."""
    return item if number == 0 else blake3(_PIECE + item + number.to_bytes(8, "little")).digest()


def more_digest(item: bytes, number: int) -> bytes:
    """The digest of the mark that piece `number` is not the last one."""
    return blake3(_MORE + item + number.to_bytes(8, "little")).digest()


class Catalogue(MappedArtifacts):
    """What of a data set is there.

    Args:
        distinct: the items.
        open_ref: as in `MappedArtifacts`.
        is_expanded: whether items give any number of samples.

    `inherited` counts the slots that came from the process that started this one.
    """

    def __init__(self, distinct: Distinct, open_ref: OpenRef, *, is_expanded: bool = False) -> None:
        super().__init__(open_ref)
        self.distinct = distinct
        self.places = Places.nowhere(len(distinct), is_expanded=is_expanded)
        self.slots: list[Slot | None] = []
        self.inherited = 0
        self.version = 0
        self._cut: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Maps do not travel: paths do, and descriptors of the process that has the file."""
        kept: list[Any] = []
        for slot in self.slots:
            if slot is None:
                kept.append(None)
            elif slot.spilled is not None:
                kept.append(slot.spilled.address)
            else:
                kept.append((slot.ref, slot.artifact.path, slot.artifact.recipe))
        gone = ("_lock", "_open_ref", "slots")
        return {k: v for k, v in self.__dict__.items() if k not in gone} | {"kept": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state.pop("kept")
        self.__dict__.update(state)
        self._lock = threading.RLock()
        self.slots = [None if one is None else reopened(one) for one in kept]
        self.inherited = len(kept)
        lost = [n for n, one in enumerate(kept) if one is not None and self.slots[n] is None]
        if lost:
            self._lose(lost)

    def reset_lock(self) -> None:
        super().reset_lock()
        self.inherited = len(self.slots)

    @property
    def is_known_to_parent(self) -> bool:
        """Whether no item lies in a file that this process alone has."""
        return not any(slot is not None and slot.ref is None for slot in self.slots[self.inherited :])

    @property
    def missing(self) -> Array:
        """The distinct items that are not there, in order."""
        return np.flatnonzero(self.places.artifact == MISSING)

    def slot_of(self, index: int) -> tuple[Slot | None, int]:
        """The slot and row of a distinct item, or no slot if it is missing."""
        while True:
            places = self.places
            held = None if (slot := int(places.artifact[index])) == MISSING else self.slots[slot]
            if slot == MISSING or held is not None:  # else it was let go this moment: look again
                return held, int(places.row[index])

    def place(self) -> Array | None:
        """Finds items in artifacts that others have absorbed since; None where nobody else absorbs them."""
        return None

    def holds(self, positions: Array) -> bool:
        """Whether the items at these positions of the data set are all there."""
        return bool((self.places.artifact[self.distinct.inverse[positions]] != MISSING).all())

    def is_missing(self, index: int) -> bool:
        """Whether a distinct item is not there."""
        return bool(self.places.artifact[index] == MISSING)

    @property
    def refs(self) -> list[ArtifactRef]:
        """The shared artifacts that are mapped."""
        return [slot.ref for slot in self.slots if slot is not None and slot.ref is not None]

    @property
    def kept(self) -> int:
        """How many distinct items the cache holds, and not only this job."""
        shared = [n for n, slot in enumerate(self.slots) if slot is not None and slot.ref is not None]
        return int(np.isin(self.places.artifact, shared).sum())

    def absorb(
        self,
        refs: Sequence[ArtifactRef],
        observed: Observed = NO_INPUTS,
        *,
        is_complete: bool = False,
        is_own: bool = False,
    ) -> tuple[Array, list[ArtifactRef]]:
        """Maps artifacts that are new to it, and finds items in them: what is missing, and what only this
        job has, which goes then.

        Args:
            observed: the chunks of inputs that they name.
            is_complete: these are all that the recipe has; items move out of any other (it was merged).
            is_own: this job has just committed them, and looked at their inputs for that.

        Returns:
            The distinct items that were missing and are there now, and the artifacts without use.

        Raises:
            DaemonUnreachable: one could not be fetched, so whether it is there cannot be told: none is taken.
        """
        with self._lock:
            opened, gone = self._open_new(refs, observed, is_own=is_own)
            places = self.places.copy()
            was_missing = places.artifact == MISSING
            names = {ref.digest for ref in refs}
            stale = [n for d, n in self._by_digest.items() if is_complete and d not in names]
            stale += self._own  # they hold the same samples
            is_stale = np.isin(places.artifact, stale) if stale else np.zeros(len(places.artifact), "?")
            new = dict[str, int]()
            for slot in opened:
                assert slot.ref is not None
                new[slot.ref.digest] = len(self.slots)
                stale.append(len(self.slots))
                self._place(places, slot, is_stale)
            self._join(places)
            useless = self._publish(places, stale, new)
            return np.flatnonzero(was_missing & (places.artifact != MISSING)), gone + useless

    def add_local(self, files: Iterable[Spilled]) -> None:
        """Takes artifacts that only this job has, and items in them that are missing."""
        with self._lock:
            places = self.places.copy()
            for file in files:
                self._place(places, Slot(file.artifact, None, file), np.zeros(len(places.artifact), "?"))
            self._join(places)
            self._publish(places, self._own)

    def note_waiting(self, batches: Iterable[Batch]) -> None:
        """Batches of its items wait in this process for the daemon; `add_local` has taken what is in them."""

    def is_shared(self, indices: Array) -> Array:
        """Of distinct items, which are in artifacts that other jobs have, too; `bool[k]`."""
        there = self.places.artifact[indices]
        found: Array = (there != MISSING) & ~np.isin(there, self._own)
        return found

    @property
    def _own(self) -> list[int]:
        """The slots that only this job has."""
        return [number for number, slot in enumerate(self.slots) if slot is not None and slot.ref is None]

    def let_go(self, digests: Iterable[str]) -> list[ArtifactRef]:
        """Drops artifacts that were purged or evicted; their items are missing again.

        Returns:
            Those that were mapped.
        """
        with self._lock:
            return self._lose([self._by_digest[d] for d in digests if d in self._by_digest])

    def _lose(self, numbers: Sequence[int]) -> list[ArtifactRef]:
        places = self.places.copy()
        places.artifact[np.isin(places.artifact, numbers)] = MISSING
        for index, pieces in list(places.chains.items()):
            if any(slot in numbers for slot, _, _ in pieces):
                places.artifact[index] = MISSING
                del places.chains[index]
        return self._publish(places, numbers)

    def _place(self, places: Places, slot: Slot, is_stale: Array) -> None:
        """Finds items in an artifact."""
        mapped, number = slot.artifact, len(self.slots)
        self.slots.append(slot)
        rows, target = self._rows_in(slot)
        is_wanted = (places.artifact[target] == MISSING) | is_stale[target]
        rows, target = rows[is_wanted], target[is_wanted]
        is_stale[target] = False
        places.row[target] = mapped.first_row[rows]
        places.artifact[target] = number
        if places.count is not None:
            places.count[target] = mapped.row_count[rows]
            self._cut.difference_update(target.tolist() if self._cut else ())
            self._cut.update(self._cut_in(slot, target))

    def _rows_in(self, slot: Slot) -> tuple[Array, Array]:
        """The rows of an artifact's item table that are of items here, and those items."""
        found = self.distinct.find(slot.artifact.item_digests)
        rows = np.flatnonzero(found != MISSING)
        return rows, found[rows]

    def _cut_in(self, slot: Slot, items: Array) -> list[int]:
        """Of items that are in an artifact, those that go on in another piece."""
        mapped = slot.artifact
        marks = {bytes(digest) for digest in mapped.item_digests[mapped.row_count == 0]}
        return [i for i in items.tolist() if marks and more_digest(self.distinct.digest(i), 0) in marks]

    def _join(self, places: Places) -> None:
        """Joins the pieces of items that span artifacts; hides those of which a piece is not there."""
        for index in self._cut:
            pieces = self._pieces_of(index)
            places.chains.pop(index, None)
            places.artifact[index] = MISSING
            if pieces and places.count is not None:
                places.chains[index] = tuple(pieces)
                places.artifact[index] = pieces[0][0]
                places.count[index] = sum(rows for _, _, rows in pieces)

    def _pieces_of(self, index: int) -> list[tuple[int, int, int]]:
        """All pieces of an item, in order, of the highest edition that has it; none if one is not there."""
        item = self.distinct.digest(index)
        for edition in sorted({slot.edition for slot in self.slots if slot is not None}, reverse=True):
            pieces: list[tuple[int, int, int]] = []
            while piece := self._search(piece_digest(item, len(pieces)), edition):
                pieces.append(piece)
                if self._search(more_digest(item, len(pieces) - 1), edition) is None:
                    return pieces
            if pieces:
                return []
        return []

    def _search(self, digest: bytes, edition: int) -> tuple[int, int, int] | None:
        """(slot, first row, rows) of any digest, looked for in every table; for the few that are cut."""
        words = np.frombuffer(digest, "<u8")
        for number, slot in enumerate(self.slots):
            if slot is not None and slot.edition == edition and self._is_read_through(slot):
                table = slot.artifact.item_digests.view("<u8")
                for row in np.flatnonzero(table[:, 0] == words[0]).tolist():
                    if (table[row] == words).all():
                        return number, int(slot.artifact.first_row[row]), int(slot.artifact.row_count[row])
        return None

    def _is_read_through(self, slot: Slot) -> bool:
        """Whether there is no index of what is in an artifact."""
        return True

    def _publish(
        self, places: Places, candidates: Sequence[int], new: Mapping[str, int] = NOTHING_NEW
    ) -> list[ArtifactRef]:
        """Makes `places` the current ones; drops those of the candidates that nothing refers to.

        Args:
            new: slots of artifacts that are known from now on. A child that was forked before maps them once
                more.
        """
        refs = []
        used = {slot for pieces in places.chains.values() for slot, _, _ in pieces}
        used.update(np.flatnonzero(np.bincount(places.artifact + 1)) - 1)  # np.unique would sort
        self.places = places  # first: who finds a slot empty looks again, and finds it elsewhere
        self._by_digest.update(new)
        for number in candidates:
            slot = self.slots[number]
            if slot is None or number in used:
                continue
            if slot.ref is not None:
                refs.append(slot.ref)
                del self._by_digest[slot.ref.digest]
            self.slots[number] = None
        self.version += 1
        return refs
