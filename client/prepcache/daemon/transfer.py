"""Artifacts' bytes, to the daemon and from it: by path where its folder is shared, else over HTTP.

Invariants:
    1. A folder is trusted only after the daemon's own instance id was found in it: in a container, or
       under another mount, the path that the daemon names may be somebody else's.
    2. A staged file is new (O_EXCL), no symlink (O_NOFOLLOW), and 0640 whatever the umask. One that the
       daemon was asked to take, and has not answered for, is left to it.
    3. A downloaded artifact gets its name only after its bytes were found to have that digest.
    4. What honestly takes long is no waiting: a commit has the time of a slow disk, a transfer that of what
       it moved. A daemon that hangs costs no more than what is left of the wait budget.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from prepcache.daemon import waits
from prepcache.daemon.client import Client
from prepcache.daemon.wait_budget import own_time
from prepcache.digests import Digest
from prepcache.errors import ArtifactError, DaemonUnreachable, PrepcacheError
from prepcache.protocol import wire
from prepcache.protocol.places import cache_folder, read_plain

UPLOAD_BYTES = 1 << 20
MAX_INSTANCE_BYTES = 256
KEEP_DOWNLOADS_S = 24 * 3600.0
"""A download that no job opened for so long is removed; a job that has it mapped keeps it."""
FREE_SHARE = 20
"""One part in so many of a filesystem stays free of downloads: jobs write their checkpoints there, too."""
_ELSE = "set XDG_CACHE_HOME to another folder"
_ELSE_SHARED = "give the daemon another root (PREPCACHED_ROOT)"


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
                if candidate is not None:
                    _, found = read_plain(candidate / "instance", MAX_INSTANCE_BYTES)
                    if found.decode("ascii", "replace").strip() == instance:
                        return cls(candidate, candidate / relative)
        return None

    def path_of(self, digest: Digest) -> Path:
        return self.root / "v1" / "objects" / digest[:2] / digest


@dataclass(eq=False, slots=True)
class Staged:
    """A file that a new artifact is written into, until a commit takes it.

    `name` is its name in the staging folder, or None where it has to be uploaded. Its maker closes it; unless
    it was `taken()` by then, its name goes.
    """

    fd: int
    name: str | None
    path: Path | None
    folder: Path

    def writing(self) -> AbstractContextManager[None]:
        return writing_in(self.folder, _ELSE if self.name is None else _ELSE_SHARED)

    @classmethod
    def new(cls, shared: SharedFolder | None, scratch: Path, session: str) -> Staged:
        """A new staged file: in the shared folder if there is one that takes files, else a nameless one.

        Args:
            session: begins the name, so that the daemon sweeps it with its session.
        """
        if shared is not None:
            name = f"{session}.{secrets.token_hex(8)}"
            path = shared.staging / name
            with contextlib.suppress(OSError):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                staged = cls(os.open(path, flags, 0o640), name, path, path.parent)
                try:
                    os.fchmod(staged.fd, 0o640)
                    return staged
                except OSError:
                    staged.close()
        with writing_in(scratch, _ELSE):
            scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=scratch) as file:
                return cls(os.dup(file.fileno()), None, None, scratch)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def taken(self) -> None:
        """A commit took the file: its name is the daemon's now."""
        self.path = None

    def close(self) -> None:
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
            if (found := _digest(fd)) != digest:
                raise ArtifactError(f"the download of {digest} has digest {found}")
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        finally:
            os.close(fd)
    return path


def sweep(folder: Path, but: Collection[str]) -> None:
    """Removes downloads that no job has opened for `KEEP_DOWNLOADS_S`, but those that are needed now."""
    oldest = time.time() - KEEP_DOWNLOADS_S
    with contextlib.suppress(OSError):
        for one in folder.iterdir():
            with contextlib.suppress(OSError):
                if one.name not in but and one.lstat().st_mtime < oldest:
                    one.unlink()


def _digest(fd: int) -> str:
    from blake3 import blake3

    hasher = blake3()
    for piece in _pieces(fd):
        hasher.update(piece)
    return hasher.hexdigest()


