"""Taking a staged file from a client that is not trusted.

Attacks, and the check that stops each:
    a name with "/", "..", NUL        `layout.staged_name`, before anything is opened
    a symlink                         O_NOFOLLOW, relative to the staging folder's descriptor
    a device, pipe or socket          O_NONBLOCK at open, then S_ISREG
    another user's file               st_uid is the committer's (or the daemon's own, for uploads)
    a hard link to somebody's file    st_nlink is 1
    another length than announced     st_size, before the hash and after it
    a change while it is hashed       mtime, ctime, size and name compared after the hash
    a write after the hash            a file of another user is copied and THE COPY hashed: its owner
                                      could still write through an open descriptor
    a map that is cut short           read by descriptor, never mapped (SIGBUS would end the daemon)
    another recipe, key or items      derived again from the header (see commit.py)
    an item table that fills memory   MAX_ITEMS, before it is read: a sparse file has it for nothing
    gigabytes of zeros                its header is read before room is made for it and before it is copied

The client's file stays in the staging folder until its commit is done or failed (coordinator.py), or is
swept with its session.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from blake3 import blake3

from prepcache import artifact, errors
from prepcache.digests import Digest
from prepcache.protocol.wire import StagedFile
from prepcached.store import durable
from prepcached.store.layout import Layout, is_staged_name, session_of, staged_name
from prepcached.store.scopes import is_scope

READ_BYTES, HASH_THREADS = 4 << 20, 2
MAX_ITEMS = 1 << 20
"""Of any artifact: as many as one session may have leased (leases.py). Merges keep to it, too."""
OWNER_XATTR = "user.prepcache.owner"
"""Who committed a file that belongs to the daemon (a copy, an upload): a rebuild asks for the owner."""
SCOPE_XATTR = "user.prepcache.scope"
"""Of the recipe of a file that not all share (scopes.py)."""


class Swept(NamedTuple):
    """What a sweep removed, and the first name that could not be removed, if any."""

    files: int
    failed: OSError | None


class StagedArea:
    """What lies in the staging folder: how many bytes, and what is swept.

    What names no open session, and every folder, is swept. A file that is being committed or uploaded is left
    out: its bytes are reserved. Clients write here without asking, so bytes are counted by looking.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._busy: Counter[str] = Counter()

    def disk_bytes(self) -> int:
        size = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not self._is_busy(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        size += durable.disk_bytes(entry.stat(follow_symlinks=False))
        return size

    @contextlib.contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """A commit or an upload has this file: it is neither counted nor swept."""
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
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, staged_name(name)))

    def sweep(self, is_live: Callable[[str], bool]) -> Swept:
        """Removes what belongs to no open session. Whether one is live is asked once its file was seen: who
        opened before he staged it is known by then."""
        files, failed = 0, None
        with os.scandir(self._folder) as entries:
            for entry in entries:
                is_staged = is_staged_name(entry.name) and not entry.is_dir(follow_symlinks=False)
                if (is_staged and is_live(session_of(entry.name))) or self._is_busy(entry.name):
                    continue
                try:
                    durable.delete(entry.path)
                    files += 1
                except FileNotFoundError:
                    continue
                except OSError as error:
                    failed = failed or error
        return Swept(files, failed)

    def _is_busy(self, name: str) -> bool:
        with self._lock:
            return name in self._busy


@dataclass(frozen=True, slots=True)
class Taken:
    """A staged file that was checked and hashed; `path`, which may be a copy, is what to rename."""

    name: str
    path: str
    is_copy: bool
    digest: Digest
    header: artifact.Header
    size_bytes: int
    identity: tuple[int, ...]


@contextlib.contextmanager
def opened(layout: Layout, staged: StagedFile, owner_uid: int) -> Iterator[tuple[int, os.stat_result]]:
    """The staged file's descriptor and status; StagedFileRefused where it is not what was announced, OSError
    where that could not be told."""
    name = staged_name(staged.name)
    folder = os.open(layout.staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise errors.StagedFileRefused(
            f"there is no staged file {name}; it was already committed, or swept with its session", name=name
        ) from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EACCES, errno.ENXIO):
            raise
        raise errors.StagedFileRefused(
            f"the staged file {name} cannot be opened: {error.strerror} (a link, a socket, or not readable "
            "for the daemon's group)",
            name=name,
        ) from error
    finally:
        os.close(folder)
    try:
        status = os.fstat(fd)
        wrong = _what_is_wrong(status, staged, owner_uid)
        if wrong is not None:
            raise errors.StagedFileRefused(f"the staged file {name} {wrong}", name=name)
        yield fd, status
    finally:
        os.close(fd)


