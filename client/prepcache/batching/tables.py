"""Tables: the rows of one tree over many artifacts, gathered a column at a time.

Artifacts hold rows in groups of equal trees. All groups of one tree, whatever artifact they are in, are
the parts of one table; a row is named by its number, which is counted through all parts (windows.py).

Invariants:
    1. Every number comes from an artifact that was checked when it was opened, so `mode="clip"` (the one
       mode of `take` that copies once) never clips.
    2. A gather only reads the artifacts; its result is memory of its own.

Source: the measurements behind pieces and buffers are in docs/decisions (0012 to 0014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact.columns import Leaf
from prepcache.artifact.reader import Column, Group
from prepcache.batching.buffers import Pool
from prepcache.batching.ragged import Ragged
from prepcache.batching.windows import Numbers, first_numbers, side_by_side

Array = npt.NDArray[Any]


class Dense:
    """A column whose rows have one shape.

    Args:
        parts: its rows in each part, `[n, *shape]`.
        first: the number of each part's first row.
    """

    def __init__(self, name: str, leaf: Leaf, parts: Sequence[Array], first: Numbers) -> None:
        self.name = name
        self.leaf = leaf
        self.shape: tuple[int, ...] = parts[0].shape[1:]
        self.dtype: np.dtype[Any] = parts[0].dtype
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape)
        self._values = side_by_side(parts, first)
        self._parts = parts
        self._first = first

    def gather(self, numbers: Numbers, pool: Pool) -> Array:
        """Rows, `[len(numbers), *shape]`, as the caller's own."""
        count = numbers.size
        return self.take(numbers, pool.empty((count, *self.shape), self.dtype, count * self.row_bytes))

    def take(self, numbers: Numbers, out: Array) -> Array:
        """Copies rows.

        Args:
            out: `[len(numbers), *shape]`, C-contiguous, of the column's dtype.

        Returns:
            `out`.
        """
        if self._values is not None:
            self._values.take(numbers, 0, out, "clip")
            return out
        part_of = np.searchsorted(self._first, numbers, "right") - 1
        rows = zip(part_of.tolist(), (numbers - self._first[part_of]).tolist(), strict=True)
        for place, (part, row) in enumerate(rows):
            out[place] = self._parts[part][row]
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

    Attributes:
        first: the number of the first row of each group, and last the one behind all.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.tree = groups[0].tree
        columns = list(zip(*(group.columns for group in groups), strict=True))
        sizes = [_row_bytes(parts[0].values) for parts in columns if _is_dense(parts)]
        counts = [group.rows for group in groups]
        try:
            self.first = first_numbers(counts, sizes)
            self.columns = [_column(parts, self.first) for parts in columns]
        except OSError:  # there are not so many addresses: rows without gaps, gathered one by one
            self.first = first_numbers(counts, [])
            self.columns = [_column(parts, self.first) for parts in columns]
        self.collation: Any = None  # kept by default_collate


def _row_bytes(values: Array) -> int:
    return values.dtype.itemsize * math.prod(values.shape[1:])


def _is_dense(parts: Sequence[Column]) -> bool:
    row_shape = parts[0].values.shape[1:]
    return all(part.offsets is None and part.values.shape[1:] == row_shape for part in parts)


def _column(parts: Sequence[Column], first: Numbers) -> Dense | Ragged | Nothing:
    name, leaf = parts[0].name, parts[0].leaf
    if leaf.kind == "none":
        return Nothing(name, leaf)
    if _is_dense(parts):
        return Dense(name, leaf, [part.values for part in parts], first)
    return Ragged(name, leaf, parts, first)
