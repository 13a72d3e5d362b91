"""The staging folder as the daemon sees it: how many bytes lie there, for whom, and what is swept.

Clients write there without asking, so the bytes are counted by looking. A file that is being taken or
uploaded is left out: its bytes are reserved by the commit or the upload.

Invariants:
    1. Only files of sessions that hold a lease count against the budget. Everything else is stray: it makes
       nothing go, it is counted apart, and it is swept.
    2. A file of a live session without a lease is swept when two sweeps in a row found it so: a client
       whose lease has lapsed may be leasing its items again.

Locking: its own, over names only; never held over I/O on file contents.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from prepcached.store import durable
from prepcached.store.layout import is_staged_name, session_of, staged_name


class Staged(NamedTuple):
    """Bytes on disk in the staging folder. Of folders, which are swept, only their own are counted."""

    leased_bytes: int
    stray_bytes: int


class Swept(NamedTuple):
    """What a sweep removed, and the first name that could not be removed, if any."""

    files: int
    disk_bytes: int
    failed: OSError | None


class StagedArea:
    """What lies in the staging folder."""

    def __init__(self, folder: str) -> None:
        self.leased: frozenset[str] = frozenset()
        """The sessions that hold leases."""
        self._folder = folder
        self._lock = threading.Lock()
        self._taking: set[str] = set()
        self._uploading: set[str] = set()
        self._unleased: frozenset[str] = frozenset()
        """Files of live sessions that the last sweep found without a lease."""

    def look(self) -> Staged:
        """Bytes on disk of all that lies here and for which nothing is reserved."""
        leased = stray = 0
        leasing = self.leased
        for entry in self._entries():
            with contextlib.suppress(FileNotFoundError):
                size = durable.disk_bytes(entry.stat(follow_symlinks=False))
                is_file = not entry.is_dir(follow_symlinks=False)
                if is_file and is_staged_name(entry.name) and session_of(entry.name) in leasing:
                    leased += size
                else:
                    stray += size
        return Staged(leased, stray)

    def taking(self, name: str) -> AbstractContextManager[None]:
        """Leaves one file out of `look` while a commit has it; no sweep takes it."""
        return self._among(self._taking, name)

    def uploading(self, name: str) -> AbstractContextManager[None]:
        """Leaves one file out of `look` while it is uploaded; a sweep takes it with its session."""
        return self._among(self._uploading, name)

    @contextlib.contextmanager
    def _among(self, names: set[str], name: str) -> Iterator[None]:
        with self._lock:
            names.add(name)
        try:
            yield
        finally:
            with self._lock:
                names.discard(name)

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
        swept = self._remove(n for n in os.listdir(self._folder) if session_of(n) in sessions)
        if swept.failed is not None:
            raise swept.failed
        return swept.files

    def sweep(self, live: Collection[str]) -> Swept:
        """Removes what no lease names: see invariants 1 and 2.

        Args:
            live: sessions that are open, or whose commit is under way.
        """
        leasing, unleased, strays = self.leased, set(), []
        for entry in self._entries():
            is_named = is_staged_name(entry.name) and session_of(entry.name) in live
            if not is_named or entry.is_dir(follow_symlinks=False):
                strays.append(entry.name)
            elif session_of(entry.name) not in leasing:
                unleased.add(entry.name)
        swept = self._remove((*strays, *(unleased & self._unleased)))
        self._unleased = frozenset(unleased)
        return swept

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """All that lies here, but for what a commit takes or an upload writes."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with self._lock:
                    is_ours = entry.name in self._taking or entry.name in self._uploading
                if not is_ours:
                    yield entry

    def _remove(self, names: Iterator[str] | Collection[str]) -> Swept:
        files = size = 0
        failed: OSError | None = None
        for name in names:
            with self._lock:
                if name in self._taking:
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
