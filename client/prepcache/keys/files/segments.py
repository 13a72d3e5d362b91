"""Segments: the files of the stat cache, records sorted by hash of (device, inode).

    header   magic, byte order mark, count         32 bytes
    hashes   uint64[n]      mix(device, inode), ascending, each once
    records  int64[n, 10]   device, inode, size, mtime_ns, ctime_ns, digest (4 words), mix of those nine

Invariants:
    1. A file whose length or header does not fit is no segment. A record is believed only if its whole
       stamp is equal and its check fits. Neither is an error: a torn, mixed-up or zeroed file knows less.
    2. Segments are read by calls, never mapped: whatever happens to the file, the process lives on.
    3. `mix` and `mix_columns` agree: a single look-up needs no numpy, one of many has no loop.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prepcache.keys.files.filesystems import Stamp

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HEADER = struct.Struct("=16sQQ")
_MAGIC = b"prepcache stat 3"
_ORDER = 0x0102030405060708
_RECORD = struct.Struct("=10q")
_WORDS = struct.Struct("=4q")
_READ_WHOLE = 8
"""A segment of up to so many records for each that is wanted is read whole."""
_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15
_FACTOR = 0xD6E8FEB86659FD93


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


class Segment:
    """A sorted, immutable file of records."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        magic, order, self.count = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        self._records_at = _HEADER.size + 8 * self.count
        size = self._records_at + self.count * _RECORD.size
        if magic != _MAGIC or order != _ORDER or os.fstat(fd).st_size != size:
            raise ValueError("no segment")
        self._hashes = array("Q")
        self._hashes.frombytes(_read(fd, 8 * self.count, _HEADER.size))

    def __del__(self) -> None:
        os.close(self._fd)

    @classmethod
    def open(cls, path: Path) -> Segment | None:
        """The segment in a file, or None if it is none, or others than this user may have written it."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        info = os.fstat(fd)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022 or info.st_nlink != 1:
            os.close(fd)
            return None
        try:
            return cls(fd)
        except (OSError, ValueError, struct.error):
            return None

    def get(self, stamp: Stamp) -> bytes | None:
        """The digest of a stamp, found without numpy."""
        wanted = mix(stamp[:2])
        row = bisect_left(self._hashes, wanted)
        if row == len(self._hashes) or self._hashes[row] != wanted:
            return None
        raw = self._record(row)
        record = _RECORD.unpack(raw) if len(raw) == _RECORD.size else ()
        if record[:5] != stamp or mix(record[:9]) != record[9] & _MASK:
            return None
        return _WORDS.pack(*record[5:9])

    def lookup(self, stamps: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """Which of some stamps are recorded here, and the digests of those."""
        import numpy as np

        hashes = np.frombuffer(self._hashes, np.uint64)
        wanted = mix_columns([stamps[:, 0], stamps[:, 1]])
        at = np.searchsorted(hashes, wanted)
        rows = np.flatnonzero(at < len(hashes))
        rows = rows[hashes[at[rows]] == wanted[rows]]
        records = self._records(at[rows])
        is_right = (records[:, :5] == stamps[rows]).all(axis=1) & _fits(records)
        is_here = np.zeros(len(stamps), np.bool_)
        is_here[rows[is_right]] = True
        return is_here, np.ascontiguousarray(records[is_right, 5:9]).view(np.uint8)

    def records(self) -> NDArray[np.int64]:
        """All records whose check fits."""
        import numpy as np

        found = self._records(np.arange(self.count))
        return found[_fits(found)]

    def _record(self, row: int) -> bytes:
        return os.pread(self._fd, _RECORD.size, self._records_at + _RECORD.size * row)

    def _records(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Some records; zeros, which are none, for what cannot be read any more."""
        import numpy as np

        if _READ_WHOLE * len(rows) >= self.count:
            size = self.count * _RECORD.size
            raw = _read(self._fd, size, self._records_at).ljust(size, b"\0")
            return np.frombuffer(raw, np.int64).reshape(-1, 10)[rows]
        read = [self._record(row).ljust(_RECORD.size, b"\0") for row in rows.tolist()]
        return np.frombuffer(b"".join(read), np.int64).reshape(-1, 10)


def _read(fd: int, size: int, at: int) -> bytes:
    """Bytes of a file; fewer if they are not there."""
    parts = []
    while size and (part := os.pread(fd, size, at)):
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)


def _fits(records: NDArray[np.int64]) -> NDArray[np.bool_]:
    checks: NDArray[np.bool_] = mix_columns(list(records.T[:9])).view("i8") == records[:, 9]
    return checks


def with_checks(stamps: NDArray[np.int64], digests: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Records of stamps and digests."""
    import numpy as np

    record = [*stamps.T, *digests.view(np.int64).T]
    return np.stack([*record, mix_columns(record).view(np.int64)], axis=1)


def write_segment(path: Path, records: NDArray[np.int64]) -> None:
    """Write records as a segment; of several of one file the first.

    Rename makes it appear whole. No fsync: what a power cut tears, the checks refuse.
    """
    import numpy as np

    hashes, first = np.unique(mix_columns([records[:, 0], records[:, 1]]), return_index=True)
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(_HEADER.pack(_MAGIC, _ORDER, len(hashes)))
            file.write(hashes.data)
            file.write(records[first].data)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
