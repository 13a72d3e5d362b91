"""The staging folder as the daemon sees it: how many bytes lie there, and what is swept.

Clients write there without asking, so the bytes are counted by looking. A file that is being committed or
uploaded is left out: its bytes are reserved.

Invariants:
    1. A file stays as long as the session that its name says is open. What names no open session, and every
       folder, is swept.

Locking: its own, over names only; never held over I/O on file contents.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from prepcached.store import durable
from prepcached.store.layout import is_staged_name, session_of, staged_name


class Swept(NamedTuple):
    """What a sweep removed, and the first name that could not be removed, if any."""

    files: int
    disk_bytes: int
    failed: OSError | None


class StagedArea:
    """What lies in the staging folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._busy: Counter[str] = Counter()

    def disk_bytes(self) -> int:
        """Bytes on disk of the files here for which nothing is reserved."""
        size = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not self._is_busy(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        size += durable.disk_bytes(entry.stat(follow_symlinks=False))
        return size

    @contextlib.contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """A commit or an upload has this file: it is not counted here, and not swept."""
        with self._lock:
            self._busy[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy[name] -= 1
                if not self._busy[name]:
                    del self._busy[name]

    def new(self, name: str) -> int:
        """A descriptor of a new staged file of the daemon's own, for an upload."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(os.path.join(self._folder, staged_name(name)), flags, 0o640)

    def unlink(self, name: str) -> None:
        """Deletes one staged file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, staged_name(name)))

    def discard(self, sessions: Collection[str]) -> int:
        """Deletes the files of sessions that ended; returns how many.

        Raises:
            OSError: the first that could not be deleted; the others are.
        """
        swept = self._remove(name for name in os.listdir(self._folder) if session_of(name) in sessions)
        if swept.failed is not None:
            raise swept.failed
        return swept.files

    def sweep(self, live: Collection[str]) -> Swept:
        """Removes what belongs to no open session.

        Args:
            live: sessions that are open, or whose commit is under way.
        """
        with os.scandir(self._folder) as entries:
            return self._remove(
                entry.name
                for entry in entries
                if session_of(entry.name) not in live
                or not is_staged_name(entry.name)
                or entry.is_dir(follow_symlinks=False)
            )

    def _is_busy(self, name: str) -> bool:
        with self._lock:
            return name in self._busy

    def _remove(self, names: Iterable[str]) -> Swept:
        files = size = 0
        failed: OSError | None = None
        for name in names:
            if self._is_busy(name):
                continue
            path = os.path.join(self._folder, name)
            try:
                status = os.lstat(path)
                if stat.S_ISDIR(status.st_mode):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                failed = failed or error
                continue
            files += 1
            size += durable.disk_bytes(status)
        return Swept(files, size, failed)
