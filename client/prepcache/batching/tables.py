"""Tables: the rows of one tree over many artifacts, gathered a column at a time.

Artifacts hold rows in groups of equal trees. All groups of one tree, whatever artifact they are in, are
the parts of one table; a row is named by its part and its index in that part.

Invariants:
    1. Every index comes from an artifact that was checked when it was opened, so `mode="clip"` (the one
       mode of `take` that copies once) never clips.
    2. A gather only reads the artifacts; its result is memory of its own.

Source: the measurements behind pieces and buffers are in ARCHITECTURE.md (the data path).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from prepcache.artifact.columns import Leaf
from prepcache.batching.buffers import Pool
from prepcache.batching.ragged import Ragged
from prepcache.batching.windows import side_by_side

Array = npt.NDArray[Any]
Indices = npt.NDArray[Any]

SMALL_ROW_BYTES = 64
"""Rows up to this size (labels, sizes) are copied together, which is cheaper than a map for each artifact,"""
SMALL_PART_BYTES = 64 << 10
"""where an artifact has no more of them than this, on average: else a copy takes much memory, of each job."""


class Column(Protocol):
    """What the reader gives for one leaf of one group."""

    name: str
    leaf: Leaf
    values: Array
    offsets: Indices | None
    shapes: Indices | None


class Group(Protocol):
    """What the reader gives for the rows of one tree."""

    tree: Any
    columns: Sequence[Any]
    rows: int


@dataclass(slots=True)
class Picked:
    """Rows of one table, in the order of the batch.

    Args:
        part: the part of each row, or None if the table has one.
        index: the row's index in its part.
        number: the row's number in the table, all parts counted through.
    """

    part: Indices | None
    index: Indices
    number: Indices

    def __len__(self) -> int:
        return len(self.index)


class Dense:
    """A column whose rows have one shape.

    Args:
        parts: its rows in each part, `[n, *shape]`.
    """

    def __init__(self, name: str, leaf: Leaf, parts: Sequence[Array]) -> None:
        self.name = name
        self.leaf = leaf
        self.shape: tuple[int, ...] = parts[0].shape[1:]
        self.dtype: np.dtype[Any] = parts[0].dtype
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape)
        self._values: Array | None = parts[0]
        self._parts = list(parts)
        self._first: Indices | None = None
        self._is_numbered = len(parts) == 1
        if len(parts) > 1:
            is_small = self.row_bytes <= SMALL_ROW_BYTES
            is_little = is_small and sum(part.nbytes for part in parts) <= SMALL_PART_BYTES * len(parts)
            self._values, self._first = (None if is_little else side_by_side(parts)) or (None, None)
            if self._values is None and is_small:
                self._values, self._is_numbered = np.concatenate(parts), True

    def gather(self, picked: Picked, pool: Pool) -> Array:
        """Rows, `[len(picked), *shape]`, as the caller's own."""
        count = len(picked.index)
        return self.take(picked, pool.empty((count, *self.shape), self.dtype, count * self.row_bytes))

    def take(self, picked: Picked, out: Array) -> Array:
        """Copies rows.

        Args:
            out: `[len(picked), *shape]`, C-contiguous, of the column's dtype.

        Returns:
            `out`.
        """
        if self._values is not None:
            rows = picked.number
            if not self._is_numbered and self._first is not None and picked.part is not None:
                rows = self._first.take(picked.part) + picked.index
            self._values.take(rows, 0, out, "clip")
        elif picked.part is not None:
            rows_of_parts = zip(picked.part.tolist(), picked.index.tolist(), strict=True)
            for place, (part, index) in enumerate(rows_of_parts):
                out[place] = self._parts[part][index]
        return out


class Nothing:
    """A column of None."""

    def __init__(self, name: str, leaf: Leaf) -> None:
        self.name = name
        self.leaf = leaf


class Table:
    """The groups of one tree.

    Args:
        groups: the reader's groups; their trees and leaves are equal.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.tree = groups[0].tree
        columns = zip(*(group.columns for group in groups), strict=True)
        self.columns = [_column(parts) for parts in columns]
        rows = np.array([group.rows for group in groups], np.int64)
        self._first = np.cumsum(rows) - rows
        self.collation: Any = None  # kept by default_collate

    def pick(self, part: Indices | None, index: Indices) -> Picked:
        """Names rows by part and index in it."""
        if part is None or len(self._first) == 1:
            return Picked(None, index, index)
        return Picked(part, index, self._first.take(part) + index)


def _column(parts: Sequence[Column]) -> Dense | Ragged | Nothing:
    name, leaf = parts[0].name, parts[0].leaf
    if leaf.kind == "none":
        return Nothing(name, leaf)
    row_shape = parts[0].values.shape[1:]
    if any(part.offsets is not None or part.values.shape[1:] != row_shape for part in parts):
        return Ragged(name, leaf, parts)
    return Dense(name, leaf, [part.values for part in parts])
