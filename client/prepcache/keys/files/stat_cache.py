"""The stat cache: digests of files that were read before, found by stamp, kept per user.

    $XDG_CACHE_HOME/prepcache/digests-v4/      mode 0700
        <time>-<pid>-<n>.seg                   a segment
            header   magic, count              24 bytes
            hashes   uint64[n]                 mix(device, inode), ascending, each once
            records  int64[n, 10]              the stamp, the digest (4 words), mix of those nine

Invariants:
    1. A stamp that was young when its file was read is not recorded (`is_racy`).
    2. Segments are never changed. Any number of processes may write and merge; none needs a lock, as a
       segment is removed only after its records are in another.
    3. The cache never fails a job: where it cannot be read or written it is empty or forgets. Segments are
       read by calls, never mapped.
    4. Nothing is believed that others may have written. A record is believed only if its whole stamp is
       equal and its check fits: a torn, mixed-up or zeroed file knows less.
    5. A forked child writes nothing that its parent learned (the parent will).
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prepcache import forks
from prepcache.protocol.places import cache_folder

Stamp = tuple[int, int, int, int, int]  # device, inode, size, mtime_ns, ctime_ns, as signed 64-bit numbers

LOCAL_WINDOW_NS = 2_000_000_000  # a younger stamp may hide a later write: some filesystems count in seconds
REMOTE_WINDOW_NS = 60_000_000_000  # on network, FUSE and unknown ones: attributes are cached up to 60 s
_LOCAL = (
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "bcachefs", "f2fs", "jfs", "reiserfs", "tmpfs",
    "ramfs", "overlay", "aufs", "ntfs3", "udf", "nilfs2", "ubifs", "rootfs", "devtmpfs", "hugetlbfs",
)  # fmt: skip
_WITHOUT_CHANGE_TIME = (
    "vfat", "msdos", "exfat", "squashfs", "erofs", "iso9660", "fuse.squashfuse", "fuse.squashfuse_ll",
)  # fmt: skip
"""Anyone may set a change time there, or make the whole image again with all its times as before."""
_WINDOWS_NS = dict.fromkeys(_LOCAL, LOCAL_WINDOW_NS) | dict.fromkeys(_WITHOUT_CHANGE_TIME, 1 << 62)
_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15
_FACTOR = 0xD6E8FEB86659FD93
_windows: dict[int, int] = {}
_user_caches: dict[Path, StatCache] = {}

MAX_RECORDS = 4_000_000  # in a segment: about 350 MB of disk; beyond it go older ones than the last
MOST_SEGMENTS = 8
MAX_PENDING = 65_536
_READ_WHOLE = 8  # a segment of up to so many records for each that is wanted is read whole
_MAGIC = b"prepcache stat 4"
_HEADER, _RECORD, _WORDS = struct.Struct("<16sQ"), struct.Struct("<10q"), struct.Struct("<4q")

log = logging.getLogger("prepcache")


def stamp_of(info: os.stat_result) -> Stamp:
    return (_signed(info.st_dev), _signed(info.st_ino), info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def path_stamp(path: str) -> Stamp | None:
    try:
        return stamp_of(os.stat(path))
    except OSError:
        return None


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def is_racy(stamp: Stamp, read_at_ns: int, window_ns: int) -> bool:
    """Whether a write after `read_at_ns` could leave a stamp as it is. Anyone may set a modification time."""
    return read_at_ns - stamp[4] < window_ns or -window_ns < read_at_ns - stamp[3] < window_ns


def racy_window_ns(device: int) -> int:
    """How old a stamp on this device must be to be trusted. A device that no mount names, as that of a btrfs
    subvolume, is taken for a remote one."""
    if device not in _windows:
        _windows.update((known, _WINDOWS_NS.get(kind, REMOTE_WINDOW_NS)) for known, kind in _mounted())
    return _windows.setdefault(device, REMOTE_WINDOW_NS)


def _mounted() -> Iterator[tuple[int, str]]:
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as lines:
        for row in map(bytes.split, lines):
            yield os.makedev(*map(int, row[2].split(b":"))), os.fsdecode(row[row.index(b"-") + 1])


def mix(words: Iterable[Any]) -> Any:
    """A 64-bit hash of 64-bit words, each an int or a column, uint64[n]; not for secrets."""
    h: Any = _SEED
    for word in words:
        h = ((h ^ (word & _MASK)) * _FACTOR) & _MASK
        h = h ^ (h >> 32)
    return h


class _Segment:
    """A sorted, immutable file of records, opened. OSError, ValueError: it is none, or may be of others."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        weakref.finalize(self, os.close, self._fd).atexit = False
        info = os.fstat(self._fd)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022 or info.st_nlink != 1:
            raise ValueError("others may have written it")
        magic, self.count = _HEADER.unpack(self._read(_HEADER.size, 0))
        self._records_at = _HEADER.size + 8 * self.count
        if magic != _MAGIC or info.st_size != self._records_at + self.count * _RECORD.size:
            raise ValueError("no segment")
        self._hashes = array("Q", self._read(8 * self.count, _HEADER.size))

    def _read(self, size: int, at: int) -> bytes:
        """Zeros, which are no record, for what is not there any more."""
        return os.pread(self._fd, size, at).ljust(size, b"\0")

    def get(self, stamp: Stamp) -> bytes | None:
        wanted = mix(stamp[:2])
        row = bisect_left(self._hashes, wanted)
        if row == len(self._hashes) or self._hashes[row] != wanted:
            return None
        record = _RECORD.unpack(self._read(_RECORD.size, self._records_at + _RECORD.size * row))
        if record[:5] != stamp or mix(record[:9]) != record[9] & _MASK:
            return None
        return _WORDS.pack(*record[5:9])

    def lookup(self, stamps: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        hashes = np.frombuffer(self._hashes, np.uint64)
        wanted = mix(stamps.T[:2].view(np.uint64))
        at = np.searchsorted(hashes, wanted)
        rows = np.flatnonzero(at < len(hashes))
        rows = rows[hashes[at[rows]] == wanted[rows]]
        records = self.records(at[rows])
        is_right = (records[:, :5] == stamps[rows]).all(axis=1) & _fits(records)
        return rows[is_right], np.ascontiguousarray(records[is_right, 5:9]).view(np.uint8)

    def records(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        size, begin = _RECORD.size, self._records_at
        if _READ_WHOLE * len(rows) >= self.count:
            return np.frombuffer(self._read(size * self.count, begin), "<i8").reshape(-1, 10)[rows]
        read = [self._read(size, begin + size * row) for row in rows.tolist()]
        return np.frombuffer(b"".join(read), "<i8").reshape(-1, 10)


def _fits(records: NDArray[np.int64]) -> Any:
    *words, check = records.view("u8").T
    return mix(words) == check


def write_whole(path: Path, *parts: Any) -> None:
    """Gives a path these bytes, all or none, in a file of this user's. No fsync: readers check."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{time.time_ns()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.writelines(parts)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class StatCache:
    """Digests of files by stamp. `window_ns`: how old one must be, by device. `_lock` guards its parts."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        clock: Callable[[], int] = time.time_ns,
        window_ns: Callable[[int], int] = racy_window_ns,
    ) -> None:
        self.folder = Path(folder)
        self.clock = clock
        self._window_ns = window_ns
        self._counter = count()
        self._segments: dict[str, _Segment] | None = None
        self.after_fork()
        forks.note(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()
        self._pending: dict[Stamp, bytes] = {}

    def get(self, stamp: Stamp) -> bytes | None:
        if (digest := self._pending.get(stamp)) is not None:
            return digest
        segments = self._opened().values()
        return next((found for one in segments if (found := one.get(stamp)) is not None), None)

    def lookup(self, stamps: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """Which of stamps, int64[n, 5], are recorded, bool[n], and their digests, uint8[n, 32], or zeros."""
        found = np.zeros(len(stamps), np.bool_)
        digests = np.zeros((len(stamps), 32), np.uint8)
        for segment in self._opened().values():
            missing = np.flatnonzero(~found)
            rows, theirs = segment.lookup(stamps[missing])
            found[missing[rows]], digests[missing[rows]] = True, theirs
        for row in np.flatnonzero(~found).tolist() if self._pending else ():
            if (digest := self._pending.get(tuple(stamps[row].tolist()))) is not None:
                found[row], digests[row] = True, np.frombuffer(digest, np.uint8)
        return found, digests

    def add(self, stamp: Stamp, digest: bytes, read_at_ns: int) -> bool:
        """Records what a file's bytes were, unless the stamp was too young; whether it did so."""
        if is_racy(stamp, read_at_ns, self._window_ns(stamp[0])):
            return False
        with self._lock:
            self._pending[stamp] = digest
        if len(self._pending) >= MAX_PENDING:
            self.flush()
        return True

    def flush(self) -> None:
        with self._lock:
            if not self._pending:
                return
            try:
                self._write_pending()
            except OSError as error:
                log.debug("the cache of file digests in %s cannot be written: %s", self.folder, error)
                if len(self._pending) >= MAX_PENDING:
                    self._pending.clear()

    def _opened(self) -> dict[str, _Segment]:
        return self.refresh() if self._segments is None else self._segments

    def refresh(self) -> dict[str, _Segment]:
        """Opens segments that are new, newest first."""
        found: dict[str, _Segment] = {}
        with self._lock, contextlib.suppress(OSError):
            info = os.stat(self.folder)
            is_own = info.st_uid == os.geteuid() and not info.st_mode & 0o022
            for name in sorted(os.listdir(self.folder), reverse=True) if is_own else ():
                if name.endswith(".seg"):
                    try:
                        found[name] = (self._segments or {}).get(name) or _Segment(self.folder / name)
                    except (OSError, ValueError) as error:
                        log.debug("%s is not used: %s", self.folder / name, error)
        self._segments = found
        return found

    def _write_pending(self) -> None:
        stamps = np.array([*self._pending], np.int64).view(np.uint64)
        digests = np.frombuffer(b"".join(self._pending.values()), np.uint64)
        columns = [*stamps.T, *digests.reshape(-1, 4).T]
        records = [np.stack([*columns, mix(columns)], axis=1).view(np.int64)[::-1]]
        segments = self.refresh()
        merged = segments if len(segments) >= MOST_SEGMENTS else {}
        for segment in merged.values():  # the newest record of a file comes first
            theirs = segment.records(np.arange(segment.count))
            records.append(theirs[_fits(theirs)])
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{self.clock():020d}-{os.getpid()}-{next(self._counter)}.seg"
        found = np.concatenate(records)[:MAX_RECORDS]  # of a file the first counts
        hashes, first = np.unique(mix(found.T[:2].view(np.uint64)), return_index=True)
        header = _HEADER.pack(_MAGIC, len(hashes))
        write_whole(self.folder / name, header, hashes.astype("<u8").data, found[first].data)
        self._pending.clear()
        for gone in merged:
            (self.folder / gone).unlink(missing_ok=True)
        for path in self.folder.glob(".*.tmp"):  # of a writer that was killed a day ago
            if self.clock() - path.stat().st_mtime_ns > 86_400 * 10**9:
                path.unlink(missing_ok=True)
        self.refresh()


def user_stat_cache() -> StatCache:
    folder = cache_folder(os.environ) / "digests-v4"
    return _user_caches.setdefault(folder, StatCache(folder))
