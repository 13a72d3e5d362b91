"""The map process: maps files and hashes them for a job, which may not map files itself.

A script of its own: `python -I -S map_main.py FOLDER THREADS` imports blake3 from FOLDER and nothing of
prepcache, so that it starts in 12 ms. Its standard input is a socket:

    to the job     one byte: it has started
    from the job   names of files, each ended by a NUL, up to the end of the stream
    to the job     an `ANSWER` for each name, in order; then it exits

Invariants:
    1. A digest belongs to a stamp: both come through one descriptor, and the stamp was the same before and
       after. Of any other file the answer is that it was not hashed, and nothing more: the job finds out.
    2. It dies of what maps bring about (SIGBUS: a file that shrank, a bad sector), without a core file,
       and soon after its job (or when that neither tells nor takes anything for a minute: its socket's time
       limit). A job that misses answers reads those files.
"""

import mmap
import posix as os  # `os` itself would take 2 ms more
import resource
import struct
import sys
from stat import S_ISREG

TYPE_CHECKING = False  # `typing`, and what it imports, would take 6 ms
if TYPE_CHECKING:
    from blake3 import blake3

ANSWER = struct.Struct("=?2Q3q32s")
"""Whether it was hashed; device, inode, size, mtime_ns, ctime_ns; the digest."""
WINDOW_BYTES = 64 * 1024 * 1024
"""Mapped at a time, which bounds what an orphan still does (measured as good as 16 MiB and the file)."""
_NOT_HASHED = ANSWER.pack(False, 0, 0, 0, 0, 0, b"")


def answer(name: bytes, hasher: "blake3", job: int) -> bytes:
    """The packed digest and stamp of a file.

    Args:
        hasher: is reset, not made for each file: it owns its threads.
        job: the process that asks.
    """
    hasher.reset()
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return _NOT_HASHED
    try:
        stamp = _stamp(fd)
        if stamp is None:
            return _NOT_HASHED
        size = stamp[2]
        for start in range(0, size, WINDOW_BYTES):
            length = min(WINDOW_BYTES, size - start)
            with mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=start) as window:
                hasher.update(window)
            if os.getppid() != job:
                os._exit(1)
        return ANSWER.pack(True, *stamp, hasher.digest()) if _stamp(fd) == stamp else _NOT_HASHED
    except (OSError, ValueError):  # it cannot be mapped, or has become shorter
        return _NOT_HASHED
    finally:
        os.close(fd)


def _stamp(fd: int) -> tuple[int, int, int, int, int] | None:
    info = os.fstat(fd)
    if not S_ISREG(info.st_mode):
        return None
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def main() -> None:
    job = os.getppid()
    sys.path.append(sys.argv[1])
    from blake3 import blake3

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    hasher = blake3(max_threads=int(sys.argv[2]))
    os.write(0, b"1")
    names = b""
    while more := os.read(0, 1 << 20):
        names += more
    answers, size = [], 0
    for name in names.split(b"\0")[:-1]:
        answers.append(answer(name, hasher, job))
        size += ANSWER.unpack(answers[-1])[3]
        if size >= WINDOW_BYTES:
            os.write(0, b"".join(answers))
            answers, size = [], 0
    os.write(0, b"".join(answers))
    os._exit(0)


if __name__ == "__main__":
    main()
