"""Windows: the same column of many mapped artifacts, laid side by side in one range of addresses.

One gather over one array costs one call; over 200 artifacts it would cost a call for each row. So the
pages that hold the column are mapped a second time, next to each other, each file at an address where
its rows fall on multiples of the row's size. Between them lie gaps that nothing refers to:

    reserved range   |gap|= file 0 =|gap|= file 1 =|gap|= file 2 =| ...
    window[first[p] + r] is row r of part p

Invariants:
    1. No byte is copied, and nothing is read: the pages are those of the artifacts' own maps.
    2. A window owns its addresses, not the artifacts'; it stays valid when their maps are gone.
    3. It is read-only, and addresses in gaps are not readable: a wrong row is a crash, never other data.
    4. Whatever the kernel refuses (maps, addresses, another kernel than Linux) is answered by None, and
       the caller gathers row by row.

Source: mremap(2): an old size of zero on a shared mapping makes a second mapping of the same pages.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Sequence
from mmap import PAGESIZE
from typing import Any

import numpy as np
import numpy.typing as npt

from prepcache.artifact.header import FOLIO_BYTES

Array = npt.NDArray[Any]

MAX_PARTS = 4_000
"""A part is a map and a gap; a process has 65,530 (vm.max_map_count), and malloc needs some too."""
MAX_RANGE_BYTES = 1 << 42
"""Addresses cost nothing until they are used; a process has 2**47."""

_PROT_NONE, _MAP_PRIVATE_ANONYMOUS_NORESERVE = 0, 0x2 | 0x20 | 0x4000
_MREMAP_MAYMOVE_FIXED = 1 | 2
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = libc.mremap.restype = pointer
    libc.mmap.argtypes = [pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.mremap.argtypes = [pointer, size, size, ctypes.c_int, pointer]
    libc.munmap.argtypes = [pointer, size]
    return libc


class _Range:
    """Reserved addresses; arrays made of it keep it, and it unmaps what is mapped there with itself."""

    def __init__(self, libc: ctypes.CDLL, size_bytes: int) -> None:
        self._munmap = libc.munmap
        self._all_bytes = size_bytes + FOLIO_BYTES
        self._all = libc.mmap(None, self._all_bytes, _PROT_NONE, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
        if self._all == _FAILED:
            raise MemoryError
        self.address = -(-self._all // FOLIO_BYTES) * FOLIO_BYTES
        self.__array_interface__: dict[str, Any] = {
            "data": (self.address, True), "shape": (size_bytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        if self._all != _FAILED:
            self._munmap(self._all, self._all_bytes)


def side_by_side(parts: Sequence[Array]) -> tuple[Array, npt.NDArray[np.int64]] | None:
    """Lays columns side by side.

    Args:
        parts: C-contiguous `[rows, ...]` views of read-only, shared file maps, of one dtype and row shape.

    Returns:
        A window `[many, ...]` and the row in it at which each part begins, or None where it cannot be done.
    """
    row_bytes = parts[0].dtype.itemsize * math.prod(parts[0].shape[1:])
    libc = _libc()
    if libc is None or row_bytes == 0 or len(parts) > MAX_PARTS:
        return None
    first = np.zeros(len(parts), np.int64)
    end = 0
    for number, part in enumerate(parts):
        if part.size:
            row = _first_row(end, part, row_bytes)
            if row is None:
                return None
            first[number] = row
            end = -(-(row * row_bytes + part.nbytes) // PAGESIZE) * PAGESIZE
    if not 0 < end <= MAX_RANGE_BYTES:
        return None
    try:
        reserved = _Range(libc, end)
    except MemoryError:
        return None
    for part, row in zip(parts, first.tolist(), strict=True):
        if part.size and not _map_again(libc, part, reserved.address + row * row_bytes):
            return None
    flat = np.asarray(reserved)[: end // row_bytes * row_bytes]
    return flat.view(parts[0].dtype).reshape(-1, *parts[0].shape[1:]), first


def _first_row(end: int, part: Array, row_bytes: int) -> int | None:
    """The row at which a part can begin, no page of it before `end`; where its folios stay whole, if near.

    They do where its address and its place in the file, so the addresses of both maps, agree modulo a folio.
    """
    begin, room = part.ctypes.data, max(part.nbytes, FOLIO_BYTES)
    row = _row_at(end, begin % FOLIO_BYTES, row_bytes, FOLIO_BYTES) if part.nbytes >= FOLIO_BYTES else None
    if row is None or row * row_bytes > end + room:
        row = _row_at(end, begin % PAGESIZE, row_bytes, PAGESIZE)
    return row


def _row_at(end: int, place: int, row_bytes: int, unit: int) -> int | None:
    """The first row whose bytes begin `place` bytes into a unit, no page of it before `end`."""
    granule = math.gcd(unit, row_bytes)
    if place % granule:
        return None
    units = unit // granule
    # row * row_bytes = place (mod unit), divided by the granule: an odd factor, so it can be inverted.
    residue = place // granule * pow(row_bytes // granule, -1, units) % units
    row = -(-(end + place % PAGESIZE) // row_bytes)
    return row + (residue - row) % units


def _map_again(libc: ctypes.CDLL, part: Array, address: int) -> bool:
    lead = part.ctypes.data % PAGESIZE
    size_bytes = -(-(part.nbytes + lead) // PAGESIZE) * PAGESIZE
    begin = part.ctypes.data - lead
    return bool(libc.mremap(begin, 0, size_bytes, _MREMAP_MAYMOVE_FIXED, address - lead) == address - lead)
