"""Pages: rows that are whole pages of their file, mapped into a batch instead of copied.

    file   | row 0 | row 1 | row 2 | row 3 | ...
    batch  | row 2 | row 0 | row 3 |              each row is a private map of its place in the file

A row of 600 kB is 147 entries in a page table, which the kernel fills as they are looked at: in a fifth of
the time that copying the row takes where memory copies 8 GB/s, in as much where it copies 24. A batch of such
rows needs no memory of its own, and four jobs that look at them look at one copy. Rows begin on pages because
the writer puts columns of such rows there (`artifact/layout.py`).

An artifact whose rows are so large has a second map, which nobody looks at. A row is moved from it to the
batch, and is still there (mremap with MREMAP_DONTUNMAP takes along only what was looked at): so no file is
opened again, and a batch of rows of 200 artifacts takes as long as of one.

Invariants:
    1. A batch is its consumer's: the maps are private, so a write into it copies the page that it falls on,
       and reaches neither the file nor anybody else.
    2. Each map is of the file that the artifact was opened and checked as, whatever has its name by now.
    3. Nobody looks at the maps that rows are moved from, and nobody writes to them: their pages would leave.
    4. A batch's addresses are those of one `mmap` object, which whatever looks into the batch refers to, and
       which gives them back with itself: no code of ours runs then.
    5. Whatever the kernel refuses, what is small, and what would take too many of a process's maps, is
       answered by None, and the caller copies.
    6. A write into mapped pages costs three times what copying them costs. So some pages of some batches are
       looked at behind their consumer, and where many were written to, the column's batches are copied.

A batch that somebody keeps keeps the blocks of its files on the disk, also after they were evicted: so the
holds on them are not given up before (`files`, and `ArtifactSet.drop`).

Source: proc_pid_pagemap(5): bit 61 of an entry is clear for a page that a private map has copied; mremap(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from prepcache.artifact import reader
from prepcache.artifact.reader import Artifact

Array = npt.NDArray[Any]
Indices = npt.NDArray[Any]

MIN_BATCH_BYTES = 8 << 20
"""From here on, and from reader.LARGE_ROW_BYTES, mapping is the quicker way for a consumer that reads all
once; where memory copies 20 GB/s, it takes as long."""
MAX_MAPS = 2048
"""Maps of all batches at a time; a process has 65,530 (vm.max_map_count), and malloc needs some too."""
PROBES = 16
"""Pages of a batch that are looked at."""
PATIENCE = 16
"""Batches after which one is looked at that somebody still has."""

_PAGEMAP = "/proc/self/pagemap"
_ENTRY_BYTES = 8
_PRESENT, _SWAPPED, _OF_A_FILE = 1 << 63, 1 << 62, 1 << 61
_NORESERVE = 0x4000
_MOVE = 1 | 2 | 4  # MAYMOVE, FIXED: at this very address; DONTUNMAP
_ACCESS = mmap.PROT_READ | mmap.PROT_WRITE
_POPULATE_READ = 22

_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole part, fall into every gap in turn."""


@dataclass(frozen=True)
class _Calls:
    """The C library. What is quick keeps the GIL: a loader's thread that gave it up for each row would wait
    for it as often. `advise` reads from the disk, and gives it up."""

    move: Any
    protect: Any
    advise: Any


@functools.cache
def _calls() -> _Calls | None:
    """What is called; None where there is nothing of the kind, or the kernel is older than 5.14."""
    if not sys.platform.startswith("linux") or not os.access(_PAGEMAP, os.R_OK):
        return None
    keeping, releasing = ctypes.PyDLL(None), ctypes.CDLL(None)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    try:
        calls = _Calls(keeping.mremap, keeping.mprotect, releasing.madvise)
    except AttributeError:
        return None
    calls.move.restype = pointer
    calls.move.argtypes = [pointer, size, size, number, pointer]
    calls.protect.argtypes = [pointer, size, number]
    calls.advise.argtypes = [pointer, size, number]
    page = mmap.mmap(-1, mmap.PAGESIZE)
    return None if calls.advise(_address(page), mmap.PAGESIZE, _POPULATE_READ) else calls


def are_pages(row_bytes: int, begins: Sequence[int]) -> bool:
    """Whether rows are whole pages, and large enough; `begins` are where parts begin in their files."""
    is_whole = row_bytes % mmap.PAGESIZE == 0 and all(begin % mmap.PAGESIZE == 0 for begin in begins)
    return is_whole and row_bytes >= reader.LARGE_ROW_BYTES and _calls() is not None


