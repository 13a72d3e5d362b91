"""Tables: the columns of rows that share one tree, over all the mapped artifacts that have such rows, and the
memory that rows are gathered into.

Rows of one length are gathered by one `take`, rows of any length end to end: large ones are copied one by one
into recycled memory, small ones are joined from views.

NOTE [ Windows ]
    One gather over one array costs one call. So rows are numbered through all artifacts, with gaps, and the
    pages of each column are mapped a second time, where the numbers of their rows say:

        numbers          0 ... rows of file 0 ... |gap|  first[1] ... rows of file 1 ... |gap|  first[2] ...
        reserved range   |===== file 0 ===========|   |===== file 1 ====================|   | ...

    Every part's first number is a multiple of one power of two, which makes its place in the range of each
    column a border of pages, and of folios where rows are large, as columns begin in their files
    (artifact/header.py).

Invariants:
    1. Nothing is read or copied to make a window but columns of less than MAPPED_BYTES an artifact.
    2. A window owns its addresses, not the artifacts'; it stays valid when their maps are gone.
    3. A window is read-only. Reading a row in a gap may crash: row numbers come from `first_numbers` only.
    4. Where the kernel refuses (maps, addresses, another kernel than Linux), rows are gathered one by one.

Source: mremap(2): an old size of zero on a shared mapping makes a second mapping of the same pages.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact import columns
from prepcache.artifact.columns import Leaf
from prepcache.artifact.header import FOLIO_BYTES, MAPPED_BYTES, PAGE_BYTES
from prepcache.artifact.reader import Column, Group, Mapping, libc

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
Block = npt.NDArray[np.uint8]

PIECE_BYTES = 8 * 1024
"""Mean row from which copying into a recycled buffer beats joining small pieces into a fresh one."""
MAX_PARTS = 4_000
"""A part is a map and a gap; a process has 65,530 (vm.max_map_count), and malloc needs some too."""
MAX_RANGE_BYTES = 1 << 42
"""Addresses cost nothing until they are used; a process has 2**47."""
SMALL_ROW_BYTES = 64
"""Rows up to this size (labels, sizes) are copied together, which is cheaper than a map for each artifact,
where they are less than MAPPED_BYTES an artifact, on average: else a copy takes much memory, of each job."""

NORESERVE = 0x4000
"""mmap(2): no memory is counted before it is used."""
NO_HUGE_PAGES: int | None = getattr(mmap, "MADV_NOHUGEPAGE", None)
"""madvise(2): what lies between gaps takes small pages. By itself a kernel may give 2 MiB to each part."""
SMALL_BYTES = 64 * 1024
"""Below this malloc recycles as well as we could, and a pooled block would only be in the way."""
HUGE_PAGE_BYTES = 4 * 1024 * 1024
"""From this size on numpy asks the kernel for huge pages; blocks over half of it are made that large."""
PLACE_IN_PAGE = PAGE_BYTES // 2
"""Where in a page large arrays begin. A processor takes a load for one of the bytes that were just stored if
their addresses agree in the last twelve bits, and waits; columns of whole pages begin on pages, as blocks."""
KEPT_BLOCKS = 12
"""A training loop holds two or three batches of a few large columns; more is somebody's collection."""

_MREMAP_MAYMOVE_FIXED = 1 | 2
_CAN_MAP_AGAIN = sys.platform.startswith("linux") and mmap.PAGESIZE == PAGE_BYTES

libc.mprotect.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
if _CAN_MAP_AGAIN:
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 2, ctypes.c_int, ctypes.c_void_p]


class Dense:
    """A column whose rows have one shape."""

    def __init__(self, leaf: Leaf, parts: Sequence[Array], first: Numbers) -> None:
        self.leaf = leaf
        self.shape: tuple[int, ...] = parts[0].shape[1:]
        self.dtype: np.dtype[Any] = parts[0].dtype
        self.row_bytes = _row_bytes(parts[0])
        self._values = side_by_side(parts, first)
        self._parts = parts
        self._first = first

    def gather(self, numbers: Numbers, pool: Pool) -> Array:
        """Rows, `[len(numbers), *shape]`, as the caller's own."""
        count = numbers.size
        out = pool.empty((count, *self.shape), self.dtype, count * self.row_bytes)
        if self._values is not None:
            return self._values.take(numbers, 0, out, "clip")
        part_of = np.searchsorted(self._first, numbers, "right") - 1
        rows = zip(part_of.tolist(), (numbers - self._first[part_of]).tolist(), strict=True)
        for place, (part, row) in enumerate(rows):
            out[place] = self._parts[part][row]
        return out


