"""Segments: the on-disk form of the memo, columns of records sorted by hash of (device, inode).

    header   magic, version, native byte order mark, count        32 bytes
    hashes   uint64[n]     mix(device, inode), ascending, each (device, inode) once
    checks   uint64[n]     mix(stamp, digest, day)
    stamps   int64[n, 5]   device, inode, size, mtime_ns, ctime_ns
    days     int64[n]      when it was last used, in days since the epoch
    digests  uint8[n, 32]

Invariants:
    1. A file whose length or header does not fit is no segment. A record whose check does not fit is no
       record. Neither is an error.
    2. `mix` and `mix_columns` agree: a single look-up needs no numpy, a bulk one has no loop.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, mtime_ns, ctime_ns, each as a signed 64-bit number."""

_HEADER = struct.Struct("=16sQQ")
_MAGIC = b"prepcache memo 1"
_ORDER = 0x0102030405060708
_RECORD_BYTES = 8 + 8 + 40 + 8 + 32
_STAMP = struct.Struct("=5q")
_WORDS = struct.Struct("=4Q")
_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15
_FACTOR = 0xD6E8FEB86659FD93


class Record(NamedTuple):
    """What the memo knows of one file."""

    stamp: Stamp
    digest: bytes
    day: int


def mix(words: Iterable[int]) -> int:
    """A 64-bit hash of 64-bit words. Fast and well spread; not for secrets."""
    h = _SEED
    for word in words:
        h = ((h ^ (word & _MASK)) * _FACTOR) & _MASK
        h ^= h >> 32
    return h


