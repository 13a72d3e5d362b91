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

from prepcache.artifact import columns
from prepcache.artifact.columns import Leaf
from prepcache.data.buffers import Pool
from prepcache.data.windows import side_by_side

Array = npt.NDArray[Any]
Indices = npt.NDArray[Any]

SMALL_ROW_BYTES = 64
"""Rows up to this size (labels, sizes) are copied together once: cheaper than a map for each artifact."""

PIECE_BYTES = 8 * 1024
"""Mean row from which copying into a recycled buffer beats joining small pieces into a fresh one."""


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
    """A column whose rows have one shape."""

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
        if len(parts) > 1 and self.row_bytes <= SMALL_ROW_BYTES:
            self._values, self._is_numbered = np.concatenate(parts), True
        elif len(parts) > 1:
            self._values, self._first = side_by_side(parts) or (None, None)

    def empty(self, count: int, pool: Pool) -> Array:
        """Memory for `count` rows."""
        return pool.empty((count, *self.shape), self.dtype, count * self.row_bytes)

    def take(self, picked: Picked, out: Array) -> Array:
        """Gathers rows.

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


@dataclass(frozen=True, slots=True)
class Ranges:
    """Rows of any length: row i is `values[offsets[i]:offsets[i + 1]]`, of shape `shapes[i]` if given."""

    values: Array
    offsets: Indices
    shapes: Indices | None

    def row(self, i: int) -> Array:
        """Row i, a view."""
        row = self.values[self.offsets[i] : self.offsets[i + 1]]
        return row if self.shapes is None else row.reshape(self.shapes[i])


class Ragged:
    """A column whose rows differ in shape, in some part of the table at least."""

    def __init__(self, name: str, leaf: Leaf, parts: Sequence[Any]) -> None:
        self.name = name
        self.leaf = leaf
        flat = [part.values.reshape(-1) for part in parts]
        self.dtype: np.dtype[Any] = flat[0].dtype
        window = (flat[0], np.zeros(1, np.int64)) if len(flat) == 1 else side_by_side(flat)
        values, first = window or (None, np.zeros(len(flat), np.int64))
        self._held = [_bytes(values)] if values is not None else [_bytes(part) for part in flat]
        begin, end = zip(*[_bounds(part) for part in parts], strict=True)
        self._begin = _joined([bound + at for bound, at in zip(begin, first.tolist(), strict=True)])
        self._end = _joined([bound + at for bound, at in zip(end, first.tolist(), strict=True)])
        has_shapes = leaf.kind in columns.VALUE_KINDS and leaf.ndim != 1
        self._shapes = _joined([_shapes(part) for part in parts]) if has_shapes else None

    def bounds(self, picked: Picked) -> tuple[Indices, Indices]:
        """Where each row begins and ends, in elements; for `pieces`, and for lengths."""
        return self._begin.take(picked.number), self._end.take(picked.number)

    def shapes(self, picked: Picked) -> Indices | None:
        """`[len(picked), ndim]`, or None where a row's shape is its length."""
        return None if self._shapes is None else self._shapes.take(picked.number, 0)

    def pieces(self, picked: Picked, begin: Indices, end: Indices) -> list[memoryview]:
        """The bytes of elements `begin` to `end` of each row: views into the artifacts."""
        size = self.dtype.itemsize
        bounds = zip((begin * size).tolist(), (end * size).tolist(), strict=True)
        if len(self._held) == 1 or picked.part is None:
            held = self._held[0]
            return [held[a:b] for a, b in bounds]
        return [self._held[part][a:b] for part, (a, b) in zip(picked.part.tolist(), bounds, strict=True)]

    def take(self, picked: Picked, pool: Pool) -> Ranges:
        """Gathers rows end to end."""
        begin, end = self.bounds(picked)
        offsets = np.zeros(len(picked) + 1, np.int64)
        np.cumsum(end - begin, out=offsets[1:])
        values = join(self.pieces(picked, begin, end), int(offsets[-1]), self.dtype, pool)
        return Ranges(values, offsets, self.shapes(picked))


def join(pieces: Sequence[memoryview], total: int, dtype: np.dtype[Any], pool: Pool) -> Array:
    """Copies pieces of bytes end to end: `total` elements, writable."""
    size_bytes = total * dtype.itemsize
    if size_bytes <= PIECE_BYTES * len(pieces):
        return np.frombuffer(bytearray().join(pieces), dtype) if total else np.empty(0, dtype)
    values = pool.empty((total,), dtype, size_bytes)
    target = _bytes(values)
    end = 0
    for piece in pieces:
        begin, end = end, end + len(piece)
        target[begin:end] = piece
    return values


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
        self.columns = [_column(parts) for parts in zip(*(group.columns for group in groups), strict=True)]
        rows = np.array([group.rows for group in groups], np.int64)
        self._first = np.cumsum(rows) - rows
        self.collation: Any = None  # kept by default_collate

    def pick(self, part: Indices | None, index: Indices) -> Picked:
        """Names rows by part and index in it."""
        if part is None or len(self._first) == 1:
            return Picked(None, index, index)
        return Picked(part, index, self._first.take(part) + index)


def _column(parts: Sequence[Any]) -> Dense | Ragged | Nothing:
    name, leaf = parts[0].name, parts[0].leaf
    if leaf.kind == "none":
        return Nothing(name, leaf)
    row_shape = parts[0].values.shape[1:]
    is_dense = all(part.offsets is None and part.values.shape[1:] == row_shape for part in parts)
    return Dense(name, leaf, [part.values for part in parts]) if is_dense else Ragged(name, leaf, parts)


def _bytes(values: Array) -> memoryview:
    """The bytes of a contiguous array; not every dtype lends its buffer, and an empty one cannot be cast."""
    octets: Any = values.view(np.uint8)
    return memoryview(octets) if values.size else memoryview(b"")


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _bounds(part: Any) -> tuple[Indices, Indices]:
    if part.offsets is not None:
        return part.offsets[:-1], part.offsets[1:]
    size = math.prod(part.values.shape[1:])
    ends = np.arange(1, len(part.values) + 1, dtype=np.int64) * size
    return ends - size, ends


def _shapes(part: Any) -> Indices:
    shapes: Indices | None = part.shapes
    if shapes is not None:
        return shapes
    shape = np.array(part.values.shape[1:], np.int64)
    return np.broadcast_to(shape, (len(part.values), len(shape)))