class Table:
    """The groups of one tree: a column for each leaf, or None for one that is always None."""

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
        self.collation: Any = None  # set by collation.py


def _row_bytes(values: Array) -> int:
    return values.dtype.itemsize * math.prod(values.shape[1:])


def _is_dense(parts: Sequence[Column]) -> bool:
    row_shape = parts[0].values.shape[1:]
    return all(part.offsets is None and part.values.shape[1:] == row_shape for part in parts)


def _column(parts: Sequence[Column], first: Numbers) -> Dense | Ragged | None:
    leaf = parts[0].leaf
    if leaf.kind == "none":
        return None
    if _is_dense(parts):
        return Dense(leaf, [part.values for part in parts], first)
    return Ragged(leaf, parts, first)


# --- rows of any length ---


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

    def strings(self, leaf: Leaf) -> list[Any]:
        """All rows, of a column of str or bytes."""
        bounds = pairwise(self.offsets.tolist())
        if leaf.kind == "str":
            with suppress(UnicodeDecodeError):
                text = str(self.values.data, "ascii")  # at once: each byte is a character
                return [text[begin:end] for begin, end in bounds]
        whole, decode = self.values.tobytes(), columns.decode_bytes(leaf)
        return [decode(whole[begin:end]) for begin, end in bounds]


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
        self._shapes: Array | None = None
        self.tail: tuple[int, ...] | None = ()
        """The shape of the rows beside their first axis; None if it is not the same of all."""
        if leaf.kind in columns.VALUE_KINDS and leaf.ndim != 1:
            shapes = [_shapes(part) for part in parts]
            self._shapes = _numbered(shapes, first)
            tail = shapes[0][0, 1:]
            is_one = all((of_part[:, 1:] == tail).all() for of_part in shapes)
            self.tail = tuple(tail.tolist()) if is_one else None

    def bounds(self, numbers: Numbers) -> tuple[Array, Array]:
        """Where each row begins and ends, in elements; for `pieces`, and for lengths."""
        return self._begin.take(numbers), self._end.take(numbers)

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
        return Ranges(values, offsets, None if self._shapes is None else self._shapes.take(numbers, 0))


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


# --- windows ---


