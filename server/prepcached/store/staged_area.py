"""The staging folder as the daemon sees it: how many bytes lie there, and whose.

Clients write there without asking, so the bytes are counted by looking. A file that is being taken or
uploaded is left out: its bytes are reserved by the commit or the upload.

Locking: its own, over names only; never held over I/O on file contents.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager

from prepcached.store import durable
from prepcached.store.layout import session_of, staged_name


class StagedArea:
    """What lies in the staging folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._taking: set[str] = set()
        self._uploading: set[str] = set()

    def look(self) -> int:
        """Bytes on disk of all staged files for which nothing is reserved."""
        total = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with self._lock:
                    if entry.name in self._taking or entry.name in self._uploading:
                        continue
                with contextlib.suppress(FileNotFoundError):
                    total += durable.disk_bytes(entry.stat(follow_symlinks=False))
        return total

    def taking(self, name: str) -> AbstractContextManager[None]:
        """Leaves one file out of `look` while a commit has it."""
        return self._among(self._taking, name)

    def uploading(self, name: str) -> AbstractContextManager[None]:
        """Leaves one file out of `look` while it is uploaded; a sweep takes it."""
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

    def sessions(self) -> set[str]:
        """For whom files lie here, by their names."""
        return {session_of(name) for name in os.listdir(self._folder)}

    def sweep(self, sessions: Collection[str]) -> int:
        """Deletes the files of these sessions; returns how many.

        Raises:
            OSError: the first that could not be deleted; the others are.
        """
        swept, failed = 0, None
        for name in os.listdir(self._folder):
            with self._lock:
                if name in self._taking:
                    continue
            if session_of(name) in sessions:
                try:
                    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                        os.unlink(os.path.join(self._folder, name))
                        swept += 1
                except OSError as error:
                    failed = failed or error
        if failed is not None:
            raise failed
        return swept
