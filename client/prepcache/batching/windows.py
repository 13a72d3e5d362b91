"""Windows: the same column of many mapped artifacts, laid side by side in one range of addresses.

One gather over one array costs one call. So rows are numbered through all artifacts, with gaps, and the pages
of each column are mapped a second time, where the numbers of their rows say:

    numbers          0 ... rows of file 0 ... |gap|  first[1] ... rows of file 1 ... |gap|  first[2] ...
    reserved range   |===== file 0 ===========|   |===== file 1 ====================|   | ...

Every part's first number is a multiple of one power of two, which makes its place in the range of each column
a border of pages, and of folios where rows are large, as columns begin in their files (artifact/layout.py).

Invariants:
    1. Nothing is read or copied but columns of less than MAPPED_BYTES an artifact.
    2. A window owns its addresses, not the artifacts'; it stays valid when their maps are gone.
    3. The array is read-only. Reading a row in a gap may crash: row numbers come from `first_numbers` only.
    4. Whatever the kernel refuses (maps, addresses, another kernel than Linux) is answered by None, and
       the caller gathers row by row.

Source: mremap(2): an old size of zero on a shared mapping makes a second mapping of the same pages.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact.header import FOLIO_BYTES, MAPPED_BYTES, PAGE_BYTES
from prepcache.artifact.reader import Mapping, libc

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]

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
_PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MREMAP_MAYMOVE_FIXED = 1 | 2


@functools.cache
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux") or mmap.PAGESIZE != PAGE_BYTES:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mremap.restype = pointer
    libc.mremap.argtypes = [pointer, size, size, ctypes.c_int, pointer]
    libc.mprotect.argtypes = libc.madvise.argtypes = [pointer, size, ctypes.c_int]
    return libc


def first_numbers(counts: Sequence[int], row_sizes: Sequence[int]) -> Numbers:
    """The number of the first row of each part, and last the one behind all.

    Args:
        row_sizes: in bytes, of each column that may get a window.
    """
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
    """Lays columns side by side: row i of part p is row `first[p] + i`. None where that cannot be done.

    Args:
        parts: C-contiguous `[rows, ...]` views of read-only, shared file maps, of one dtype and row shape.
    """
    if len(parts) == 1:
        return parts[0]
    row_bytes = parts[0].dtype.itemsize * math.prod(parts[0].shape[1:])
    size_bytes = int(first[-1]) * row_bytes
    if _libc() is None or len(parts) > MAX_PARTS or not 0 < size_bytes <= MAX_RANGE_BYTES:
        return None
    is_small = row_bytes <= SMALL_ROW_BYTES
    is_little = is_small and sum(part.nbytes for part in parts) < MAPPED_BYTES * len(parts)
    try:
        reserved = Mapping(size_bytes + FOLIO_BYTES, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE, -1)
    except OSError:
        return None
    whole = np.asarray(reserved)
    if NO_HUGE_PAGES is not None:  # a kernel that refuses has none
        libc.madvise(whole.ctypes.data, whole.nbytes, NO_HUGE_PAGES)
    window = whole[-whole.ctypes.data % FOLIO_BYTES :][:size_bytes]
    begin = window.ctypes.data
    if is_little and libc.mprotect(begin, _up(size_bytes, PAGE_BYTES), _PROT_READ_WRITE):
        return None
    for part, row in zip(parts, first.tolist(), strict=False):
        is_copied = is_little or part.nbytes < MAPPED_BYTES
        if part.size and not (_copied if is_copied else _mapped_again)(part, begin + row * row_bytes):
            return None
    return window.view(parts[0].dtype).reshape(-1, *parts[0].shape[1:])


def _mapped_again(part: Array, address: int) -> bool:
    begin = part.ctypes.data
    if begin % PAGE_BYTES or address % PAGE_BYTES:
        return False
    size_bytes = _up(part.nbytes, PAGE_BYTES)
    return bool(libc.mremap(begin, 0, size_bytes, _MREMAP_MAYMOVE_FIXED, address) == address)


def _copied(part: Array, address: int) -> bool:
    page = address - address % PAGE_BYTES
    if libc.mprotect(page, _up(address + part.nbytes, PAGE_BYTES) - page, _PROT_READ_WRITE):
        return False
    ctypes.memmove(address, part.ctypes.data, part.nbytes)
    return True


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
