"""The recipe index of a stream: all mapped artifacts of a recipe, and where their items are.

A stream looks up a few thousand items at a time. Searching every item table for them would cost more, with
a million items in the cache, than reading the samples.

Invariants:
    1. An item is found by the first 8 bytes of its digest and accepted by all 32.
    2. A slot's number is never given to another artifact.
    3. 16 bytes an item are kept, in sorted arrays.
    4. What was made while the daemon was away, or stores slowly, is found as long as it waits for the daemon:
       the next epoch may come sooner.

Locking: `_lock` guards everything; it is taken within the lock of a `ChunkCatalogue`, never the other way
round.
Not here: requests (artifact_set.py), what becomes of what is found (catalogue.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from prepcache.digests import DIGEST_BYTES
from prepcache.fill.commit import Batch
from prepcache.fill.overflow import Spilled
from prepcache.index.catalogue import Catalogue, more_digest
from prepcache.index.item_index import MISSING, Array, Distinct, ranges
from prepcache.index.mapped import NO_INPUTS, MappedArtifacts, Observed, OpenRef, Slot, Verdicts
from prepcache.protocol.wire import ArtifactRef

Hits = list[tuple[Slot, Array, Array]]
"""An artifact, which of the digests that were asked for are in it, and their rows in its item table."""
_Run = tuple[Array, Array, Array]
"""Sorted first 8 bytes of digests, and for each the number of its slot and its row in the item table."""
_NONE: _Run = np.empty(0, "<u8"), np.empty(0, "i4"), np.empty(0, "i4")


class RecipeIndex(MappedArtifacts):
    """What the cache has of a recipe; the index of an `ArtifactSet` whose items are not known beforehand."""

    missing: Array = np.empty(0, "i4")
    """Each chunk finds out what it lacks."""

    def __init__(self, open_ref: OpenRef) -> None:
        super().__init__(open_ref)
        self._slots: dict[int, Slot] = {}
        self._last = 0
        self._run = _NONE
        self._waiting: weakref.WeakSet[Batch] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        """Another process maps for itself; which edition this job writes is all that it has to know."""
        return {"edition": self.edition, "_is_refreshing": self._is_refreshing}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(_opens_nothing)  # type: ignore[misc]
        self.__dict__.update(state)

    @property
    def refs(self) -> list[ArtifactRef]:
        """The artifacts that are mapped."""
        return [slot.ref for slot in list(self._slots.values()) if slot.ref is not None]

    @property
    def items(self) -> int:
        """How many items are in them; one that is in two counts twice."""
        return sum(slot.artifact.items for slot in list(self._slots.values()))

    def absorb(
        self,
        refs: Sequence[ArtifactRef],
        observed: Observed = NO_INPUTS,
        *,
        is_complete: bool = False,
        is_own: bool = False,
    ) -> tuple[list[int], list[ArtifactRef]]:
        """Maps artifacts that are new to it; otherwise as `Catalogue.absorb`, by artifacts instead of items.

        Returns:
            The numbers of those that are new, and the artifacts without use.

        Raises:
            DaemonUnreachable: as there.
        """
        with self._lock:
            opened, gone = self._open_new(refs, observed, is_own=is_own)
            names = {ref.digest for ref in refs}
            gone += self.let_go([d for d in self._by_digest if d not in names]) if is_complete else []
            new = {self._last + number: slot for number, slot in enumerate(opened, 1)}
            self._last += len(new)
            self._slots.update(new)
            if new:
                self._add(list(new), self._run)
            # Last: a child that was forked meanwhile maps once more what its index lacks.
            self._by_digest.update({slot.ref.digest: number for number, slot in new.items() if slot.ref})
            return list(new), gone

    def let_go(self, digests: Iterable[str]) -> list[ArtifactRef]:
        """Drops artifacts that were merged, purged or evicted.

        Returns:
            Those that were mapped.
        """
        with self._lock:
            gone = [self._slots.pop(self._by_digest.pop(d)) for d in digests if d in self._by_digest]
            if len(self._run[0]) > 2 * self.items:
                self._add(list(self._slots))
            return [slot.ref for slot in gone if slot.ref is not None]

    def _add(self, numbers: Sequence[int], known: _Run = _NONE) -> None:
        """Finds items in these artifacts, too.

        Args:
            known: where the items of others are.
        """
        tables = [self._slots[number].artifact.item_digests for number in numbers]
        counts = [len(table) for table in tables]
        new = (
            np.concatenate([known[0], *(np.ascontiguousarray(table).view("<u8")[:, 0] for table in tables)]),
            np.concatenate([known[1], np.repeat(np.array(numbers, "i4"), counts)]),
            np.concatenate([known[2], *(np.arange(count, dtype="i4") for count in counts)]),
        )
        order = np.argsort(new[0], kind="stable")  # quick, as most of it is in order
        self._run = new[0][order], new[1][order], new[2][order]  # at once: a child may be forked now

    def note_waiting(self, batches: Iterable[Batch]) -> None:
        """Batches that are in files of this process; whoever will commit them keeps them alive."""
        with self._lock:
            self._waiting.update(batches)

    @property
    def waiting(self) -> list[list[Spilled]]:
        """What waits for the daemon, those files together that have pieces of one item."""
        with self._lock:
            batches = list(self._waiting)
        kept = [[one for one in batch.writers if isinstance(one, Spilled)] for batch in batches]
        return [files for files in kept if all(file.artifact.edition >= self.edition for file in files)]

    def find(self, digests: Array) -> Hits:
        """Where these items are, in every artifact that has them.

        Shape:
            digests: uint8[k, 32].
        """
        words = np.ascontiguousarray(digests).view("<u8")
        order = np.argsort(words[:, 0], kind="stable")  # sorted queries walk the arrays in order
        asked = words[order, 0]
        with self._lock:
            prefix, number, row = self._run
            slots = {one: slot for one, slot in self._slots.items() if slot.edition >= self.edition}
        first = np.searchsorted(prefix, asked, "left")
        count = np.searchsorted(prefix, asked, "right") - first
        at = ranges(first, count)
        query, number, row = np.repeat(order, count), number[at], row[at]
        hits = []
        for one in np.unique(number).tolist():
            if (slot := slots.get(one)) is None:
                continue  # it was let go, and is not out of the index yet; or replaced
            at = np.flatnonzero(number == one)
            table = slot.artifact.item_digests.view("<u8")
            at = at[(table[row[at]] == words[query[at]]).all(axis=1)]
            if len(at):
                hits.append((slot, query[at], row[at]))
        return hits


class ChunkCatalogue(Catalogue):
    """Where the items of a chunk lie: found in the recipe index, or made since."""

    def __init__(self, distinct: Distinct, index: RecipeIndex, *, is_expanded: bool) -> None:
        super().__init__(distinct, _opens_nothing, is_expanded=is_expanded)
        self._index = index
        self._hits: dict[str, tuple[Array, Array]] = {}
        self.place()

    def absorb(
        self,
        refs: Sequence[ArtifactRef],
        observed: Observed = NO_INPUTS,
        *,
        is_complete: bool = False,
        is_own: bool = False,
    ) -> tuple[Array, list[ArtifactRef]]:
        """As `Catalogue.absorb`; what is new is in the recipe index then, for the chunks to come."""
        _, useless = self._index.absorb(refs, observed, is_complete=is_complete, is_own=is_own)
        return self.place(), useless

    def place(self) -> Array:
        """Finds in the recipe index what is missing, and what only this job has, which goes then; gives those
        that were missing and are there now.
        """
        with self._lock:
            self.edition = self._index.edition
            missing, own = self.missing, self._own
            is_stale = np.isin(self.places.artifact, own)
            wanted = np.flatnonzero(is_stale | (self.places.artifact == MISSING))
            hits = self._index.find(self.distinct.digests[wanted]) if len(wanted) else []
            if hits:
                self._place_all(hits, wanted, is_stale, own)
            for files in self._index.waiting if len(self.missing) else ():
                if any((self.distinct.find(file.artifact.item_digests) != MISSING).any() for file in files):
                    self.add_local(files)
            found: Array = missing[self.places.artifact[missing] != MISSING]
            return found

    def _place_all(self, hits: Hits, wanted: Array, is_stale: Array, own: list[int]) -> None:
        places = self.places.copy()
        for slot, query, rows in sorted(hits, key=lambda hit: -hit[0].edition):
            if slot.ref is not None and slot.ref.digest not in self._by_digest:
                self._hits[slot.ref.digest] = rows, wanted[query]
                self._by_digest[slot.ref.digest] = len(self.slots)
                self._place(places, slot, is_stale)
        self._join(places)
        self._publish(places, own)

    def note_waiting(self, batches: Iterable[Batch]) -> None:
        """For the chunks to come: the recipe index has them, too."""
        self._index.note_waiting(batches)

    def _rows_in(self, slot: Slot) -> tuple[Array, Array]:
        return super()._rows_in(slot) if slot.ref is None else self._hits[slot.ref.digest]

    def _cut_in(self, slot: Slot, items: Array) -> list[int]:
        if slot.ref is None:
            return super()._cut_in(slot, items)
        marks = [more_digest(self.distinct.digest(i), 0) for i in items.tolist()]
        asked = np.frombuffer(b"".join(marks), "u1").reshape(-1, DIGEST_BYTES)
        return [i for found, query, _ in self._index.find(asked) if found is slot for i in items[query]]

    def _search(self, digest: bytes, edition: int) -> tuple[int, int, int] | None:
        for slot, _, rows in self._index.find(np.frombuffer(digest, "u1").reshape(1, -1)):
            if slot.edition == edition and slot.ref is not None:
                if slot.ref.digest not in self._by_digest:
                    self._hits[slot.ref.digest] = rows[:0], rows[:0]
                    self._by_digest[slot.ref.digest] = len(self.slots)
                    self.slots.append(slot)
                row = int(rows[0])
                number = self._by_digest[slot.ref.digest]
                return number, int(slot.artifact.first_row[row]), int(slot.artifact.row_count[row])
        return super()._search(digest, edition)

    def _is_read_through(self, slot: Slot) -> bool:
        return slot.ref is None


def _opens_nothing(ref: ArtifactRef, observed: Observed, verdicts: Verdicts) -> None:
    """Artifacts come from the recipe index."""
