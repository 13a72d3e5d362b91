"""The stat cache: digests of files that were read before, found by stamp, kept per user.

    $XDG_CACHE_HOME/prepcache/digests-v3/      mode 0700
        <time>-<pid>-<n>.seg                   a segment: records sorted by hash of (device, inode)

Invariants:
    1. A stamp that was young when its file was read is not recorded (`filesystems.is_racy`): a write in
       the same tick would leave the stamp as it is.
    2. Segments are never changed: they are written under a temporary name and renamed. Any number of
       processes may write and merge; none needs a lock, as a segment is removed only after its records
       are in another.
    3. The cache never fails a job: where it cannot be read or written it is empty or forgets.
    4. Nothing is believed that others may have written: the folder and each segment belong to this user,
       and nobody else may write to them.
    5. After a fork the child writes nothing that the parent learned (the parent will).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from prepcache.keys.files.filesystems import Stamp, is_racy, racy_window_ns
from prepcache.keys.files.segments import Segment, with_checks, write_segment
from prepcache.protocol.places import cache_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_RECORDS = 4_000_000
"""In all segments: about 350 MB of disk. The oldest segments go first."""
MAX_SEGMENTS = 8
"""With more, the smaller half is merged: every look-up asks each segment."""
MAX_PENDING = 65_536
"""Records kept in memory before they are written."""
LEFT_OVER_S = 86_400
"""Age of a temporary file from which on its writer is taken for dead."""

log = logging.getLogger("prepcache")


def default_folder() -> Path:
    """Where this user's cache lies."""
    return cache_folder(os.environ) / "digests-v3"


class StatCache:
    """Digests of files by stamp.

    Args:
        folder: where segments lie; the user's own by default.
        clock: nanoseconds since the epoch, by which stamps are young or not.
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
        self._pending: dict[tuple[int, int], tuple[Stamp, bytes]] = {}
        self._segments: dict[str, Segment] | None = None

    def get(self, stamp: Stamp) -> bytes | None:
        """The digest recorded for this stamp, or None. Needs no numpy."""
        segments = self._opened()
        pending = self._pending.get(stamp[:2])
        if pending is not None and pending[0] == stamp:
            return pending[1]
        for segment in segments:
            if (digest := segment.get(stamp)) is not None:
                return digest
        return None

    def lookup(self, stamps: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """The digests recorded for many stamps.

        Shape:
            stamps: [n, 5]. Returns found: bool[n], digests: uint8[n, 32] (zeros where not found).
        """
        import numpy as np

        found = np.zeros(len(stamps), np.bool_)
        digests = np.zeros((len(stamps), 32), np.uint8)
        for segment in self._opened():
            rows = np.flatnonzero(~found)
            is_here, theirs = segment.lookup(stamps[rows])
            found[rows[is_here]] = True
            digests[rows[is_here]] = theirs
        if self._pending:
            for row in np.flatnonzero(~found).tolist():
                stamp, digest = self._pending.get(tuple(stamps[row, :2].tolist()), ((), b""))
                if stamp == tuple(stamps[row].tolist()):
                    found[row] = True
                    digests[row] = np.frombuffer(digest, np.uint8)
        return found, digests

    def add(self, stamp: Stamp, digest: bytes, read_at_ns: int) -> bool:
        """Record what a file's bytes were, unless the stamp was too young; whether it was recorded."""
        if is_racy(stamp, read_at_ns, self._window_ns(stamp[0])):
            return False
        self._opened()
        with self._lock:
            self._pending[stamp[:2]] = stamp, digest
        if len(self._pending) >= MAX_PENDING:
            self.flush()
        return True

    def refresh(self) -> None:
        """Look for segments that other processes wrote or merged since."""
        self._opened()
        with self._lock:
            self._load()

    def flush(self) -> None:
        """Write what was learned since the last flush as a segment."""
        self._opened()
        with self._lock:
            if not self._pending:
                return
            try:
                self._write_pending()
                self._load()
                self._merge()
            except OSError as error:
                log.debug("the cache of file digests in %s cannot be written: %s", self.folder, error)
                if len(self._pending) >= 4 * MAX_PENDING:
                    self._pending.clear()

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "clock": self.clock, "window": self._window_ns}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["folder"], clock=state["clock"], window_ns=state["window"])  # type: ignore[misc]

    def _opened(self) -> Iterable[Segment]:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._pending = {}
        if self._segments is None:
            with self._lock:
                self._load()
        return (self._segments or {}).values()

    def _load(self) -> None:
        """Open segments that are new and let go of those that are gone. Call with the lock."""
        before = self._segments or {}
        opened = ((name, before.get(name) or Segment.open(self.folder / name)) for name in self._names())
        self._segments = {name: segment for name, segment in opened if segment is not None}

    def _names(self) -> list[str]:
        """Segments, newest first; none if the folder is not this user's alone."""
        try:
            info = os.stat(self.folder)
            if info.st_uid != os.geteuid() or info.st_mode & 0o022:
                return []
            return sorted((n for n in os.listdir(self.folder) if n.endswith(".seg")), reverse=True)
        except OSError:
            return []

    def _write_pending(self) -> None:
        import numpy as np

        stamps = np.array([stamp for stamp, _ in self._pending.values()], np.int64)
        digests = np.frombuffer(b"".join(digest for _, digest in self._pending.values()), np.uint8)
        self._write(with_checks(stamps, digests.reshape(-1, 32)))
        self._pending.clear()

    def _write(self, records: NDArray[np.int64]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{self.clock():020d}-{os.getpid()}-{next(self._counter)}.seg"
        write_segment(self.folder / name, records)

    def _merge(self) -> None:
        """Keep segments few and records bounded. Call with the lock, after `_load`."""
        import numpy as np

        segments = dict(self._segments or {})
        by_size = sorted(segments, key=lambda name: segments[name].count)
        merged = by_size[: MAX_SEGMENTS // 2 + 1] if len(segments) > MAX_SEGMENTS else []
        if merged:
            newest_first = [segments[name] for name in sorted(merged, reverse=True)]
            self._write(np.concatenate([segment.records() for segment in newest_first])[:MAX_RECORDS])
        total = 0
        for name in sorted(segments, reverse=True):
            total += segments[name].count
            if name in merged or total > MAX_RECORDS:
                (self.folder / name).unlink(missing_ok=True)
        if merged:
            self._remove_left_overs()
        self._load()

    def _remove_left_overs(self) -> None:
        """Remove what killed writers left."""
        for path in self.folder.glob(".*.tmp"):
            if self.clock() - path.stat().st_mtime_ns > LEFT_OVER_S * 10**9:
                path.unlink(missing_ok=True)


_user_caches: dict[Path, StatCache] = {}


def user_stat_cache() -> StatCache:
    """The cache of this user, one object per process and folder."""
    folder = default_folder()
    return _user_caches.setdefault(folder, StatCache(folder))
