"""Writing so that it is still there after a power cut. Errors are OSErrors, for callers to name.

NOTE [ Commit order ]
    Commit: the bytes go to a name in `tmp/` (or lie in `staging/`), on the same filesystem; fsync of the
    file; rename into `objects/<2 hex>/`; fsync of that folder; only then the row, in one transaction.
    Delete: row first, noted in the table `doomed` by the same transaction; the file is unlinked after COMMIT.
    Housekeeping fsyncs the folders of `doomed` digests whose files are gone, and only then forgets them: else
    a power loss might bring back the file, and a start would index it.
    So a crash leaves files without rows, never rows without files. At start such a file is unlinked if it is
    doomed (a delete was under way) and indexed otherwise (a commit was).
    The index runs with synchronous=FULL: were a committed DELETE lost with the power while the unlink was
    not, there would be a row without its file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator

_COPY_BYTES = 64 << 20
"""Bytes a call of copy_file_range; bounded so that a copy can be interrupted."""
BLOCK_BYTES = 4096
SYNC_FILE_RANGE_WRITE = 2
_LIBC = ctypes.CDLL(None)
_LIBC.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def begin_flush(fd: int) -> None:
    """Has the kernel begin to write a file's bytes to the disk, so that its fsync takes less time."""
    _LIBC.sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE)


def fsync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def place(src: str, dst: str) -> None:
    """Renames a file that was fsynced, and makes its new name durable."""
    os.rename(src, dst)
    fsync_folder(os.path.dirname(dst))


def write_file(folder: str, name: str, data: bytes, *, tmp: str) -> None:
    """Puts a small file in place whole or not at all, for the daemon to write and its group to read."""
    with temporary(tmp) as (fd, path):
        os.fchmod(fd, 0o640)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        place(path, os.path.join(folder, name))


@contextlib.contextmanager
def temporary(folder: str) -> Iterator[tuple[int, str]]:
    """A new file (descriptor, path) that is gone at the end unless it was renamed away."""
    path = os.path.join(folder, secrets.token_hex(16))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd, path
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def is_there(path: str) -> bool:
    """Whether a name is taken; raises where that cannot be told, which `os.path.lexists` takes for absent."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def delete(path: str) -> None:
    """Deletes a file, or a folder with all that is in it; an OSError too where folders are nested deeper than
    Python descends."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return os.unlink(path)
    try:
        shutil.rmtree(path)
    except RecursionError:
        raise OSError(errno.ELOOP, "Folders are nested too deep", path) from None


def copy(src: int, dst: int, size_bytes: int) -> None:
    """Copies a file's bytes inside the kernel, which shares blocks where the filesystem can."""
    offset = 0
    while offset < size_bytes:
        n = os.copy_file_range(src, dst, min(_COPY_BYTES, size_bytes - offset), offset, offset)
        if n == 0:
            break
        offset += n


def artifact_bytes(size_bytes: int) -> int:
    """What an artifact counts as: its length in whole blocks. What a filesystem says of its blocks may change
    after the commit, as it compresses, or gives back what it had allocated ahead."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def disk_bytes(status: os.stat_result) -> int:
    """Bytes that a file takes on disk; st_blocks counts 512-byte units: stat(2)."""
    return status.st_blocks * 512
