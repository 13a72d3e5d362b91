"""A view of a data set: its samples, by position, as they lay at one version of its catalogue.

Invariants:
    1. A view never changes, and keeps the maps that it reads: what is let go meanwhile stays readable.
    2. Batches are gathered; what is missing of one is made together, and each item once.
    3. Samples that are given one after the other (`given`) are gathered in blocks: a sample is a view of its
       block's memory. As long as any is missing, each comes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from prepcache.artifact.sample_tree import copied
from prepcache.batching.gather import Batch, Rows, positions
from prepcache.forks import kept
from prepcache.index.item_index import MISSING, Array, Catalogue, rows_of

BLOCK_BYTES = 256 << 10
BLOCK_ROWS = 64
"""With 64 rows a sample takes half the time that it takes by itself; with 256 little less."""


class View:
    """The samples of a data set that are there.

    Attributes:
        version: of the catalogue.
        is_whole: no item is missing; where items expand, what is missing has no positions.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        while True:
            self.version, places = catalogue.version, catalogue.places
            slots, rows = rows_of(catalogue.distinct.inverse, places)
            is_there = slots != MISSING
            there = slots[is_there]
            used = np.flatnonzero(np.bincount(there))  # np.unique would sort
            held = [catalogue.slots.get(slot) for slot in used.tolist()]
            self._artifacts = [slot.artifact for slot in held if slot is not None]
            if len(self._artifacts) == len(held):  # else one was let go this moment: look again
                break
        self.is_whole = bool((places.artifact != MISSING).all())
        number = np.zeros(used[-1] + 1 if len(used) else 0, np.int32)
        number[used] = np.arange(len(used), dtype=np.int32)
        self.rows = Rows(self._artifacts, number[there], rows[is_there])
        self._count = len(slots)
        self._inverse = catalogue.distinct.inverse
        self._compact: Array | None = None
        if len(self.rows) < self._count:
            self._compact = np.where(is_there, np.cumsum(is_there) - 1, MISSING)

    def __len__(self) -> int:
        return self._count

    def sample(self, position: int) -> Any:
        return self.rows.sample(position)

    @kept
    def block_rows(self) -> int:
        if not self.is_whole or not self._artifacts:
            return 1
        rows: int = sum(artifact.rows for artifact in self._artifacts)
        nbytes: int = sum(artifact.size_bytes for artifact in self._artifacts)
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES * rows // nbytes))

    def take(self, indices: Any, make: Callable[[Sequence[int]], dict[int, Any]]) -> list[Any] | Batch:
        """The samples at positions, as `Rows.take`; `make` gives the distinct items that are missing."""
        if self._compact is None:
            return self.rows.take(indices)
        at = positions(indices, self._count)
        outside = at[(at < -self._count) | (at >= self._count)]
        if len(outside):
            raise IndexError(f"index {outside[0]} is out of range for a data set of {self._count} samples")
        at = np.where(at < 0, at + self._count, at)
        compact = self._compact[at]
        is_there = compact != MISSING
        if is_there.all():
            return self.rows.take(compact, at)
        samples: list[Any] = [None] * len(at)
        gathered: Any = self.rows.take(compact[is_there], at[is_there]) if is_there.any() else []
        for place, sample in zip(np.flatnonzero(is_there).tolist(), gathered, strict=True):
            samples[place] = sample
        absent = np.flatnonzero(~is_there)
        items = self._inverse[at[absent]].tolist()
        made = make(list(dict.fromkeys(items)))
        given: set[int] = set()
        for place, item in zip(absent.tolist(), items, strict=True):
            # Drawn again, or an equal item: what is done to one sample must not show in another.
            samples[place] = copied(made[item]) if item in given else made[item]
            given.add(item)
        return samples


def given(view_now: Callable[[], View], make: Callable[[Sequence[int]], dict[int, Any]]) -> Iterator[Any]:
    """All samples, in order; `make` is as `View.take` has it."""
    at, count = 0, len(view_now())
    while at < count:
        view = view_now()
        stop = min(at + view.block_rows, count)
        yield from view.take(list(range(at, stop)), make)
        at = stop
