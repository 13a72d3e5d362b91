"""The distinct items of a data set: finding them in item tables, and which rows they give; arrays only.

Invariants:
    1. Distinct items are numbered in the order in which they first occur: work is done in that order.
    2. A digest is found by its first 8 bytes and accepted by all 32.
    3. Under 100 bytes an item are kept, and nothing is looped over in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prepcache.digests import DIGEST_BYTES

Array = NDArray[Any]

MISSING = -1
FOUND_AT_ONCE = 16_384
"""Looked for together: enough to be sorted, little enough that what that takes is small."""


class Distinct:
    """The distinct item digests of a data set.

    Args:
        digests: uint8[n, 32], one for each position of the data set.

    Shape:
        digests: uint8[u, 32], distinct ones; first: int32[u], the position where each occurs first;
        inverse: int32[n], the distinct item of each position.
    """

    def __init__(self, digests: Array) -> None:
        digests = np.ascontiguousarray(digests, "u1").reshape(-1, DIGEST_BYTES)
        words = digests.view("<u8")
        order, is_same = _sort(words)
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
        self._longest_run = _longest_run(self._prefix)

    def __len__(self) -> int:
        return len(self.first)

    def digest(self, index: int) -> bytes:
        """The 32 bytes of one distinct item."""
        return bytes(self.digests[index])

    def find(self, table: Array) -> Array:
        """The distinct item of each row of an item table.

        Shape:
            uint8[m, 32] -> int32[m], `MISSING` where the data set has no such item.
        """
        found = np.full(len(table), MISSING, "i4")
        if len(self.first):
            own = self.digests.view("<u8")
            for start in range(0, len(table), FOUND_AT_ONCE):
                words = np.ascontiguousarray(table[start : start + FOUND_AT_ONCE]).view("<u8")
                found[start : start + FOUND_AT_ONCE] = self._find(own, words)
        return found

    def _find(self, own: Array, words: Array) -> Array:
        # Sorted queries walk the prefixes in order: four times as fast as at random for a million.
        order = np.argsort(words[:, 0], kind="stable") if len(words) > 4096 else np.arange(len(words))
        asked = words[order]
        at = np.searchsorted(self._prefix, asked[:, 0])
        sorted_found = np.full(len(words), MISSING, "i4")
        for step in range(self._longest_run):
            candidate = self._of[np.minimum(at + step, len(self._of) - 1)]
            is_equal = (own[candidate] == asked).all(axis=1)
            sorted_found[is_equal] = candidate[is_equal]
        found = np.empty(len(words), "i4")
        found[order] = sorted_found
        return found


def _sort(words: Array) -> tuple[Array, Array]:
    """A stable order of the digests, and for each but the first whether it equals the one before."""
    order = np.argsort(words[:, 0], kind="stable")
    prefix = words[order, 0]
    is_same = prefix[1:] == prefix[:-1]
    at = np.flatnonzero(is_same)
    if len(at) and not (words[order[at]] == words[order[at + 1]]).all():
        # Different digests with 8 bytes in common: equal ones need not be neighbours yet.
        order = np.lexsort(words.T[::-1])
        is_same = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    return order, is_same


def _longest_run(prefix: Array) -> int:
    """How many distinct digests share one prefix, at most; 1 but for an attack or a miracle."""
    if len(prefix) < 2 or not (prefix[1:] == prefix[:-1]).any():
        return 1
    return int(np.unique(prefix, return_counts=True)[1].max())


@dataclass(frozen=True, slots=True)
class Places:
    """Where the samples of the distinct items lie.

    Shape:
        artifact: int32[u], a slot of the catalogue or `MISSING`; row: int64[u], the first row;
        count: int64[u], rows of an item that expands, else None (one each).
        chains: distinct item -> its pieces (slot, first row, rows), where it spans artifacts.
    """

    artifact: Array
    row: Array
    count: Array | None
    chains: dict[int, tuple[tuple[int, int, int], ...]]

    @classmethod
    def nowhere(cls, items: int, *, is_expanded: bool) -> Places:
        count = np.zeros(items, "i8") if is_expanded else None
        return cls(np.full(items, MISSING, "i4"), np.zeros(items, "i8"), count, {})

    def copy(self) -> Places:
        """One that may be changed while others read this one."""
        count = None if self.count is None else self.count.copy()
        return Places(self.artifact.copy(), self.row.copy(), count, dict(self.chains))


def rows_of(inverse: Array, places: Places) -> tuple[Array, Array]:
    """The slot and row of every sample of a data set, in order.

    Shape:
        -> int32[samples], int64[samples]; a missing item of one sample gives the slot `MISSING`, a
        missing item that expands gives nothing.
    """
    if places.count is None:
        return places.artifact[inverse], places.row[inverse]
    if places.chains:
        return _rows_of_chains(inverse, places)
    counts = np.where(places.artifact >= 0, places.count, 0)[inverse]
    return np.repeat(places.artifact[inverse], counts), ranges(places.row[inverse], counts)


def ranges(starts: Array, counts: Array) -> Array:
    """start, start + 1, ... count of them, for each pair, on end."""
    total = int(counts.sum())
    begins = np.cumsum(counts) - counts
    rows: Array = np.arange(total, dtype="i8") + np.repeat(starts - begins, counts)
    return rows


def _rows_of_chains(inverse: Array, places: Places) -> tuple[Array, Array]:
    """As `rows_of`, where some items have several pieces."""
    count = places.count
    assert count is not None
    pieces: list[tuple[int, int, int]] = []
    for index in inverse.tolist():
        if index in places.chains:
            pieces.extend(places.chains[index])
        elif places.artifact[index] >= 0:
            pieces.append((int(places.artifact[index]), int(places.row[index]), int(count[index])))
    table = np.array(pieces, "i8").reshape(-1, 3)
    return np.repeat(table[:, 0].astype("i4"), table[:, 2]), ranges(table[:, 1], table[:, 2])
