"""Samples that only this job has, or has for now: artifacts in unlinked temporary files.

Invariants:
    1. Nothing of them is left on the disk after the last process that maps one has ended, however it ends.
    2. Opening one by its address gives that file or none. A descriptor's number is used again, an inode's
       within the tick of its times, and one key may have other bytes (of files that changed meanwhile): so
       each file gets a time of modification drawn by chance.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prepcache import artifact
from prepcache.daemon.full_disk import writing_in
from prepcache.errors import ArtifactError
from prepcache.keys.files.stamps import stamp_of

Identity = tuple[int, int, int, int, int, str]
"""A file's stamp, and its artifact's key."""


class Spilled:
    """What a writer has collected, in an unlinked temporary file.

    Raises:
        OSError: the temporary folder takes no more.
    """

    def __init__(
        self, writer: artifact.Writer, producer: dict[str, Any], observed: Sequence[dict[str, Any]] = ()
    ) -> None:
        folder = _folder()
        with writing_in(folder, "set TMPDIR to another folder"):
            fd, name = tempfile.mkstemp(prefix="prepcache-", dir=folder)
            Path(name).unlink()
            self._own(fd)
            self.nbytes = writer.write(fd, producer=producer, observed=observed).size_bytes
        token = int.from_bytes(os.urandom(7), "big")
        os.utime(fd, ns=(token, token))
        self._open()

    def _own(self, fd: int) -> None:
        self._fd = fd
        # Not at the end of the process: a thread may still write, and the number be another file's by then.
        weakref.finalize(self, os.close, fd).atexit = False

    def _open(self) -> None:
        self.artifact = artifact.open(self._fd)

    @property
    def address(self) -> tuple[int, int, Identity]:
        """Process and descriptor by which another process of this job can open the file, and which it is."""
        return os.getpid(), self._fd, self._identity

    @property
    def _identity(self) -> Identity:
        return *stamp_of(os.fstat(self._fd)), self.artifact.key

    @classmethod
    def of(cls, pid: int, fd: int, identity: Identity) -> Spilled | None:
        """The file at another process's `address`; None if it is not there any more."""
        found = cls.__new__(cls)
        try:
            found._own(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
            found._open()
        except (OSError, ArtifactError):
            return None
        if found._identity != identity:
            return None
        found.nbytes = found.artifact.size_bytes
        return found

    def write(self, fd: int, *, producer: dict[str, Any], observed: Sequence[dict[str, Any]] = ()) -> None:
        """Writes the same artifact elsewhere; its producer and what was observed are in it already."""
        artifact.copy(self._fd, fd, self.nbytes)


def _folder() -> str:
    """Where large temporary files belong: `/tmp` is memory on many systems. TMPDIR decides where set."""
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK):
        return "/var/tmp"
    return tempfile.gettempdir()
