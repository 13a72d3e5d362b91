"""The store's folder as a client sees it: whether it is shared, staged files, and downloads where it is not.

Invariants:
    1. A folder is trusted only after the daemon's own instance id was found in it: in a container, or
       under another mount, the path that the daemon names may be somebody else's.
    2. A staged file is new (O_EXCL), no symlink (O_NOFOLLOW), and readable by the group (0640) whatever
       the umask, so that the daemon can take it.
    3. A downloaded artifact gets its name only after its bytes were found to have that digest.

Not here: requests (session.py passes `fetch` in).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from prepcache.daemon.full_disk import writing_in
from prepcache.digests import Digest
from prepcache.errors import ArtifactError

MAX_INSTANCE_BYTES = 256
KEEP_DOWNLOADS_S = 24 * 3600.0
"""A download that no job opened for so long is removed; a job that has it mapped keeps it."""
FREE_SHARE = 20
"""One part in so many of a filesystem stays free of downloads: jobs write their checkpoints there, too."""
_ELSE = "set XDG_CACHE_HOME to another folder"
_ELSE_SHARED = "give the daemon another root (PREPCACHED_ROOT)"


class SharedFolder:
    """The store's root, reachable by path.

    Args:
        root: as this process sees it.
        staging: the folder of staged files below it.
    """

    def __init__(self, root: Path, staging: Path) -> None:
        self.root = root
        self.staging = staging
        self.objects = root / "v1" / "objects"

    @classmethod
    def find(cls, override: Path | None, root: str, staging: str, instance: str) -> SharedFolder | None:
        """The shared folder, or None where there is none.

        Args:
            override: `PREPCACHE_DIR`.
            root, staging, instance: as the daemon names them.
        """
        relative = Path(os.path.relpath(staging, root))
        if relative.parts[:1] in ((), (os.pardir,)):
            return None
        for candidate in (override, Path(root)):
            if candidate is not None and _instance(candidate) == instance:
                return cls(candidate, candidate / relative)
        return None

    def path_of(self, digest: Digest) -> Path:
        return self.objects / digest[:2] / digest


def _instance(root: Path) -> str:
    """The instance id in that folder, or ""."""
    try:
        fd = os.open(root / "instance", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        return os.read(fd, MAX_INSTANCE_BYTES).decode("ascii", "replace").strip() if is_file else ""
    except OSError:
        return ""
    finally:
        os.close(fd)


class Staged:
    """A file that a new artifact is written into, until a commit takes it.

    `fd` is open for reading and writing. `name` is its name in the staging folder, or None where it has to
    be uploaded. Its maker closes it; unless it was `taken()` by then, its name goes.
    """

    def __init__(self, fd: int, name: str | None, path: Path | None, folder: Path) -> None:
        self.fd = fd
        self.name = name
        self.path = path
        self._folder = folder

    def writing(self) -> AbstractContextManager[None]:
        """While it is written: an error says where, and what to do."""
        return writing_in(self._folder, _ELSE if self.name is None else _ELSE_SHARED)

    @classmethod
    def new(cls, shared: SharedFolder | None, scratch: Path, session: str) -> Staged:
        """A new staged file: in the shared folder if there is one that takes files, else a nameless one.

        Args:
            scratch: where nameless files are held; made if absent.
            session: begins the name, so that the daemon sweeps it with its session.
        """
        if shared is not None:
            name = f"{session}.{secrets.token_hex(8)}"
            with contextlib.suppress(OSError):
                return cls._named(shared.staging / name, name)
        with writing_in(scratch, _ELSE):
            scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=scratch) as file:
                return cls(os.dup(file.fileno()), None, None, scratch)

    @classmethod
    def _named(cls, path: Path, name: str) -> Staged:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o640)
        try:
            os.fchmod(fd, 0o640)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return cls(fd, name, path, path.parent)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def taken(self) -> None:
        """A commit took the file: its name is the daemon's now."""
        self.path = None

    def close(self) -> None:
        """Closes the file, and removes it if nobody took it."""
        fd, self.fd = self.fd, -1
        path, self.path = self.path, None
        if fd >= 0:
            os.close(fd)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Downloads:
    """Artifacts that came over HTTP, in a folder of this user; shared by his jobs.

    Args:
        folder: made if absent; removed from it is what nobody opened for `KEEP_DOWNLOADS_S`.
        clock: wall-clock seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._has_swept = False

    def path_of(self, digest: Digest, size_bytes: int, fetch: Callable[[int], None]) -> Path:
        """The artifact's path, downloaded if it is not here.

        Args:
            fetch: writes the file into the descriptor that it is given.

        Raises:
            ArtifactError: what came has another length or digest.
            OSError: the folder does not take it, or too little would stay free.
        """
        path = self.folder / digest
        with contextlib.suppress(OSError):
            if path.stat().st_size == size_bytes:
                os.utime(path)
                return path
        with writing_in(self.folder, _ELSE):
            self._download(path, digest, size_bytes, fetch)
        return path

    def _download(self, path: Path, digest: Digest, size_bytes: int, fetch: Callable[[int], None]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()
        there = os.statvfs(self.folder)  # some filesystems do not tell: no blocks, none free
        left_bytes = there.f_bavail * there.f_frsize - size_bytes
        if there.f_blocks and left_bytes < there.f_blocks * there.f_frsize // FREE_SHARE:
            raise OSError(errno.ENOSPC, f"One part in {FREE_SHARE} is kept free of downloads")
        fd, name = tempfile.mkstemp(prefix=".part-", dir=self.folder)
        try:
            fetch(fd)
            _check(fd, digest, size_bytes)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        finally:
            os.close(fd)

    def _sweep(self) -> None:
        """Removes what was not opened for long, once a process."""
        if self._has_swept:
            return
        self._has_swept = True
        oldest = self._clock() - KEEP_DOWNLOADS_S
        with contextlib.suppress(OSError), os.scandir(self.folder) as found:
            for one in found:
                with contextlib.suppress(OSError):
                    if one.stat(follow_symlinks=False).st_mtime < oldest:
                        Path(one.path).unlink()


def _check(fd: int, digest: Digest, size_bytes: int) -> None:
    from blake3 import blake3

    size = os.fstat(fd).st_size
    if size != size_bytes:
        raise ArtifactError(f"the download of {digest} has {size} bytes instead of {size_bytes}")
    hasher = blake3()
    offset = 0
    while piece := os.pread(fd, 1 << 20, offset):
        hasher.update(piece)
        offset += len(piece)
    if hasher.hexdigest() != digest:
        raise ArtifactError(f"the download of {digest} has digest {hasher.hexdigest()}")
