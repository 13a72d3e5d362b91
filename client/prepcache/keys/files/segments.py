"""Segments: the files of the stat cache, columns of records sorted by hash of (device, inode).

    header   magic, byte order mark, count        32 bytes
    hashes   uint64[n]     mix(device, inode), ascending, each once
    checks   uint64[n]     mix(stamp, digest)
    stamps   int64[n, 5]   device, inode, size, mtime_ns, ctime_ns
    digests  uint8[n, 32]

Invariants:
    1. A file whose length or header does not fit is no segment. A record is believed only if its whole
       stamp is equal and its check fits. Neither is an error: a torn, mixed-up or zeroed file knows less.
    2. `mix` and `mix_columns` agree: a single look-up needs no numpy, one of many has no loop.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prepcache.keys.files.filesystems import Stamp

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HEADER = struct.Struct("=16sQQ")
_MAGIC = b"prepcache stat 2"
_ORDER = 0x0102030405060708
_RECORD_BYTES = 8 + 8 + 40 + 32
_STAMP = struct.Struct("=5q")
_WORDS = struct.Struct("=4Q")
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
    """A sorted, immutable file of records, mapped."""

    def __init__(self, raw: Any, count: int) -> None:
        self.count = count
        self._raw = raw
        self._checks_at = _HEADER.size + 8 * count
        self._stamps_at = self._checks_at + 8 * count
        self._digests_at = self._stamps_at + 40 * count
        view = memoryview(raw)
        self._hashes = view[_HEADER.size : self._checks_at].cast("Q")
        self._checks = view[self._checks_at : self._stamps_at].cast("Q")

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
            raw = mmap.mmap(fd, info.st_size, prot=mmap.PROT_READ)
            magic, order, count = _HEADER.unpack_from(raw)
            if magic != _MAGIC or order != _ORDER or len(raw) != _HEADER.size + count * _RECORD_BYTES:
                return None
            return cls(raw, count)
        except (OSError, ValueError, struct.error):
            return None
        finally:
            os.close(fd)

    def get(self, stamp: Stamp) -> bytes | None:
        """The digest of a stamp, found without numpy."""
        wanted = mix(stamp[:2])
        row = bisect_left(self._hashes, wanted)
        if row == self.count or self._hashes[row] != wanted:
            return None
        if _STAMP.unpack_from(self._raw, self._stamps_at + 40 * row) != stamp:
            return None
        start = self._digests_at + 32 * row
        digest: bytes = self._raw[start : start + 32]
        return digest if mix((*stamp, *_WORDS.unpack(digest))) == self._checks[row] else None

    def lookup(self, stamps: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """Which of some stamps are recorded here, and the digests of those."""
        import numpy as np

        if not self.count:
            return np.zeros(len(stamps), np.bool_), np.empty((0, 32), np.uint8)
        hashes = np.frombuffer(self._hashes, np.uint64)
        at = np.searchsorted(hashes, mix_columns([stamps[:, 0], stamps[:, 1]])) % self.count
        stamps_here, digests_here = self._columns()
        own, digests = stamps_here[at], digests_here[at]
        is_here = (own == stamps).all(axis=1) & self._fits(own, digests, at)
        return is_here, digests[is_here]

    def records(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Stamps and digests of all records whose check fits."""
        stamps, digests = self._columns()
        is_whole = self._fits(stamps, digests, slice(None))
        return stamps[is_whole], digests[is_whole]

    def _columns(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        import numpy as np

        stamps = np.frombuffer(self._raw, np.int64, 5 * self.count, self._stamps_at)
        digests = np.frombuffer(self._raw, np.uint8, 32 * self.count, self._digests_at)
        return stamps.reshape(-1, 5), digests.reshape(-1, 32)

    def _fits(self, stamps: NDArray[np.int64], digests: NDArray[np.uint8], at: Any) -> NDArray[np.bool_]:
        import numpy as np

        checks: NDArray[np.bool_] = _checks(stamps, digests) == np.frombuffer(self._checks, np.uint64)[at]
        return checks


def _checks(stamps: NDArray[np.int64], digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return mix_columns([*stamps.T, *digests.view("u8").T])


def write_segment(path: Path, stamps: NDArray[np.int64], digests: NDArray[np.uint8]) -> None:
    """Write records as a segment; of several of one file the first.

    Rename makes it appear whole. No fsync: what a power cut tears, the checks refuse.
    """
    import numpy as np

    hashes, first = np.unique(mix_columns([stamps[:, 0], stamps[:, 1]]), return_index=True)
    stamps, digests = stamps[first], digests[first]
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(_HEADER.pack(_MAGIC, _ORDER, len(hashes)))
            for column in (hashes, _checks(stamps, digests), stamps, digests):
                file.write(column.data)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
