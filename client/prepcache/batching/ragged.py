"""Ragged columns: rows of any length, gathered end to end.

Large rows are copied one by one into recycled memory; small ones are joined from views.

Invariants:
    1. Both ways give the same bytes; which is taken is a matter of sizes alone.
    2. What is returned is memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact import columns
from prepcache.artifact.columns import Leaf
from prepcache.batching.buffers import Pool
from prepcache.batching.windows import side_by_side

if TYPE_CHECKING:
    from prepcache.batching.tables import Picked

Array = npt.NDArray[Any]
Indices = npt.NDArray[Any]

PIECE_BYTES = 8 * 1024
"""Mean row from which copying into a recycled buffer beats joining small pieces into a fresh one."""


@dataclass(slots=True)
class Ranges:
    """Rows of any length: row i is `values[offsets[i]:offsets[i + 1]]`, of shape `shapes[i]` if given."""

    values: Array
    offsets: Indices
    shapes: Indices | None

    def row(self, i: int) -> Array:
        """Row i, a view."""
        row = self.values[self.offsets[i] : self.offsets[i + 1]]
        return row if self.shapes is None else row.reshape(self.shapes[i])

    def octets(self) -> list[bytes]:
        """All rows, of a column of bytes."""
        whole, bounds = self.values.tobytes(), self.offsets.tolist()
        return [whole[begin:end] for begin, end in pairwise(bounds)]


class Ragged:
    """A column whose rows differ in shape, in some part of the table at least."""

    def __init__(self, name: str, leaf: Leaf, parts: Sequence[Any]) -> None:
        self.name = name
        self.leaf = leaf
        flat = [part.values.reshape(-1) for part in parts]
        self.dtype: np.dtype[Any] = flat[0].dtype
        window, first = (side_by_side(flat) if len(flat) > 1 else None) or (None, np.zeros(0, np.int64))
        begin, end = zip(*[_bounds(part) for part in parts], strict=True)
        self._held = [_bytes(part) for part in flat]
        if window is not None:  # and where there is one part, its bounds stay in the file, shared
            self._held = [_bytes(window)]
            begin, end = (tuple(map(np.add, bounds, first)) for bounds in (begin, end))
        self._begin, self._end = _joined(begin), _joined(end)
        has_shapes = leaf.kind in columns.VALUE_KINDS and leaf.ndim != 1
        self._shapes = _joined([_shapes(part) for part in parts]) if has_shapes else None

    def bounds(self, picked: Picked) -> tuple[Indices, Indices]:
        """Where each row begins and ends, in elements; for `pieces`, and for lengths."""
        return self._begin.take(picked.number), self._end.take(picked.number)

    def shapes(self, picked: Picked) -> Indices | None:
        """`[len(picked), ndim]`, or None where a row's shape is its length."""
        return None if self._shapes is None else self._shapes.take(picked.number, 0)

    def tail(self) -> tuple[int, ...] | None:
        """The shape of the rows beside their first axis; None if it is not the same of all."""
        if self._shapes is None:
            return ()
        tails = self._shapes[:, 1:]
        return tuple(tails[0].tolist()) if (tails == tails[0]).all() else None

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
        offsets = np.zeros(len(begin) + 1, np.int64)
        (end - begin).cumsum(out=offsets[1:])
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