class Pages:
    """The rows of one column, as pages.

    Args:
        name: of the column.
        artifacts: of each part.
        begins: the place of each part's first row in its file.
        row_bytes: of every row.
    """

    def __init__(
        self, name: str, artifacts: Sequence[Artifact], begins: Sequence[int], row_bytes: int
    ) -> None:
        self._files = [os.path.basename(artifact.path or "") for artifact in artifacts]
        self._unread = [artifact.unread for artifact in artifacts if artifact.unread is not None]
        self._is_able = len(self._unread) == len(artifacts)
        addresses = [unread.ctypes.data for unread in self._unread] if self._is_able else [0] * len(begins)
        self._begins = np.add(addresses, begins, dtype=np.int64)
        self._row_bytes = row_bytes
        self._consumer = _consumers.setdefault(artifacts[0], {}).setdefault(name, _Consumer())

    def take(self, part: Indices | None, index: Indices, *, is_filled: bool) -> Array | None:
        """Maps rows next to each other.

        Args:
            part: the part of each row; None if there is one.
            index: each row's index there; every row is one that its part has.
            is_filled: fills the page table now, for a thread that gathers ahead of who looks. It takes two
                fifths longer than the faults of looking.

        Returns:
            `uint8[len(index) * row_bytes]`, writable; None where they have to be copied.
        """
        calls, size_bytes = _calls(), len(index) * self._row_bytes
        if calls is None or not self._is_able or size_bytes < MIN_BATCH_BYTES or self._consumer.is_writing():
            return None
        begins = index * self._row_bytes + (self._begins[0] if part is None else self._begins.take(part))
        first = self._first_of_runs(begins)
        if _live_maps() + len(first) > MAX_MAPS:
            return None
        lengths = np.diff(first, append=len(index)) * self._row_bytes
        try:
            batch = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, _ACCESS)
        except OSError:
            return None
        if not _place(calls, batch, begins[first].tolist(), lengths.tolist()):
            return None
        numbers = [0] if part is None else set(part[first].tolist())
        names = frozenset([self._files[n] for n in numbers])
        _live[next(_numbers)] = _Live(weakref.ref(batch), len(first), names)
        if is_filled:
            calls.advise(_address(batch), size_bytes, _POPULATE_READ)
        self._consumer.note(batch)
        return np.frombuffer(batch, np.uint8)

    def _first_of_runs(self, begins: Indices) -> Indices:
        """Where in the batch rows begin that do not follow their neighbour in its file.

        None follows one of another file, however the files' maps lie: each begins with its header.
        """
        is_first = np.ones(len(begins), np.bool_)
        np.not_equal(begins[1:], begins[:-1] + self._row_bytes, out=is_first[1:])
        return np.flatnonzero(is_first)


def _place(calls: _Calls, batch: mmap.mmap, begins: list[int], lengths: list[int]) -> bool:
    """Maps runs of rows over a batch's addresses, end to end; False if one could not be.

    Args:
        begins: of the runs, addresses in maps that nobody looks at.
    """
    first = address = _address(batch)
    for begin, length in zip(begins, lengths, strict=True):
        if calls.move(begin, length, length, _MOVE, address) != address:
            return False
        address += length
    return bool(calls.protect(first, len(batch), _ACCESS) == 0)


class _Consumer:
    """Who is given the batches of a column: whether he writes into them.

    One batch at a time is kept until nobody else has it, or for `PATIENCE` batches; then its pages are looked
    at. One that was written to outweighs five that were not: so much is saved by not copying them.
    """

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []
        self._waited = 0
        self._debt = 0
        self._probed = 0

    def note(self, batch: mmap.mmap) -> None:
        """A batch was made."""
        if not self._kept:
            self._kept, self._waited = [batch], 0

    def forget(self) -> None:
        """Nothing is kept any more."""
        self._kept = []

    def is_writing(self) -> bool:
        """Whether batches are to be copied; looks at the one that is kept, if it is time."""
        kept = self._kept
        self._waited += 1
        if kept and (_references(kept) <= _UNUSED_REFERENCES or self._waited > PATIENCE):
            self._kept = []
            self._debt = max(0, self._debt + 6 * self._written(kept[0]) - PROBES)
        return self._debt > PROBES

    def _written(self, batch: mmap.mmap) -> int:
        """How many of `PROBES` pages are copies by now; other pages each time."""
        first, count, found = _address(batch) // mmap.PAGESIZE, len(batch) // mmap.PAGESIZE, 0
        with contextlib.suppress(OSError), open(_PAGEMAP, "rb", buffering=0) as file:
            for _ in range(PROBES):
                self._probed += 1
                page = first + int(self._probed * _GOLDEN % 1 * count)
                raw = os.pread(file.fileno(), _ENTRY_BYTES, page * _ENTRY_BYTES)
                entry = int.from_bytes(raw, sys.byteorder)
                found += bool(entry & (_PRESENT | _SWAPPED)) and not entry & _OF_A_FILE
        return found


_consumers: weakref.WeakKeyDictionary[Artifact, dict[str, _Consumer]] = weakref.WeakKeyDictionary()
"""By the first artifact of a data set, and the column: views of it come and go."""


class _Live(NamedTuple):
    """A batch, how many maps it has, and the names of its files."""

    batch: weakref.ref[mmap.mmap]
    maps: int
    files: frozenset[str]


_live: dict[int, _Live] = {}
_numbers = itertools.count()


def _living() -> list[_Live]:
    """Batches that are there; forgets those that are gone."""
    for number, one in list(_live.items()):
        if one.batch() is None:
            _live.pop(number, None)
    return list(_live.values())


def _live_maps() -> int:
    return sum(one.maps for one in _living())


def files() -> set[str]:
    """The names of files that batches look into."""
    return set().union(*(one.files for one in _living()))


def _after_fork_in_child() -> None:
    """The parent's consumers are not the child's."""
    for column in list(_consumers.values()):
        for consumer in column.values():
            consumer.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _address(batch: mmap.mmap) -> int:
    address: int = np.frombuffer(batch, np.uint8).ctypes.data
    return address


def _references(kept: list[mmap.mmap]) -> int:
    return sys.getrefcount(kept[0])


_UNUSED_REFERENCES = _references([mmap.mmap(-1, 1)])
"""What `_references` says of one that nobody else has; where counts are not exact, others are waited for."""
