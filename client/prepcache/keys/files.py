"""Files: the digest of a file's bytes, of a directory's, and the stamps that tell of a change.

Invariants:
    1. A digest belongs to a stamp: both come through one descriptor, and the stamp was the same before
       and after the bytes were read. A file that does not hold still is refused.
    2. Symlinks are followed: what counts is what the function would read.
    3. Only regular files are opened; opening never blocks (a pipe would) and never maps (a file that
       shrinks under a map kills the process).
    4. Threads for hashing are bounded and end with the call that started them. BLAKE3 is never left to
       choose its threads (AUTO): that pool outlives the call and hangs in a forked child.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.memo import Memo
from prepcache.keys.mounts import is_racy, racy_window_ns
from prepcache.keys.segments import Stamp

Trust = Literal["stat", "content"]

TREE_DOMAIN = b"prepcache tree v1\0"
"""Starts what a directory's digest is taken over; its number rises when that changes."""
READ_BYTES = 512 * 1024
"""Read at a time: fits a core's cache beside BLAKE3's state (measured best of 64 KiB to 4 MiB)."""
MAX_THREADS = 8
"""More do not help: hashing is bound by memory, and small files by the interpreter's lock."""
HELP_BYTES = 128 * 1024
"""Mean size of a file from which on threads pay."""
HELP_AFTER_S = 0.05
"""Seconds of waiting for the disk (beyond as much again as was worked) after which threads pay."""
LARGE_BYTES = 16 * 1024 * 1024
"""Size from which on a file is hashed by several threads, if there are fewer files than threads."""
WINDOW_BYTES = 4 * 1024 * 1024
"""Of a large file, what is in memory at a time (measured best of 4, 16 and 64 MiB)."""
MAX_ATTEMPTS = 3
"""Readings of a file that changes meanwhile, before it is refused."""

_REGULAR, _DIRECTORY, _KIND = 0o100000, 0o040000, 0o170000
_NOTHING_THERE = (FileNotFoundError, NotADirectoryError)
_SPECIAL = {
    0o140000: "a socket",
    0o060000: "a block device",
    0o020000: "a character device",
    0o010000: "a pipe",
}
_FOUR, _FIVE = struct.Struct(">4q"), struct.Struct(">5q")
_BATCH = 4
"""Files a thread takes at a time."""


class Digested(NamedTuple):
    """A file or tree as it was read (or remembered)."""

    digest: bytes
    stamp: Stamp
    is_racy: bool
    """Whether a later write could leave the stamp as it is."""


def signed(number: int) -> int:
    """A 64-bit inode or device number as the signed number with the same bits."""
    return number - (1 << 64) if number >> 63 else number


