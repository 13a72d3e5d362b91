"""Windows: the same column of many mapped artifacts, laid side by side in one range of addresses.

One gather over one array costs one call; over 200 artifacts it would cost a call for each row. So rows are
numbered through all artifacts, with gaps, and the pages of each column are mapped a second time, where the
numbers of their rows say:

    numbers          0 ... rows of file 0 ... |gap|  first[1] ... rows of file 1 ... |gap|  first[2] ...
    reserved range   |===== file 0 ===========|   |===== file 1 ====================|   | ...

Every part's first number is a multiple of one power of two, which makes its place in the range of each column
a border of pages, and of folios where rows are large. Columns begin on such borders in their files, too
(artifact/layout.py), so that pages fit pages. What is too small for that is copied.

Invariants:
    1. Nothing is read or copied but columns of less than MAPPED_BYTES an artifact.
    2. A window owns its addresses, not the artifacts'; it stays valid when their maps are gone.
    3. The array is read-only. A row in a gap has no meaning: reading it may crash, give zeros, or give what
       follows the column in its file. So callers make row numbers from `first_numbers` only.
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
_PROT_NONE, _MAP_PRIVATE_ANONYMOUS_NORESERVE = 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
_PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MREMAP_MAYMOVE_FIXED = 1 | 2
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux") or mmap.PAGESIZE != PAGE_BYTES:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = libc.mremap.restype = pointer
    libc.mmap.argtypes = [pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.mremap.argtypes = [pointer, size, size, ctypes.c_int, pointer]
    libc.mprotect.argtypes = [pointer, size, ctypes.c_int]
    libc.munmap.argtypes = [pointer, size]
    libc.madvise.argtypes = [pointer, size, ctypes.c_int]
    return libc


class _Range:
    """Reserved addresses; arrays made of it keep it, and it unmaps what is mapped there with itself."""

    def __init__(self, libc: ctypes.CDLL, size_bytes: int) -> None:
        self._munmap = libc.munmap
        self._all_bytes = size_bytes + FOLIO_BYTES
        self._all = libc.mmap(None, self._all_bytes, _PROT_NONE, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
        if self._all == _FAILED:
            raise MemoryError
        if NO_HUGE_PAGES is not None:  # a kernel that refuses has none
            libc.madvise(self._all, self._all_bytes, NO_HUGE_PAGES)
        self.address = _up(self._all, FOLIO_BYTES)
        self.__array_interface__: dict[str, Any] = {
            "data": (self.address, True), "shape": (size_bytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        if self._all != _FAILED:
            self._munmap(self._all, self._all_bytes)


def first_numbers(counts: Sequence[int], row_sizes: Sequence[int]) -> Numbers:
    """The number of the first row of each part, and last the one behind all.

    Args:
        counts: rows of each part.
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
        first: as `first_numbers` gives it, for this size of rows too.
    """
    if len(parts) == 1:
        return parts[0]
    row_bytes = parts[0].dtype.itemsize * math.prod(parts[0].shape[1:])
    size_bytes = int(first[-1]) * row_bytes
    libc = _libc()
    if libc is None or len(parts) > MAX_PARTS or not 0 < size_bytes <= MAX_RANGE_BYTES:
        return None
    is_small = row_bytes <= SMALL_ROW_BYTES
    is_little = is_small and sum(part.nbytes for part in parts) < MAPPED_BYTES * len(parts)
    try:
        reserved = _Range(libc, size_bytes)
    except MemoryError:
        return None
    if is_little and libc.mprotect(reserved.address, _up(size_bytes, PAGE_BYTES), _PROT_READ_WRITE):
        return None
    for part, row in zip(parts, first.tolist(), strict=False):
        place = reserved.address + row * row_bytes
        is_copied = is_little or part.nbytes < MAPPED_BYTES
        if part.size and not (_copied if is_copied else _mapped_again)(libc, part, place):
            return None
    return np.asarray(reserved).view(parts[0].dtype).reshape(-1, *parts[0].shape[1:])


def _mapped_again(libc: ctypes.CDLL, part: Array, address: int) -> bool:
    begin = part.ctypes.data
    if begin % PAGE_BYTES or address % PAGE_BYTES:
        return False
    return bool(
        libc.mremap(begin, 0, _up(part.nbytes, PAGE_BYTES), _MREMAP_MAYMOVE_FIXED, address) == address
    )


def _copied(libc: ctypes.CDLL, part: Array, address: int) -> bool:
    page = address - address % PAGE_BYTES
    if libc.mprotect(page, _up(address + part.nbytes, PAGE_BYTES) - page, _PROT_READ_WRITE):
        return False
    ctypes.memmove(address, part.ctypes.data, part.nbytes)
    return True


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
