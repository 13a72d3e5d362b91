"""The memo: digests of files that were read before, by stamp, kept per user and shared by processes.

    $XDG_CACHE_HOME/prepcache/digests-v1/      mode 0700
        <time>-<pid>-<n>.seg                   a segment: records sorted by hash of (device, inode)
        lock                                   flock, held while segments are merged

Invariants:
    1. A record is believed only if the whole stamp (device, inode, size, mtime, ctime) is equal and its
       check fits; so a torn, mixed-up or zeroed file is a memo that knows less, never one that lies.
    2. A stamp that was young when its file was read is not recorded (the racy rule, `mounts`): a write in
       the same tick would leave the stamp as it is.
    3. Segments are never changed: they are written under a temporary name and renamed. Any number of
       processes may write; readers need no lock.
    4. Records that nobody asked for in `KEEP_DAYS` go when segments are merged, and no more than
       `MAX_RECORDS` stay.
    5. The memo never fails a job: where it cannot be read or written it is empty or forgets.
    6. Nothing is believed that others may have written: the folder and each segment belong to this user, and
       nobody else may write to them.
    7. After a fork the child writes nothing that the parent learned (the parent will).
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from prepcache.keys.files.filesystems import is_racy, racy_window_ns
from prepcache.keys.files.segments import Record, Segment, Stamp, newest, write_segment
from prepcache.protocol.places import cache_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEEP_DAYS = 90
"""Records unused for longer are dropped at the next merge."""
REFRESH_DAYS = 7
"""A record is written anew when it is used and older than this, which keeps it from being dropped."""
MAX_RECORDS = 4_000_000
"""About 370 MB of disk; the least recently used go first."""
MAX_SEGMENTS = 8
"""With more, the small ones are merged: every look-up asks each segment."""
MAX_PENDING = 65_536
"""Records kept in memory before they are written."""

_DAY_NS = 86_400 * 1_000_000_000

log = logging.getLogger("prepcache")


def default_folder() -> Path:
    """Where this user's memo lies."""
    return cache_folder(os.environ) / "digests-v1"