def first_numbers(counts: Sequence[int], row_sizes: Sequence[int]) -> Numbers:
    """The number of the first row of each part, and last the one behind all; `row_sizes`: in bytes, of each
    column that may get a window."""
    large = [size for size in row_sizes if size > SMALL_ROW_BYTES]
    pages = max((PAGE_BYTES // math.gcd(PAGE_BYTES, size) for size in row_sizes if size), default=1)
    folios = max((FOLIO_BYTES // math.gcd(FOLIO_BYTES, size) for size in large), default=1)
    rows, row_bytes = np.array(counts, np.int64), max(row_sizes, default=0)
    for unit in (max(pages, folios), pages, 1):
        numbers = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(-(-rows // unit) * unit, out=numbers[1:])
        if len(rows) == 1 or int(numbers[-1]) * row_bytes <= MAX_RANGE_BYTES:
            break
    return numbers


def side_by_side(parts: Sequence[Array], first: Numbers) -> Array | None:
    """Lays columns of shared file maps side by side: row i of part p is row `first[p] + i`; or None."""
    if len(parts) == 1:
        return parts[0]
    row_bytes = _row_bytes(parts[0])
    is_small = row_bytes <= SMALL_ROW_BYTES and sum(part.nbytes for part in parts) < MAPPED_BYTES * len(parts)
    if not _CAN_MAP_AGAIN or len(parts) > MAX_PARTS or not 0 < int(first[-1]) * row_bytes <= MAX_RANGE_BYTES:
        return None
    try:
        return _laid(parts, first, is_copied=is_small)
    except OSError:
        return None


def _numbered(arrays: Sequence[Array], first: Numbers) -> Array:
    """Arrays of all parts as one, by the numbers of their rows; that of one part as it is, in its file."""
    return arrays[0] if len(arrays) == 1 else _laid(arrays, first, is_copied=True)


def _laid(parts: Sequence[Array], first: Numbers, *, is_copied: bool) -> Array:
    """Parts as one array, each at its row numbers: large ones mapped unless `is_copied`, others copied."""
    row_bytes = _row_bytes(parts[0])
    size_bytes = int(first[-1]) * row_bytes
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    reserved = np.asarray(Mapping(size_bytes + FOLIO_BYTES, 0, flags, -1))
    if NO_HUGE_PAGES is not None:  # a kernel that refuses has none
        libc.madvise(reserved.ctypes.data, reserved.nbytes, NO_HUGE_PAGES)
    window = reserved[-reserved.ctypes.data % FOLIO_BYTES :][:size_bytes]
    window = window.view(parts[0].dtype).reshape(-1, *parts[0].shape[1:])
    begin = window.ctypes.data
    raw: Any = (ctypes.c_char * size_bytes).from_address(begin)
    target = np.ndarray(window.shape, window.dtype, raw)  # writable
    if is_copied:
        _make_writable(begin, size_bytes)
    for part, row in zip(parts, first.tolist(), strict=False):
        if part.nbytes >= MAPPED_BYTES and not is_copied:
            at, address = part.ctypes.data, begin + row * row_bytes
            if at % PAGE_BYTES or libc.mremap(at, 0, part.nbytes, _MREMAP_MAYMOVE_FIXED, address) != address:
                raise OSError
            continue
        if not is_copied:
            _make_writable(begin + row * row_bytes, part.nbytes)
        target[row : row + len(part)] = part
    return window


def _make_writable(address: int, size_bytes: int) -> None:
    past = address % mmap.PAGESIZE
    if libc.mprotect(address - past, past + size_bytes, mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError


# --- the memory that rows are gathered into ---


def _free(blocks: list[tuple[Block, int]], size_bytes: int, unused: int) -> tuple[Block, int] | None:
    """The first block of about this size that nothing else refers to: one has `unused` references."""
    for block, begin in blocks:
        if size_bytes <= block.size <= 2 * size_bytes and sys.getrefcount(block) == unused:
            return block, begin
    return None


def _block(size_bytes: int) -> Block:
    return np.empty(size_bytes, np.uint8)


_IS_COUNT_EXACT: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
_UNUSED = next((n for n in range(4) if _IS_COUNT_EXACT and _free([(_block(1), 0)], 1, n)), -1)
"""The number differs between Pythons: 3 at most, else a tracer has one, too, and nothing is recycled."""


class Pool:
    """Blocks of memory that are handed out again once nobody refers to them.

    Invariants:
        1. A block is handed out only while nothing but the pool refers to it. Whatever can reach its memory
           holds a reference to the block itself, because the block owns its memory; so its count tells.
        2. Whoever counts has a reference of its own, until the array has one: of two threads that look at a
           block, one at most finds it unused. The list is replaced and never changed, so it refers to what
           is looked at in it. Where counts are not exact (a Python without the GIL), nothing is recycled.
        3. Blocks are looked at in one order, so the first ones are used most: their bytes are likely to be in
           a cache.
        4. Nothing but the block refers to what `allocate` gives.
    """

    def __init__(
        self,
        kept_blocks: int = KEPT_BLOCKS,
        allocate: Callable[[int], Block] = _block,
        small_bytes: int = SMALL_BYTES,
    ) -> None:
        self._kept_blocks = kept_blocks
        self._allocate = allocate
        self._small_bytes = small_bytes
        self._blocks: list[tuple[Block, int]] = []  # and where their arrays begin

    def __reduce__(self) -> Any:
        return Pool, (self._kept_blocks, self._allocate, self._small_bytes)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], size_bytes: int) -> npt.NDArray[Any]:
        """An uninitialised, writable, C-contiguous array of so many bytes, which nobody else can reach."""
        if size_bytes < self._small_bytes:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, *self._free_block(size_bytes + PAGE_BYTES))

    def _free_block(self, size_bytes: int) -> tuple[Block, int]:
        """A block that nobody else refers to, and where in it an array begins."""
        if found := _free(self._blocks, size_bytes, _UNUSED):
            return found
        block = self._allocate(rounded(size_bytes))
        begin = (PLACE_IN_PAGE - block.ctypes.data) % PAGE_BYTES
        self._blocks = [*self._blocks[: self._kept_blocks - 1], (block, begin)]
        return block, begin  # a reference beside the one of the list


def rounded(size_bytes: int) -> int:
    """Steps of a sixteenth, so that batches of nearly one size share blocks."""
    if HUGE_PAGE_BYTES // 2 < size_bytes <= HUGE_PAGE_BYTES:
        return HUGE_PAGE_BYTES
    step = 1 << max(12, size_bytes.bit_length() - 5)
    return -(-size_bytes // step) * step