class Handover:
    """How one session hands artifacts over and gets at them; `run` is `Session.run`."""

    def __init__(self, client: Client, run: Callable[..., Any]) -> None:
        self._client = client
        self._run = run
        self._shared: SharedFolder | None = None
        self._scratch = cache_folder(os.environ)
        self._downloads = self._scratch / "downloads-v1"
        self._has_swept = False

    def look_for_folder(self, answer: wire.SessionAnswer) -> None:
        override = self._client.settings.folder
        self._shared = SharedFolder.find(override, answer.root, answer.staging, answer.instance)

    @property
    def is_by_path(self) -> bool:
        """Whether artifacts lie in a folder that this process sees, and need no download."""
        return self._shared is not None

    def stage(self, header: str) -> Staged:
        shared = self._shared
        if shared is not None and self._client.endpoint.address.socket is None:
            # Over TCP the daemon cannot tell whose a file is, and takes its own user's alone.
            with contextlib.suppress(OSError):
                if shared.staging.stat().st_uid != os.geteuid():
                    shared = None
        return Staged.new(shared, self._scratch / "staging-v1", header.partition(".")[0])

    def path_of(self, ref: wire.ArtifactRef, held: Collection[str]) -> Path:
        if self._shared is not None:
            return self._shared.path_of(ref.digest)
        if not self._has_swept:  # once: whatever the clock does, what it opens stays
            self._has_swept = True
            sweep(self._downloads, but=held)
        return downloaded(self._downloads, ref.digest, ref.size_bytes, lambda fd: self._fetch(ref, fd))

    def commit(
        self, header: str, leases: Sequence[wire.Lease], staged: Sequence[Staged], limit_s: float | None
    ) -> wire.Committed:
        first = leases[0].id
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        files = tuple(self._named(one, first, header, until) for one in staged)
        asked = wire.CommitRequest(tuple(wire.LeaseToken(one.id, one.token) for one in leases), files)
        if limit_s is None:
            nbytes = sum(file.size_bytes for file in files)
            limit_s = waits.COMMIT_LIMIT_S + nbytes / waits.SLOWEST_COMMIT
            until = time.monotonic() + limit_s

        def attempt(limit_s: float) -> Any:
            return self._client.transport.call(
                "POST", f"/v1/leases/{first}/commit", asked, gives=wire.Committed,
                limit_s=min(limit_s, _left_s(until)), session=header,
            )  # fmt: skip

        is_theirs = True
        try:
            committed: wire.Committed = self._run(attempt, wait_s=limit_s if own_time() else 0.0)
            return committed
        except PrepcacheError as error:
            is_theirs = isinstance(error, DaemonUnreachable)  # else this is its answer
            raise
        finally:
            if is_theirs:
                for one in staged:
                    one.taken()

    def _named(self, staged: Staged, lease: str, header: str, until: float) -> wire.StagedFile:
        """The staged file as a commit names it; uploads it where no folder is shared."""
        size_bytes = staged.size_bytes
        if staged.name is not None:
            return wire.StagedFile(staged.name, size_bytes)

        def attempt(limit_s: float) -> Any:
            return self._client.transport.upload(
                f"/v1/leases/{lease}/data", _pieces(staged.fd), size_bytes, gives=wire.StagedFile,
                limit_s=min(_silence_s(limit_s), _left_s(until)), until=until, session=header,
            )  # fmt: skip

        uploaded: wire.StagedFile = self._run(attempt, wait_s=waits.TRANSFER_LIMIT_S)
        return uploaded

    def _fetch(self, ref: wire.ArtifactRef, fd: int) -> None:
        """Downloads an artifact; once more where the connection breaks, within the budget."""

        def attempt(limit_s: float) -> None:
            self._client.transport.download(
                f"/v1/entries/{ref.key}/data", fd, etag=f'"{ref.digest}"', max_bytes=ref.size_bytes,
                limit_s=_silence_s(limit_s),
            )  # fmt: skip

        self._run(attempt, wait_s=waits.TRANSFER_LIMIT_S)


def _silence_s(limit_s: float) -> float:
    """How long a transfer may be silent, of what is left of the budget."""
    return max(0.1, min(waits.SILENCE_S, limit_s - waits.TRANSFER_LIMIT_S))


def _left_s(until: float) -> float:
    return max(0.1, until - time.monotonic())


def _pieces(fd: int) -> Iterator[bytes]:
    offset = 0
    while piece := os.pread(fd, UPLOAD_BYTES, offset):
        offset += len(piece)
        yield piece