class Memo:
    """Digests of files by stamp.

    Args:
        folder: where segments lie; the user's own by default.
        clock: nanoseconds since the epoch; the racy rule and the ageing of records use it.
        window_ns: device -> how old a stamp must be to be recorded.

    Locking:
        `_lock` guards `_pending` and `_segments`; look-ups in segments need no lock.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        window_ns: Callable[[int], int] = racy_window_ns,
    ) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self.clock = clock
        self._window_ns = window_ns
        self._counter = count()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._pending: dict[tuple[int, int], Record] = {}
        self._segments: dict[str, Segment] = {}
        self._is_loaded = False

    def get(self, stamp: Stamp) -> bytes | None:
        """The digest recorded for this stamp, or None. Needs no numpy."""
        self._open()
        pending = self._pending.get(stamp[:2])
        if pending is not None and pending.stamp == stamp:
            return pending.digest
        for segment in self._segments.values():
            found = segment.get(stamp)
            if found is not None:
                if found.day < self._today() - REFRESH_DAYS:
                    self._remember(stamp, found.digest)
                return found.digest
        return None

    def lookup(self, stamps: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """The digests recorded for many stamps.

        Shape:
            stamps: [n, 5]. Returns found: bool[n], digests: uint8[n, 32] (zeros where not found).
        """
        import numpy as np

        self._open()
        found = np.zeros(len(stamps), np.bool_)
        digests = np.zeros((len(stamps), 32), np.uint8)
        old = self._today() - REFRESH_DAYS
        for segment in self._segments.values():
            if found.all():
                break
            rows, at = segment.lookup(stamps, found)
            found[rows] = True
            digests[rows] = segment.digests[at]
            for row in rows[segment.days[at] < old].tolist():
                self._remember(tuple(stamps[row].tolist()), digests[row].tobytes())
        if self._pending and not found.all():
            for row in np.flatnonzero(~found).tolist():
                record = self._pending.get(tuple(stamps[row, :2].tolist()))
                if record is not None and record.stamp == tuple(stamps[row].tolist()):
                    found[row] = True
                    digests[row] = np.frombuffer(record.digest, np.uint8)
        return found, digests

    def is_racy(self, stamp: Stamp, read_at_ns: int) -> bool:
        """Whether the racy rule keeps this stamp out of the memo."""
        return is_racy(stamp, read_at_ns, self._window_ns(stamp[0]))

    def add(self, stamp: Stamp, digest: bytes, read_at_ns: int) -> bool:
        """Record what a file's bytes were, unless the stamp was too young; whether it was recorded."""
        if self.is_racy(stamp, read_at_ns):
            return False
        self._open()
        self._remember(stamp, digest)
        if len(self._pending) >= MAX_PENDING:
            self.flush()
        return True

    def refresh(self) -> None:
        """Look for segments that other processes wrote or merged since."""
        self._open()
        with self._lock:
            self._load()

    def flush(self) -> None:
        """Write what was learned since the last flush as a segment."""
        self._open()
        with self._lock:
            if not self._pending:
                return
            records = list(self._pending.values())
            try:
                self._write(records)
                self._pending.clear()
                self._load()
                if len(self._segments) > MAX_SEGMENTS:
                    self._merge()
            except OSError as error:
                log.debug("the memo of file digests in %s cannot be written: %s", self.folder, error)
                if len(self._pending) >= 4 * MAX_PENDING:
                    self._pending.clear()

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "clock": self.clock, "window": self._window_ns}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["folder"], clock=state["clock"], window_ns=state["window"])  # type: ignore[misc]

    # -- inside ----------------------------------------------------------------------------------------

    def _today(self) -> int:
        return self.clock() // _DAY_NS

    def _remember(self, stamp: Stamp, digest: bytes) -> None:
        with self._lock:
            self._pending[stamp[:2]] = Record(stamp, digest, self._today())

    def _open(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._pending = {}
        if not self._is_loaded:
            with self._lock:
                if not self._is_loaded:
                    self._load()
                    self._is_loaded = True

    def _load(self) -> None:
        """Open segments that are new and let go of those that are gone. Call with the lock."""
        segments: dict[str, Segment] = {}
        for name in self._names():
            segment = self._segments.get(name) or Segment.open(self.folder / name)
            if segment is not None:
                segments[name] = segment
        self._segments = segments

    def _names(self) -> list[str]:
        """Segments, newest first; none if the folder is not this user's alone."""
        try:
            info = os.stat(self.folder)
            if info.st_uid != os.geteuid() or info.st_mode & 0o022:
                return []
            return sorted((n for n in os.listdir(self.folder) if n.endswith(".seg")), reverse=True)
        except OSError:
            return []

    def _write(self, records: list[Record]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{self.clock():020d}-{os.getpid()}-{next(self._counter)}.seg"
        write_segment(self.folder / name, records)

    def _merge(self) -> None:
        """Merge the small segments into one. Call with the lock."""
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._load()
            by_size = sorted(self._segments.items(), key=lambda item: item[1].count, reverse=True)
            while by_size and by_size[0][1].count > 2 * sum(s.count for _, s in by_size[1:]):
                by_size.pop(0)
            if len(by_size) < 2:
                return
            self._sweep()
            records = newest([s for _, s in by_size], self._today() - KEEP_DAYS, MAX_RECORDS)
            name = f"{self.clock():020d}-{os.getpid()}-{next(self._counter)}.seg"
            records.save(self.folder / name)
            for old, _ in by_size:
                os.unlink(self.folder / old)
            self._load()
        finally:
            os.close(fd)

    def _sweep(self) -> None:
        """Remove what killed writers left. Call with the lock and the flock."""
        for name in os.listdir(self.folder):
            path = self.folder / name
            if name.endswith(".tmp") and self.clock() - path.stat().st_mtime_ns > _DAY_NS:
                path.unlink(missing_ok=True)


_user_memos: dict[Path, Memo] = {}


def user_memo() -> Memo:
    """The memo of this user, one object per process and folder."""
    folder = default_folder()
    return _user_memos.setdefault(folder, Memo(folder))
