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
from prepcache.batching.gather import MISSING, Batch, Rows
from prepcache.forks import kept
from prepcache.index.item_index import Array, Catalogue, rows_of

BLOCK_BYTES = 256 << 10
BLOCK_ROWS = 64  # with 64 rows a sample takes half the time that it takes by itself; with 256 little less


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
        self._inverse = catalogue.distinct.inverse

    @kept
    def block_rows(self) -> int:
        if not self.is_whole or not self._artifacts:
            return 1
        rows: int = sum(artifact.rows for artifact in self._artifacts)
        nbytes: int = sum(artifact.size_bytes for artifact in self._artifacts)
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES * rows // nbytes))

    def take_or_make(
        self, indices: Any, make: Callable[[Sequence[int]], dict[int, Any]]
    ) -> list[Any] | Batch:
        return self.take(indices, lambda positions: self._made(positions, make))

    def _made(self, positions: Array, make: Callable[[Sequence[int]], dict[int, Any]]) -> list[Any]:
        items = self._inverse[positions].tolist()
        made, given = make(list(dict.fromkeys(items))), set[int]()
        samples = []
        for item in items:
            # Drawn again, or an equal item: what is done to one sample must not show in another.
            samples.append(copied(made[item]) if item in given else made[item])
            given.add(item)
        return samples


def given(view_now: Callable[[], View], make: Callable[[Sequence[int]], dict[int, Any]]) -> Iterator[Any]:
    """All samples, in order; `make` is as `View.take_or_make` has it."""
    at, count = 0, len(view_now())
    while at < count:
        view = view_now()
        stop = min(at + view.block_rows, count)
        yield from view.take_or_make(list(range(at, stop)), make)
        at = stop
