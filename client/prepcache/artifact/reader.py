"""The reader: an artifact, mapped, as columns and as samples.

Invariants:
    1. No view is made before the header and every offset, shape and row group have been checked: after
       `check_rows` every row of every column lies inside its column.
    2. The map is read-only and lives as long as any array, tensor or Artifact that looks into it.
    3. `sample(row)` gives copies: a write into the map would end the process (SIGSEGV).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from prepcache.artifact import columns, sample_tree
from prepcache.artifact.columns import ITEM_BYTES, Array, Leaf
from prepcache.artifact.header import (
    ITEM_COST,
    ITEM_DIGEST,
    ITEM_ROWS,
    MAX_ELEMENTS,
    ROW_GROUP,
    ColumnSpec,
    Header,
    read_array,
    read_header,
)
from prepcache.errors import ArtifactError

Build = Callable[[Sequence[Any]], Any]
Finish = dict[int, Callable[..., Any]]

_CHUNK_ROWS = 1 << 18
"""Rows checked at a time: a few MB, however large the artifact is."""

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def memory_file(name: str) -> int:
    """A descriptor of a file in memory. Pythons of uv and conda have no `os.memfd_create`."""
    fd: int = getattr(libc, "memfd_create", lambda *_: -1)(name.encode(), 1)  # 1: closed by exec
    if fd < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    return fd


class Mapping:
    """Mapped memory, given up when the last array that looks into it is gone: `numpy.asarray(mapping)`.

    The mmap module keeps a descriptor for each map of a file, until Python 3.13.
    """

    def __init__(self, size_bytes: int, protection: int, flags: int, fd: int) -> None:
        address = libc.mmap(None, size_bytes, protection, flags, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._place = (address, size_bytes)
        self.__array_interface__ = {
            "data": (address, not protection & mmap.PROT_WRITE), "shape": (size_bytes,), "typestr": "|u1",
            "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        place = self.__dict__.pop("_place", None)
        if place is not None:
            libc.munmap(*place)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One leaf of every sample of a group, mapped.

    Shape:
        values: dense `[n, ...]`; ragged, and of `str` and `bytes`, end to end; `[n, 0]` for None.
        offsets: `int64[n + 1]` into `values` if ragged; shapes: `int64[n, ndim]` if ragged, from two axes on.
    """

    name: str
    leaf: Leaf
    values: Array
    offsets: Array | None
    shapes: Array | None


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The samples that share one tree."""

    tree: sample_tree.Tree
    columns: list[Column]
    rows: int


class Artifact:
    """A mapped artifact; made by `open`.

    Shape:
        item_digests: uint8[items, 32], in row order; first_row, row_count: int64[items];
        item_cost: float64[items], in seconds.
    """

    def __init__(self, header: Header, base: Array, path: str | None) -> None:
        self.header = header
        self.path = path
        self.recipe, self.key, self.edition = header.recipe, header.key, header.edition
        self.items, self.rows, self.cost_s = header.items, header.rows, header.cost_s
        self.item_digests: Array = header.item_digests
        self.first_row: Array = header.first_row
        self.row_count: Array = header.row_count
        self.item_cost: Array = header.item_cost
        self.size_bytes = header.size_bytes
        self.groups = [
            Group(spec.tree, [_column(column, spec.rows, header, base) for column in spec.columns], spec.rows)
            for spec in header.groups
        ]
        self.row_group: Array | None = None
        self.row_index: Array | None = None
        if len(self.groups) > 1:
            self.row_group = _view(header, base, ROW_GROUP, np.dtype("<u2"))
            self.row_index = _index_in_group(self.row_group, self.groups)
        self._samplers: dict[int, Callable[[int], Any]] = {}

    def sample(self, row: int) -> Any:
        """A copy of the sample of a row."""
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} is out of range for {self.rows} rows")
        group = 0
        if self.row_group is not None and self.row_index is not None:
            group, row = int(self.row_group[row]), int(self.row_index[row])
        sampler = self._samplers.get(group) or self._sampler(group)
        return sampler(row)

    def _sampler(self, number: int) -> Callable[[int], Any]:
        group = self.groups[number]
        getters = [_getter(column) for column in group.columns]
        build = builder(group.tree)

        def sample(row: int) -> Any:
            return build([get(row) for get in getters])

        self._samplers[number] = sample
        return sample

    def __reduce__(self) -> Any:
        raise TypeError("a mapped artifact cannot be pickled: send its path, and open it there")


def open(path_or_fd: str | os.PathLike[str] | int, *, size_bytes: int | None = None) -> Artifact:
    """Maps the artifact at a path (no symbolic link), or of a descriptor, which stays the caller's. Raises
    ArtifactError where it is not a whole, valid artifact of this size."""
    if isinstance(path_or_fd, int):
        return _open_fd(path_or_fd, None, size_bytes)
    path = os.path.abspath(os.fspath(path_or_fd))
    # A pipe in its place would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return _open_fd(fd, path, size_bytes)
    finally:
        os.close(fd)


def _open_fd(fd: int, path: str | None, size_bytes: int | None) -> Artifact:
    header = read_header(fd, size_bytes=size_bytes)
    check_rows(fd, header)
    base = np.asarray(Mapping(header.size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd))
    # The tables that the header was checked by are in memory of this process alone: let them go.
    header = replace(
        header,
        item_digests=_view(header, base, ITEM_DIGEST, np.dtype("u1")),
        row_count=_view(header, base, ITEM_ROWS, np.dtype("<i8")),
        item_cost=_view(header, base, ITEM_COST, np.dtype("<f8")),
    )
    return Artifact(header, base, path)


def _view(header: Header, base: Array, name: str, dtype: np.dtype[Any]) -> Array:
    """A tensor of the file as an array; one axis less where its last one is the bytes of an element."""
    span = header.spans[name]
    shape = span.shape if ITEM_BYTES[span.dtype] == dtype.itemsize else span.shape[:-1]
    return base[span.begin : span.end].view(dtype).reshape(shape)


def _column(spec: ColumnSpec, rows: int, header: Header, base: Array) -> Column:
    names = [name for name, _, _ in spec.tensors(rows)]
    if not names:
        return Column(spec.name, spec.leaf, np.empty((rows, 0), np.uint8), None, None)
    _, dtype, _ = columns.storage(spec.leaf)
    offsets, shapes = (
        _view(header, base, name, np.dtype("<i8")) if name in names else None
        for name in (spec.name + ".offsets", spec.name + ".shapes")
    )
    return Column(spec.name, spec.leaf, _view(header, base, spec.name, dtype), offsets, shapes)


def _index_in_group(row_group: Array, groups: list[Group]) -> Array:
    """For each row, which row of its group it is."""
    order = np.argsort(row_group, kind="stable")
    index = np.empty(len(row_group), np.int64)
    starts = np.cumsum([0, *(group.rows for group in groups[:-1])])
    index[order] = np.arange(len(row_group)) - np.repeat(starts, [group.rows for group in groups])
    return index


def _getter(column: Column) -> Callable[[int], Any]:
    """What gives the leaf of a row. Closures over plain arrays: this is the inner loop of `sample`."""
    kind, values, shapes = column.leaf.kind, column.values, column.shapes
    if kind == "none":
        return lambda row: None
    if kind in columns.FIXED_KINDS:
        return values.item
    if kind == "scalar":
        return lambda row: values[row].copy()
    offset = None if column.offsets is None else column.offsets.item  # Python's integers index quicker

    def pick(row: int) -> Array:
        found: Array = values[row, ...] if offset is None else values[offset(row) : offset(row + 1)]
        return found if shapes is None else found.reshape(shapes[row])

    if kind == "ndarray":
        return lambda row: pick(row).copy()
    if kind == "tensor":
        make = columns.leaf_maker(column.leaf)
        return lambda row: make(pick(row).copy())
    decode = columns.decode_bytes(column.leaf)

    def text(row: int) -> Any:
        try:
            return decode(pick(row).tobytes())
        except UnicodeDecodeError as error:
            raise ArtifactError(f"column {column.name!r}, row {row}: {error}") from None

    return text


def builder(tree: sample_tree.Tree, collated: Finish | None = None, strings: type = list) -> Build:
    """What puts leaves (a list, in walking order) together into a sample of this tree; or into a batch, of
    what `collated` makes of each that it names, where `strings` is the type that torch gives the strings of a
    leaf: a list, or the tuple of a transposed sequence."""
    if isinstance(tree, int):
        finish = collated and collated.get(tree)
        return (lambda leaves: finish(leaves[tree], strings)) if finish else itemgetter(tree)
    word = tree[0]
    if word == "dict":
        keys = [key for key, _ in tree[1]]
        values = _children([child for _, child in tree[1]], collated, list)
        return lambda leaves: dict(zip(keys, values(leaves), strict=True))
    children = _children(tree[-1], collated, tuple)
    make: Any = list if word == "list" or collated is not None else tuple
    if word == "named":
        make = sample_tree.named_class(tree[1], tree[2], tuple(tree[3]))._make
    return children if make is list else lambda leaves: make(children(leaves))


def _children(trees: list[sample_tree.Tree], collated: Finish | None, strings: type) -> Build:
    if trees and all(isinstance(child, int) and child not in (collated or ()) for child in trees):
        return itemgetter(slice(trees[0], trees[-1] + 1))
    builders = [builder(child, collated, strings) for child in trees]
    return lambda leaves: [build(leaves) for build in builders]


# --- the check of what rows are indexed by ---


def check(fd: int, *, max_items: int = MAX_ELEMENTS) -> Header:
    """Checks an artifact as `open` does, and its observed inputs, which those who map it do not ask for."""
    header = read_header(fd, max_items=max_items)
    check_rows(fd, header)
    _ = header.inputs
    return header


def check_rows(fd: int, header: Header) -> None:
    """Proves row groups, offsets and shapes, a chunk at a time; else raises ArtifactError."""
    if len(header.groups) > 1:
        seen = np.zeros(len(header.groups), np.int64)
        for start, stop in _chunks(header.rows):
            counted = np.bincount(
                read_array(fd, header.spans[ROW_GROUP], "<u2", start, stop), minlength=len(seen)
            )
            if len(counted) != len(seen):
                raise ArtifactError("a row refers to a missing group")
            seen += counted
        if seen.tolist() != [group.rows for group in header.groups]:
            raise ArtifactError("the groups' rows do not match the row counts in the header")
    for group in header.groups:
        for column in group.columns:
            if column.shape is None:
                _check_ragged(fd, header, group.rows, column)


def _check_ragged(fd: int, header: Header, rows: int, column: ColumnSpec) -> None:
    last, total, ndim = 0, header.spans[column.name].shape[0], column.leaf.ndim
    for start, stop in _chunks(rows):
        offsets = read_array(fd, header.spans[column.name + ".offsets"], "<i8", start, stop + 1)
        if offsets[0] != last or (offsets[1:] < offsets[:-1]).any():
            raise ArtifactError(f"column {column.name!r}: offsets decrease")
        last = int(offsets[-1])
        if ndim >= 2:
            table = header.spans[column.name + ".shapes"]
            shapes = read_array(fd, table, "<i8", start * ndim, stop * ndim).reshape(-1, ndim)
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