@contextlib.contextmanager
def taken(
    layout: Layout, staged: StagedFile, fd: int, owner_uid: int, scope: str, hashed: Digest | None = None
) -> Iterator[Taken]:
    """Makes an opened staged file durable and hashes it, unless that is done, in place or a copy of it;
    StagedFileRefused where it changed meanwhile, or is not an artifact."""
    with contextlib.ExitStack() as stack:
        path, is_copy = os.path.join(layout.staging, staged.name), False
        if os.fstat(fd).st_uid != os.geteuid():
            copy_fd, path = stack.enter_context(durable.temporary(layout.tmp))
            durable.copy(fd, copy_fd, staged.size_bytes)
            os.fchown(copy_fd, -1, os.fstat(fd).st_gid)
            fd, is_copy = copy_fd, True
        mark(fd, owner_uid, scope)
        os.fchmod(fd, 0o440)
        os.fsync(fd)
        before = os.fstat(fd)
        if before.st_size != staged.size_bytes:
            raise _changed(staged)
        digest = hashed or hash_file(fd)
        header = header_of(fd, staged)
        after = os.fstat(fd)
        if identity(before) != identity(after):
            raise _changed(staged)
        yield Taken(staged.name, path, is_copy, digest, header, after.st_size, identity(after))


def mark(fd: int, owner_uid: int, scope: str) -> None:
    """Notes whose an artifact's file is, for a rebuild. A scope that cannot be noted is an OSError: unmarked,
    the file would be taken for everybody's."""
    if owner_uid != os.geteuid():
        with contextlib.suppress(OSError):
            os.setxattr(fd, OWNER_XATTR, str(owner_uid).encode())
    if scope:
        os.setxattr(fd, SCOPE_XATTR, scope.encode())


def owner_of(fd: int) -> int:
    """The owner that an artifact's file is marked with; without a mark that makes sense, the file's own."""
    with contextlib.suppress(OSError, ValueError):
        owner = int(os.getxattr(fd, OWNER_XATTR))
        if -1 <= owner < 1 << 32:  # -1: TOKEN_UID in auth.py
            return owner
    return os.fstat(fd).st_uid


def scope_of(file: int | str) -> str:
    """The scope that a file is marked with; "" without a mark, OSError where that cannot be told."""
    try:
        scope = os.getxattr(file, SCOPE_XATTR).decode("ascii", "replace")
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        return ""
    if not is_scope(scope):
        raise OSError(errno.EBADMSG, f"its mark {SCOPE_XATTR} is damaged")
    return scope


def still_the_same(file: Taken) -> None:
    """Refuses a file whose name does not mean what was hashed any more, right before the rename."""
    try:
        now = identity(os.lstat(file.path))
    except FileNotFoundError:
        now = ()
    if now != file.identity:
        raise _changed(StagedFile(file.name, file.size_bytes))


def hash_file(fd: int, pace: Callable[[int], object] = lambda count: None) -> Digest:
    """BLAKE3 of a file's bytes. `pace` gets the bytes of each piece, and may end the work. What was not in
    the page cache is dropped from it again: a scrub must not drive out what jobs read."""
    hasher = blake3(max_threads=HASH_THREADS)
    buffer = memoryview(bytearray(min(READ_BYTES, os.fstat(fd).st_size + 1)))
    offset = 0
    while n := _read(fd, buffer, offset):
        hasher.update(buffer[:n])
        offset += n
        pace(n)
    return Digest(hasher.hexdigest())


def _read(fd: int, buffer: memoryview, offset: int) -> int:
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL):
            raise
        is_known_cold = error.errno == errno.EAGAIN  # else the filesystem cannot tell
    n = os.preadv(fd, [buffer], offset)
    if is_known_cold:
        os.posix_fadvise(fd, offset, n, os.POSIX_FADV_DONTNEED)
    return n


def identity(status: os.stat_result) -> tuple[int, ...]:
    """What changes when somebody touches a file."""
    file = status.st_dev, status.st_ino, status.st_nlink
    return (*file, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _what_is_wrong(status: os.stat_result, staged: StagedFile, owner_uid: int) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_uid not in (owner_uid, os.geteuid()):
        return f"belongs to uid {status.st_uid}, not to the committer (uid {owner_uid})"
    if status.st_nlink != 1:
        return f"has {status.st_nlink} hard links; it must have one"
    if status.st_size != staged.size_bytes:
        return f"has {status.st_size} bytes instead of {staged.size_bytes}"
    return None


def header_of(fd: int, staged: StagedFile) -> artifact.Header:
    """The header and item table of a staged file; StagedFileRefused where it is not an artifact."""
    try:
        return artifact.check(fd, max_items=MAX_ITEMS)
    except errors.ArtifactError as error:
        raise errors.StagedFileRefused(
            f"the staged file {staged.name} is not a whole artifact: {error.message}", name=staged.name
        ) from error


def _changed(staged: StagedFile) -> errors.StagedFileRefused:
    return errors.StagedFileRefused(
        f"the staged file {staged.name} changed during the commit; close it before you commit",
        name=staged.name,
    )
