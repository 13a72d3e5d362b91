"""Artifacts' bytes, to the daemon and from it: by path where its folder is shared, else over HTTP.

Invariants:
    1. A folder is trusted only after the daemon's own instance id was found in it: in a container, or
       under another mount, the path that the daemon names may be somebody else's.
    2. A file has a name in the staging folder only while a commit is under way. It is new, no symlink, and
       0640 whatever the umask. Whether its commit is done or fails, the daemon takes it away.
    3. A downloaded artifact gets its name only after its bytes were found to have that digest.
    4. What honestly takes long is no waiting: a commit has the time of a slow disk, a transfer that of what
       it moved. A daemon that hangs costs no more than what is left of the wait budget.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from prepcache.daemon import waits
from prepcache.digests import Digest
from prepcache.errors import ArtifactError

UPLOAD_BYTES = 1 << 20
MAX_INSTANCE_BYTES = 256
KEEP_DOWNLOADS_S = 24 * 3600.0  # for so long after a job opened it
FREE_SHARE = 20  # one part in so many of a filesystem stays free: jobs write their checkpoints there, too
_ELSE = "set XDG_CACHE_HOME to another folder"


@contextlib.contextmanager
def writing_in(folder: str | os.PathLike[str], or_else: str) -> Iterator[None]:
    """Says the folder and the ways out in an OSError of the block: the system's own message names no file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not the system's: what a signal handler of the job's raises, say
            raise
        ways_out = f"free space there, make it writable, or {or_else}"
        raise OSError(error.errno, f"{error.strerror}, in {os.fspath(folder)}: {ways_out}") from error


class SharedFolder(NamedTuple):
    root: Path
    staging: Path

    @classmethod
    def find(cls, override: Path | None, root: str, staging: str, instance: str) -> SharedFolder | None:
        """The store's root as this process sees it, or None where no folder is shared; `root`, `staging` and
        `instance` are as the daemon names them."""
        relative = Path(os.path.relpath(staging, root))
        if relative.parts[:1] in ((), (os.pardir,)):
            return None
        for candidate in (override, Path(root)):
            with contextlib.suppress(OSError):
                if candidate is not None and _read_plain(candidate / "instance") == instance:
                    return cls(candidate, candidate / relative)
        return None

    def path_of(self, digest: Digest) -> Path:
        return self.root / "v1" / "objects" / digest[:2] / digest


def _read_plain(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        is_plain = stat.S_ISREG(os.fstat(fd).st_mode)
        return os.read(fd, MAX_INSTANCE_BYTES).decode("ascii", "replace").strip() if is_plain else ""
    finally:
        os.close(fd)


def nameless(folder: str | os.PathLike[str]) -> int:
    """A new file without a name: in a folder of most filesystems, one that `stage` may give a name."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:
        fd, name = tempfile.mkstemp(prefix="prepcache-", dir=folder)
        Path(name).unlink()
        return fd


def stage(fd: int, path: Path) -> bool:
    """Gives a nameless file a name in the staging folder, or copies it there; False: that takes no file."""
    try:
        if os.fstat(fd).st_nlink == 0:  # else a daemon that has not answered may still take it
            os.fchmod(fd, 0o640)
            # With a folder's descriptor, or Python would link what is in /proc and not the file.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd)
            return True
    except OSError:  # it is of another filesystem, or had a name before
        pass
    from prepcache.artifact import writer

    try:
        copy = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    except OSError:
        return False
    try:
        with writing_in(path.parent, "give the daemon another root (PREPCACHED_ROOT)"):
            os.fchmod(copy, 0o640)
            writer.copy(fd, copy, os.fstat(fd).st_size)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(copy)
    return True


def downloaded(folder: Path, digest: Digest, size_bytes: int, fetch: Callable[[int], None]) -> Path:
    """The path of an artifact in this user's folder, fetched by `fetch(fd)` if it is not here."""
    path = folder / digest
    with contextlib.suppress(OSError):
        if path.stat().st_size == size_bytes:
            os.utime(path)
            return path
    with writing_in(folder, _ELSE):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = os.statvfs(folder)  # some filesystems do not tell: no blocks, none free
        left_bytes = there.f_bavail * there.f_frsize - size_bytes
        if there.f_blocks and left_bytes < there.f_blocks * there.f_frsize // FREE_SHARE:
            raise OSError(errno.ENOSPC, f"One part in {FREE_SHARE} is kept free of downloads")
        fd, name = tempfile.mkstemp(prefix=".part-", dir=folder)
        try:
            fetch(fd)
            if (found := blake3().update_mmap(name).hexdigest()) != digest:
                raise ArtifactError(f"the download of {digest} has digest {found}")
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        finally:
            os.close(fd)
    return path


def sweep(folder: Path) -> None:
    oldest = time.time() - KEEP_DOWNLOADS_S
    with contextlib.suppress(OSError):
        for one in folder.iterdir():
            with contextlib.suppress(OSError):
                if one.lstat().st_mtime < oldest:
                    one.unlink()


def silence_s(limit_s: float) -> float:
    """How long a transfer may be silent, of what is left of the budget."""
    return max(0.1, min(waits.SILENCE_S, limit_s - waits.TRANSFER_LIMIT_S))


def left_s(until: float) -> float:
    return max(0.1, until - time.monotonic())


def pieces(fd: int) -> Iterator[bytes]:
    offset = 0
    while piece := os.pread(fd, UPLOAD_BYTES, offset):
        offset += len(piece)
        yield piece