def stamp_of(info: os.stat_result) -> Stamp:
    """What tells that a file changed."""
    return (signed(info.st_dev), signed(info.st_ino), info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def is_regular(info: os.stat_result) -> bool:
    return info.st_mode & _KIND == _REGULAR


def is_directory(info: os.stat_result) -> bool:
    return info.st_mode & _KIND == _DIRECTORY


def special_kind(info: os.stat_result) -> str | None:
    """`a pipe`, `a socket` or what else it is that has no bytes to count; None for files and directories."""
    return _SPECIAL.get(info.st_mode & _KIND)


def stat_or_none(path: str | bytes) -> os.stat_result | None:
    """The stat of what a path leads to, None if it leads to nothing.

    Raises:
        OSError: it cannot be told (permission, I/O error, a loop of links).
    """
    try:
        return os.stat(path)
    except _NOTHING_THERE:
        return None
    except ValueError:  # a NUL, or a str that the filesystem's encoding lacks
        return None


def file_digest(
    path: str | bytes | os.PathLike[str], memo: Memo | None = None, trust: Trust = "stat"
) -> tuple[bytes, Stamp]:
    """The BLAKE3 digest of a regular file's bytes, and its stamp.

    Args:
        path: the file; symlinks are followed.
        memo: digests that are known by stamp; what is read is recorded there.
        trust: "content" reads the bytes whatever the memo says.

    Raises:
        UnkeyableError: it is not there, is no regular file, cannot be read, or changes all the while.
    """
    digested = digest_file(os.fspath(path), memo, trust)
    return digested.digest, digested.stamp


def digest_file(name: str | bytes, memo: Memo | None, trust: Trust) -> Digested:
    """As `file_digest`; also tells whether the stamp is young."""
    if memo is not None and trust == "stat":
        try:
            info = os.stat(name)
        except (OSError, ValueError) as error:
            raise unreadable(name, error) from error
        if is_regular(info):
            stamp = stamp_of(info)
            known = memo.get(stamp)
            if known is not None:
                return Digested(known, stamp, False)
    return read_file(name, memo)


def read_file(
    name: str | bytes, memo: Memo | None, buffer: memoryview | None = None, threads: int = 1
) -> Digested:
    """Read a file and record its digest in the memo."""
    clock: Callable[[], int] = memo.clock if memo is not None else time.time_ns
    if buffer is None:
        buffer = memoryview(bytearray(READ_BYTES))
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from error
    try:
        for _ in range(MAX_ATTEMPTS):
            read_at_ns = clock()
            info = os.fstat(fd)
            if not is_regular(info):
                what = special_kind(info) or "a directory"
                raise UnkeyableError(f"{printable(name)} is {what}, not a file whose bytes can be counted")
            if threads > 1 and info.st_size >= LARGE_BYTES:
                digest, size = _hash_large(fd, threads)
            else:
                digest, size = _hash(fd, buffer)
            stamp = stamp_of(info)
            if size == info.st_size and stamp_of(os.fstat(fd)) == stamp:
                if memo is None:
                    racy = is_racy(stamp, read_at_ns, racy_window_ns(stamp[0]))
                else:
                    racy = not memo.add(stamp, digest, read_at_ns)
                return Digested(digest, stamp, racy)
    except OSError as error:
        raise unreadable(name, error) from error
    finally:
        os.close(fd)
    raise UnkeyableError(f"{printable(name)} changes while it is read; wait for its writer, then open again")


def _hash(fd: int, buffer: memoryview) -> tuple[bytes, int]:
    hasher = blake3()
    size = 0
    while count := os.preadv(fd, [buffer], size):
        hasher.update(buffer[:count])
        size += count
    return hasher.digest(), size


def _hash_large(fd: int, threads: int) -> tuple[bytes, int]:
    """As `_hash`, by several threads: they copy a window together, then hash it together."""
    from concurrent.futures import ThreadPoolExecutor

    hasher = blake3(max_threads=threads)
    part = WINDOW_BYTES // threads
    window = memoryview(bytearray(part * threads))
    size = 0

    def read(i: int) -> int:
        start, end, done = i * part, (i + 1) * part, 0
        while start + done < end and (
            count := os.preadv(fd, [window[start + done : end]], size + start + done)
        ):
            done += count
        return done

    with ThreadPoolExecutor(threads, "prepcache-read") as pool:
        while True:
            counts = list(pool.map(read, range(threads)))
            # A shrinking file can leave a gap between parts; its stamp will differ, so any digest will do.
            total = sum(counts)
            if not total:
                return hasher.digest(), size
            hasher.update(window[:total])
            size += total


def read_files(names: Sequence[str | bytes], memo: Memo | None, threads: int | None = None) -> list[Digested]:
    """Read many files, by a bounded number of threads.

    Small files that are in memory are read by the calling thread alone: threads that hand the
    interpreter's lock to and fro take twice as long. Helpers come where files are large or the disk is slow.

    Raises:
        UnkeyableError: as `file_digest`; it names one of the files that it holds for.
    """
    threads = threads or thread_count()
    results: list[Digested | None] = [None] * len(names)
    errors: dict[int, UnkeyableError] = {}
    is_over = threading.Event()
    starts = iter(range(0, len(names), _BATCH))
    helpers: list[threading.Thread] = []
    each = max(1, threads // max(1, len(names)))

    def work(is_first: bool = False) -> None:
        buffer = memoryview(bytearray(READ_BYTES))
        wall, own, bytes_read = time.perf_counter(), time.thread_time(), 0
        for start in starts:  # one iterator for all threads: `next` of a range iterator is atomic
            for i in range(start, min(start + _BATCH, len(names))):
                if is_over.is_set():
                    return
                try:
                    results[i] = digested = read_file(names[i], memo, buffer, each)
                except UnkeyableError as error:
                    errors[i] = error
                    is_over.set()
                    return
                bytes_read += digested.stamp[2]
            if is_first and not helpers:
                waited_s = time.perf_counter() - wall - 2 * (time.thread_time() - own)
                if bytes_read < (start + _BATCH) * HELP_BYTES and waited_s < HELP_AFTER_S:
                    continue
                for _ in range(min(threads, -(-len(names) // _BATCH)) - 1):
                    helpers.append(threading.Thread(target=work, name="prepcache-hash", daemon=True))
                    helpers[-1].start()

    try:
        work(is_first=True)
    except BaseException:
        is_over.set()
        raise
    finally:
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[min(errors)]
    return [result for result in results if result is not None]


def thread_count() -> int:
    """Threads for hashing: the cores this process may use, within bounds."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0))))


def digest_tree(name: str | bytes, memo: Memo | None, trust: Trust) -> Digested:
    """The digest of a directory: the names and bytes of all that is under it.

    The stamp sums up all the stamps in it; its numbers have no other meaning.
    """
    rows = walk_tree(name)
    known: dict[bytes, Digested] = {}
    for _, path, info in rows:
        if memo is not None and trust == "stat" and info is not None and is_regular(info):
            digest = memo.get(stamp_of(info))
            if digest is not None:
                known[path] = Digested(digest, stamp_of(info), False)
    unknown = [path for _, path, info in rows if info is not None and is_regular(info) and path not in known]
    known.update(zip(unknown, read_files(unknown, memo), strict=True))
    content, stamps = blake3(TREE_DOMAIN), blake3(TREE_DOMAIN)
    for relative, path, info in rows:
        digested = known.get(path)
        content.update(_entry(relative, info) + (digested.digest if digested else b""))
        stamps.update(_entry(relative, info) + (_FIVE.pack(*digested.stamp) if digested else b""))
    racy = any(digested.is_racy for digested in known.values())
    return Digested(content.digest(), _tree_stamp(stamps.digest()), racy)


def tree_stamp(name: str | bytes) -> Stamp:
    """The stamp of a directory by stats alone."""
    stamps = blake3(TREE_DOMAIN)
    for relative, _, info in walk_tree(name):
        is_file = info is not None and is_regular(info)
        stamps.update(_entry(relative, info) + (_FIVE.pack(*stamp_of(info)) if info and is_file else b""))
    return _tree_stamp(stamps.digest())


def _entry(relative: bytes, info: os.stat_result | None) -> bytes:
    kind = b"?" if info is None else b"d" if is_directory(info) else b"f"
    return kind + len(relative).to_bytes(8, "big") + relative


def _tree_stamp(digest: bytes) -> Stamp:
    a, b, c, d = _FOUR.unpack(digest)
    return (a, b, c, d, 0)


def walk_tree(name: str | bytes) -> list[tuple[bytes, bytes, os.stat_result | None]]:
    """All that is under a directory, by relative name: (relative name, path, stat or None).

    Raises:
        UnkeyableError: a directory cannot be listed, holds itself by a link, or holds a special file.
    """
    top = os.fsencode(name)
    found: list[tuple[bytes, bytes, os.stat_result | None]] = []

    def visit(folder: bytes, prefix: bytes, above: frozenset[tuple[int, int]]) -> None:
        try:
            info = os.stat(folder)
            entries = os.listdir(folder)
        except OSError as error:
            raise unreadable(folder, error) from error
        if (info.st_dev, info.st_ino) in above:
            raise UnkeyableError(f"{printable(folder)} is a link to a directory that it lies in")
        above |= {(info.st_dev, info.st_ino)}
        for entry in entries:
            path, relative = os.path.join(folder, entry), prefix + entry
            try:
                inner = stat_or_none(path)
            except OSError as error:
                raise unreadable(path, error) from error
            if inner is not None and (what := special_kind(inner)):
                raise UnkeyableError(f"{printable(path)} is {what}, which has no bytes that can be counted")
            found.append((relative, path, inner))
            if inner is not None and is_directory(inner):
                visit(path, relative + b"/", above)

    visit(top, b"", frozenset())
    found.sort(key=lambda row: row[0])
    return found


def printable(name: str | bytes) -> str:
    """A file's name for messages."""
    return repr(os.fsdecode(name))


def unreadable(name: str | bytes, error: OSError | ValueError) -> UnkeyableError:
    """The error for a file or directory that cannot be read."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UnkeyableError(f"{printable(name)} cannot be read: {why}", name=os.fsdecode(name))