def mix_columns(columns: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """`mix` of each row of some columns."""
    import numpy as np

    h = np.full(len(columns[0]), _SEED, np.uint64)
    factor, shift = np.uint64(_FACTOR), np.uint64(32)
    for column in columns:
        h ^= np.ascontiguousarray(column).view(np.uint64)
        h *= factor
        h ^= h >> shift
    return h


def check_of(record: Record) -> int:
    return mix((*record.stamp, *_WORDS.unpack(record.digest), record.day))


class Segment:
    """A sorted, immutable file of records."""

    def __init__(self, raw: Any, count: int) -> None:
        self.count = count
        self._raw = raw
        view = memoryview(raw)
        self._at = [_HEADER.size]
        for width in (8, 8, 40, 8):
            self._at.append(self._at[-1] + width * count)
        self._hashes = view[self._at[0] : self._at[1]].cast("Q")
        self._checks = view[self._at[1] : self._at[2]].cast("Q")
        self._days = view[self._at[3] : self._at[4]].cast("q")

    @classmethod
    def open(cls, path: Path) -> Segment | None:
        """The segment in a file, or None if it is none, or others than this user may have written it."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            info = os.fstat(fd)
            if info.st_uid != os.geteuid() or info.st_mode & 0o022 or info.st_nlink != 1:
                return None
            size = info.st_size
            head = os.pread(fd, _HEADER.size, 0)
            if len(head) < _HEADER.size:
                return None
            magic, order, count = _HEADER.unpack(head)
            if magic != _MAGIC or order != _ORDER or size != _HEADER.size + count * _RECORD_BYTES:
                return None
            return cls(mmap.mmap(fd, size, prot=mmap.PROT_READ), count)
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def get(self, stamp: Stamp) -> Record | None:
        """The record of a stamp."""
        wanted = mix(stamp[:2])
        row = bisect_left(self._hashes, wanted)
        if row == self.count or self._hashes[row] != wanted:
            return None
        if _STAMP.unpack_from(self._raw, self._at[2] + 40 * row) != stamp:
            return None
        start = self._at[4] + 32 * row
        record = Record(stamp, bytes(self._raw[start : start + 32]), self._days[row])
        return record if check_of(record) == self._checks[row] else None

    def lookup(
        self, stamps: NDArray[np.int64], skip: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows of `stamps` (but those to skip) that are recorded here, and where."""
        import numpy as np

        hashes = np.frombuffer(self._hashes, np.uint64)
        rows = np.flatnonzero(~skip)
        wanted = mix_columns([stamps[rows, 0], stamps[rows, 1]])
        at = np.searchsorted(hashes, wanted)
        at[at == self.count] = 0
        is_here = (hashes[at] == wanted) & (self.stamps[at] == stamps[rows]).all(axis=1)
        rows, at = rows[is_here], at[is_here]
        is_whole = self._checked(at)
        return rows[is_whole], at[is_whole]

    def _checked(self, at: NDArray[np.intp]) -> NDArray[np.bool_]:
        import numpy as np

        stamps, words = self.stamps[at], self.digests[at].view(np.uint64)
        columns = [*stamps.T, *words.T, self.days[at]]
        fits: NDArray[np.bool_] = mix_columns(columns) == np.frombuffer(self._checks, np.uint64)[at]
        return fits

    @property
    def stamps(self) -> NDArray[np.int64]:
        import numpy as np

        return np.frombuffer(self._raw, np.int64, 5 * self.count, self._at[2]).reshape(-1, 5)

    @property
    def days(self) -> NDArray[np.int64]:
        import numpy as np

        return np.frombuffer(self._raw, np.int64, self.count, self._at[3])

    @property
    def digests(self) -> NDArray[np.uint8]:
        import numpy as np

        return np.frombuffer(self._raw, np.uint8, 32 * self.count, self._at[4]).reshape(-1, 32)

    def whole_rows(self) -> NDArray[np.intp]:
        """The rows whose check fits."""
        import numpy as np

        every = np.arange(self.count)
        return every[self._checked(every)]


class Columns(NamedTuple):
    """Records as arrays."""

    stamps: NDArray[np.int64]
    days: NDArray[np.int64]
    digests: NDArray[np.uint8]

    def save(self, path: Path) -> None:
        """Write them as a segment."""
        import numpy as np

        hashes = mix_columns([self.stamps[:, 0], self.stamps[:, 1]])
        order = np.argsort(hashes, kind="stable")
        stamps, days, digests = self.stamps[order], self.days[order], self.digests[order]
        checks = mix_columns([*stamps.T, *digests.view(np.uint64).T, days])
        _save(path, len(days), [hashes[order].data, checks.data, stamps.data, days.data, digests.data])


def newest(segments: Sequence[Segment], first_day: int, limit: int) -> Columns:
    """The records of some segments: of each file the newest, unless unused since `first_day`.

    Args:
        limit: how many at most; the most recently used stay.
    """
    import numpy as np

    rows = [segment.whole_rows() for segment in segments]
    pairs = list(zip(segments, rows, strict=True))
    stamps = np.concatenate([s.stamps[r] for s, r in pairs])
    days = np.concatenate([s.days[r] for s, r in pairs])
    digests = np.concatenate([s.digests[r] for s, r in pairs])
    # Latest first within a file: by change time, then by use. np.lexsort sorts by its last key first.
    order = np.lexsort((-days, -stamps[:, 4], stamps[:, 1], stamps[:, 0]))
    ids = stamps[order, :2]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1]).any(axis=1)
    kept = order[is_first & (days[order] >= first_day)]
    if len(kept) > limit:
        kept = kept[np.argsort(-days[kept], kind="stable")[:limit]]
    return Columns(stamps[kept], days[kept], digests[kept])


def write_segment(path: Path, records: Sequence[Record]) -> None:
    """Write records, no two of one (device, inode), as a segment. Needs no numpy."""
    rows = sorted((mix(record.stamp[:2]), record) for record in records)
    count = len(rows)
    _save(
        path,
        count,
        [
            struct.pack(f"={count}Q", *(h for h, _ in rows)),
            struct.pack(f"={count}Q", *(check_of(r) for _, r in rows)),
            b"".join(_STAMP.pack(*r.stamp) for _, r in rows),
            struct.pack(f"={count}q", *(r.day for _, r in rows)),
            b"".join(r.digest for _, r in rows),
        ],
    )


def _save(path: Path, count: int, columns: Sequence[Any]) -> None:
    """Rename makes it appear whole; no fsync: what a power cut tears, the checks refuse."""
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(_HEADER.pack(_MAGIC, _ORDER, count))
            for column in columns:
                file.write(column)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
