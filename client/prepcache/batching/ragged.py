"""Ragged columns: rows of any length, gathered end to end.

Large rows are copied one by one into recycled memory; small ones are joined from views.

Invariants:
    1. Both ways give the same bytes; which is taken is a matter of sizes alone.
    2. What is returned is memory of its own.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact import columns
from prepcache.artifact.columns import Leaf
from prepcache.batching.buffers import Pool
from prepcache.batching.windows import NO_HUGE_PAGES, NORESERVE, Numbers, first_numbers, side_by_side

Array = npt.NDArray[Any]

PIECE_BYTES = 8 * 1024
"""Mean row from which copying into a recycled buffer beats joining small pieces into a fresh one."""


@dataclass(slots=True)
class Ranges:
    """Rows of any length: row i is `values[offsets[i]:offsets[i + 1]]`, of shape `shapes[i]` if given."""

    values: Array
    offsets: Array
    shapes: Array | None

    def rows(self) -> Iterator[Array]:
        """The rows, as views."""
        for i, (begin, end) in enumerate(pairwise(self.offsets.tolist())):
            row = self.values[begin:end]
            yield row if self.shapes is None else row.reshape(self.shapes[i])

    def octets(self) -> list[bytes]:
        """All rows, of a column of bytes."""
        whole, bounds = self.values.tobytes(), self.offsets.tolist()
        return [whole[begin:end] for begin, end in pairwise(bounds)]


class Ragged:
    """A column whose rows differ in shape, in some part of the table at least."""

    def __init__(self, leaf: Leaf, parts: Sequence[Any], first: Numbers) -> None:
        self.leaf = leaf
        flat = [part.values.reshape(-1) for part in parts]
        self.dtype: np.dtype[Any] = flat[0].dtype
        self._first = first
        at = first_numbers([part.size for part in flat], [self.dtype.itemsize])
        window = side_by_side(flat, at)
        self._held = [_bytes(part) for part in (flat if window is None else [window])]
        begin, end = zip(*[_bounds(part) for part in parts], strict=True)
        if len(self._held) == 1 < len(parts):
            begin, end = (tuple(map(np.add, bounds, at)) for bounds in (begin, end))
        self._begin, self._end = _numbered(begin, first), _numbered(end, first)
        self._shapes = self._tail = None
        if leaf.kind in columns.VALUE_KINDS and leaf.ndim != 1:
            shapes = [_shapes(part) for part in parts]
            self._shapes = _numbered(shapes, first)
            tail = shapes[0][0, 1:]
            if all((of_part[:, 1:] == tail).all() for of_part in shapes):
                self._tail = tuple(tail.tolist())

    def bounds(self, numbers: Numbers) -> tuple[Array, Array]:
        """Where each row begins and ends, in elements; for `pieces`, and for lengths."""
        return self._begin.take(numbers), self._end.take(numbers)

    def shapes(self, numbers: Numbers) -> Array | None:
        """`[len(numbers), ndim]`, or None where a row's shape is its length."""
        return None if self._shapes is None else self._shapes.take(numbers, 0)

    def tail(self) -> tuple[int, ...] | None:
        """The shape of the rows beside their first axis; None if it is not the same of all."""
        return () if self._shapes is None else self._tail

    def pieces(self, numbers: Numbers, begin: Array, end: Array) -> list[memoryview]:
        """The bytes of elements `begin` to `end` of each row: views into the artifacts."""
        size = self.dtype.itemsize
        bounds = zip((begin * size).tolist(), (end * size).tolist(), strict=True)
        if len(self._held) == 1:
            held = self._held[0]
            return [held[a:b] for a, b in bounds]
        part_of = np.searchsorted(self._first, numbers, "right") - 1
        return [self._held[part][a:b] for part, (a, b) in zip(part_of.tolist(), bounds, strict=True)]

    def gather(self, numbers: Numbers, pool: Pool) -> Ranges:
        """Gathers rows end to end."""
        begin, end = self.bounds(numbers)
        offsets = np.zeros(len(begin) + 1, np.int64)
        (end - begin).cumsum(out=offsets[1:])
        values = join(self.pieces(numbers, begin, end), int(offsets[-1]), self.dtype, pool)
        return Ranges(values, offsets, self.shapes(numbers))


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


def _numbered(arrays: Sequence[Array], first: Numbers) -> Array:
    """Arrays of all parts as one, by the numbers of their rows; that of one part as it is, in its file."""
    if len(arrays) == 1:
        return arrays[0]
    shape = int(first[-1]), *arrays[0].shape[1:]
    raw = mmap.mmap(-1, max(1, math.prod(shape) * 8), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    if NO_HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel that refuses has none
            raw.madvise(NO_HUGE_PAGES)
    joined = np.frombuffer(raw, np.int64, math.prod(shape)).reshape(shape)
    for array, begin in zip(arrays, first.tolist(), strict=False):
        joined[begin : begin + len(array)] = array
    return joined


def _bounds(part: Any) -> tuple[Array, Array]:
    if part.offsets is not None:
        return part.offsets[:-1], part.offsets[1:]
    size = math.prod(part.values.shape[1:])
    ends = np.arange(1, len(part.values) + 1, dtype=np.int64) * size
    return ends - size, ends


def _shapes(part: Any) -> Array:
    shapes: Array | None = part.shapes
    if shapes is not None:
        return shapes
    shape = np.array(part.values.shape[1:], np.int64)
    return np.broadcast_to(shape, (len(part.values), len(shape)))
