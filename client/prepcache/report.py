"""The report of a data set: what was there, what was preprocessed, and what that cost.

Invariants:
    1. The counts are in memory that forked DataLoader workers share: what they preprocess of a lazy data set
       is in the report of the job. A spawned worker counts for itself.
    2. `hit + computed + waited <= items`. They are equal once `prepare()` has returned, the daemon was there
       and nothing was declined. An item that equals an earlier one of the data set counts as a hit.
    3. A declined item is also computed as soon as this job has preprocessed it: `declined` says what is not
       kept, `computed` what was done.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.index.item_index import MISSING, Distinct
from prepcache.protocol.units import count_text, size_text, span_text

if TYPE_CHECKING:
    from prepcache.fill.filler import Filled
    from prepcache.index.item_index import Catalogue


@dataclass(frozen=True, slots=True)
class Report:
    """Where the samples of a data set came from.

    Args:
        items: items in the data set, equal ones included.
        hit: items that were there when the data set was opened.
        computed: distinct items that this process preprocessed, or a DataLoader worker that it forked; kept
            or not.
        waited: distinct items that other jobs preprocessed while this one was preparing.
        declined: distinct items that the cache had no room for; they are preprocessed on every access.
        bytes: bytes of the artifacts that hold the data set's samples, by its share of their items.
        seconds: seconds spent inside the preprocessing function, over all workers.
        seconds_saved: seconds that the samples found had cost the jobs that made them.
        why: what explains the misses, one line each.
    """

    items: int
    hit: int
    computed: int
    waited: int
    declined: int
    bytes: int
    seconds: float
    seconds_saved: float
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [count_text(self.items, "item", "items"), f"{self.hit:,} hit", f"{self.computed:,} computed"]
        if self.waited:
            parts.append(f"{self.waited:,} computed by other jobs")
        if self.declined:
            parts.append(f"{self.declined:,} declined (no room in the cache)")
        parts.append(f"{size_text(self.bytes)}, {span_text(self.seconds)} spent")
        parts.append(f"{span_text(self.seconds_saved)} saved")
        return ", ".join(parts)


_UNKNOWN, _HIT, _WAITED, _DECLINED = range(4)


def shared_zeros(count: int, dtype: str) -> np.ndarray[Any, Any]:
    """An array that forked children write into, too."""
    if not count:
        return np.zeros(0, dtype)
    return np.frombuffer(mmap.mmap(-1, count * np.dtype(dtype).itemsize), dtype)


Found = tuple[int, float]
"""How many items others have made, or earlier jobs, and the seconds that they have cost."""


class Tally:
    """Counts, item by item, where a data set's samples came from."""

    def __init__(self, distinct: Distinct, catalogue: Catalogue) -> None:
        self.why: list[str] = []
        self._catalogue = catalogue
        self._state = shared_zeros(len(distinct), "u1")
        self._made = shared_zeros(len(distinct), "u1")  # 1: preprocessed by this job
        self._cost_s = shared_zeros(len(distinct), "f8")  # of items made on access
        self._seconds = 0.0
        self._said: set[str] = set()

    def note_hits(self) -> Found:
        """What is there now was there at the opening."""
        hits = np.flatnonzero(self._catalogue.places.artifact != MISSING)
        self._state[hits] = _HIT
        return self._found(hits)

    def note_fill(self, filled: Filled, todo: Any) -> Found:
        """What was computed of what there was to do, and what others have made meanwhile."""
        self._made[filled.computed] = 1
        self._state[filled.waited] = _WAITED
        self._seconds += filled.seconds
        if filled.is_declined:
            self._state[np.intersect1d(self._catalogue.missing, todo)] = _DECLINED
        if filled.drawn:
            self._said.add("drawn")
        return self._found(filled.waited)

    def _found(self, items: Any) -> Found:
        """Counts items that this job has not made; each has cost its share of what its artifact did."""
        places = self._catalogue.places.artifact[items]
        counts = np.bincount(places[places != MISSING])
        saved_s = 0.0
        for number in np.flatnonzero(counts).tolist():
            slot = self._catalogue.slots.get(number)
            if slot is not None and slot.ref is not None and slot.ref.items:
                saved_s += slot.ref.cost_s * min(1.0, counts[number] / slot.ref.items)
        return int(counts.sum()), float(saved_s)

    def note_made(self, index: int, cost_s: float) -> None:
        """An item was preprocessed on access."""
        self._cost_s[index] += cost_s
        self._made[index] = 1
        if self._state[index] != _DECLINED:
            self._state[index] = _UNKNOWN

    def note_changed(self, index: int, names: list[str]) -> bool:
        """Whether this item's change is to be said now: once."""
        if not self.note_once(f"item {index}"):
            return False
        self.why.append(f"{', '.join(names[:3])} changed since the data set was opened")
        return True

    def count_not_kept(self) -> int:
        """How many items were preprocessed, are nowhere, and were not declined."""
        is_missing = self._catalogue.places.artifact == MISSING
        return int(np.count_nonzero(is_missing & (self._made == 1) & (self._state != _DECLINED)))

    def not_kept(self) -> list[str]:
        """Says how many samples were made and are nowhere: they are made at each access."""
        count = self.count_not_kept()
        if not count:
            return []
        return [f"the samples of {count_text(count, 'computed item', 'computed items')} are not stored yet"]

    def note_once(self, topic: str) -> bool:
        """Whether something of this topic is to be said now: once."""
        is_new = topic not in self._said
        self._said.add(topic)
        return is_new

    def report(self, why: tuple[str, ...]) -> Report:
        inverse = self._catalogue.distinct.inverse
        counts = np.bincount(self._state, minlength=4)
        is_new = (self._made == 1) | (self._state > _HIT)
        # Of equal items one was computed, waited for or declined; the others found it there.
        again = np.count_nonzero(is_new[inverse]) - np.count_nonzero(is_new)
        hit = int(np.count_nonzero((self._state == _HIT)[inverse]) + again)
        nbytes, saved_s = self._of_artifacts()
        return Report(
            items=len(inverse),
            hit=hit,
            computed=int(np.count_nonzero(self._made)),
            waited=int(counts[_WAITED]),
            declined=int(counts[_DECLINED]),
            bytes=nbytes,
            seconds=self._seconds + float(self._cost_s.sum()),
            seconds_saved=saved_s,
            why=why,
        )

    def _of_artifacts(self) -> tuple[int, float]:
        """Bytes that hold the samples, and what others had spent on them."""
        places = self._catalogue.places
        nbytes = saved_s = 0.0
        used, counts = np.unique(places.artifact[places.artifact != MISSING], return_counts=True)
        for number, count in zip(used.tolist(), counts.tolist(), strict=True):
            slot = self._catalogue.slots.get(number)
            if slot is None or not slot.artifact.items:
                continue
            nbytes += slot.artifact.size_bytes * min(1.0, count / slot.artifact.items)
            foreign = np.isin(self._state[places.artifact == number], (_HIT, _WAITED)).sum()
            saved_s += slot.artifact.cost_s * min(1.0, float(foreign) / slot.artifact.items)
        return int(nbytes), saved_s
