"""The check of what rows are indexed by: row groups, offsets and shapes.

Invariants:
    1. After `check_rows` every row of every column lies inside its column.
    2. It runs over a chunk of rows at a time: its memory does not grow with the artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from prepcache.artifact import columns
from prepcache.artifact.columns import Array
from prepcache.artifact.header import (
    MAX_ELEMENTS,
    ROW_GROUP,
    ColumnSpec,
    GroupSpec,
    Header,
    read_array,
    read_header,
    table_dtype,
)
from prepcache.errors import ArtifactError

Read = Callable[[str, int, int], Array]
"""Gives elements `start:stop` of a table (offsets, shapes, row groups), flattened, by its name."""

_CHUNK_ROWS = 1 << 18
"""Rows checked at a time: a few MB."""


def check(fd: int, *, max_items: int = MAX_ELEMENTS) -> Header:
    """Checks an artifact completely without mapping it, for a file that its writer may still cut.

    Args:
        max_items: see `read_header`.

    Raises:
        ArtifactError: it is not a whole, valid artifact.
    """
    header = read_header(fd, max_items=max_items)

    def read(name: str, start: int, stop: int) -> Array:
        return read_array(fd, header.spans[name], table_dtype(name), start, stop)

    check_rows(header, read)
    _ = header.observed  # who maps it does not ask
    return header


def check_rows(header: Header, read: Read) -> None:
    """Proves row groups, offsets and shapes, a chunk at a time.

    Args:
        header: of the file.
        read: gives a part of a table.

    Raises:
        ArtifactError: a row would lie outside its column or its group.
    """
    if len(header.groups) > 1:
        seen = np.zeros(len(header.groups), np.int64)
        for start, stop in _chunks(header.rows):
            counted = np.bincount(read(ROW_GROUP, start, stop), minlength=len(seen))
            if len(counted) != len(seen):
                raise ArtifactError("a row refers to a missing group")
            seen += counted
        if seen.tolist() != [group.rows for group in header.groups]:
            raise ArtifactError("the groups' rows do not match the row counts in the header")
    for group in header.groups:
        for column in group.columns:
            if column.shape is None:
                _check_ragged(header, group, column, read)


def _check_ragged(header: Header, group: GroupSpec, column: ColumnSpec, read: Read) -> None:
    _, dtype, has_byte_axis = columns.storage(column.leaf)
    span = header.spans[column.name]
    total = span.shape[0] if span.shape else -1
    if span.shape != ((total, dtype.itemsize) if has_byte_axis else (total,)):
        raise ArtifactError(
            f"column {column.name!r}: ragged values must have one axis, not shape {list(span.shape)}"
        )
    last = 0
    for start, stop in _chunks(group.rows):
        offsets = read(column.name + ".offsets", start, stop + 1)
        if offsets[0] != last or (offsets[1:] < offsets[:-1]).any():
            raise ArtifactError(f"column {column.name!r}: offsets decrease")
        last = int(offsets[-1])
        if column.leaf.ndim >= 2:
            ndim = column.leaf.ndim
            shapes = read(column.name + ".shapes", start * ndim, stop * ndim).reshape(-1, ndim)
            # In floats, for a product of hostile sizes does not fit 64 bits; exact up to 2**53.
            if (shapes < 0).any() or (np.maximum(shapes, 1).astype("f8").prod(axis=1) > MAX_ELEMENTS).any():
                raise ArtifactError(f"column {column.name!r}: a shape is negative or too large")
            if (shapes.prod(axis=1) != np.diff(offsets)).any():
                raise ArtifactError(f"column {column.name!r}: shapes do not match the offsets")
    if last != total:
        raise ArtifactError(f"column {column.name!r}: offsets end at {last} of {total} values")


def _chunks(rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, _CHUNK_ROWS):
        yield start, min(start + _CHUNK_ROWS, rows)
