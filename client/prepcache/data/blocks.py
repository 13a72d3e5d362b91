"""Blocks: rows of any length, laid end to end by two calls of numpy that move blocks of one length.

numpy gathers elements of one size. Seen through a *sliding* view, whose element i is the `length` elements
that begin at element i, memory has a block at every place, and they overlap as one likes:

    |--block--|--block--|--block--|--block--|     1. each block is filled for the row that its begin lies in:
    | row 0 |  row 1  |row 2| row 3 |    |           what it holds of rows behind that is wrong
    |------>|------>  |------>|------>             2. the first block of each row, in order: mends that, and
                                                      spoils only what is mended next

Invariants:
    1. No block reaches further than twice its length behind a row: the source has that much slack.
    2. What was read outside of a row is never returned.
    3. Bytes are moved, never converted: NaNs, negative zeros and the holes of structs survive.

Source: numpy's guide on indexing: an assignment to repeated indices is made in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[Any]

REACH_BYTES = 1024
"""Mean row up to which blocks are quicker than pieces; and the slack that a source must have behind its rows,
as a block is at most half of the mean row."""


class Source:
    """Elements of which rows are copied.

    Args:
        values: one axis, C-contiguous; every row ends `REACH_BYTES` before its end.
        first: the element that rows' bounds are counted from.
    """

    def __init__(self, values: Array, first: int = 0) -> None:
        self._values = values
        self._first = first
        self._views: dict[int, Array] = {}  # sliding views, for lengths that are powers of two

    def end_to_end(self, begin: Indices, offsets: Indices) -> Array:
        """Copies rows, of `REACH_BYTES` on the mean at most.

        Args:
            begin: the first element of each row; there is at least one.
            offsets: row i is copied to `offsets[i]` and on, up to `offsets[i + 1]`; the first is 0.
        """
        total = int(offsets[-1])
        # A quarter to half of a row: shorter blocks are more calls of memmove, longer ones more bytes.
        shift = max(total // (2 * len(begin)), 1).bit_length() - 1
        length = 1 << shift
        source = self._views.get(length)
        if source is None:
            source = self._views[length] = sliding(self._values, length)
        blocks = (offsets + (length - 1)) >> shift  # that begin before each row
        blocks[-1] += 1  # room for the last row's first block
        begins = (begin - offsets[:-1]).repeat(blocks[1:] - blocks[:-1])
        begins += np.arange(self._first, self._first + (len(begins) << shift), length)
        whole: Array = source[begins].view(self._values.dtype)
        sliding(whole, length)[offsets[:-1]] = source[begin + self._first]
        return whole[:total]


def sliding(values: Array, length: int) -> Array:
    """Element i is the bytes of `values[i : i + length]`."""
    size = values.dtype.itemsize
    return np.ndarray((len(values) - length + 1,), f"V{length * size}", values, 0, (size,))
