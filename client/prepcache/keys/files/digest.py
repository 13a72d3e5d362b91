"""Files: the digest of a file's bytes, of a directory's, and the stamps that tell of a change.

Invariants:
    1. A digest belongs to a stamp: both come through one descriptor, and the stamp was the same before
       and after the bytes were read. A file that does not hold still is refused.
    2. Symlinks are followed: what counts is what the function would read.
    3. Only regular files are opened; opening never blocks (a pipe would) and never maps (a file that
       shrinks under a map kills the process: `mapped` has one that may be killed).
    4. Threads and processes for hashing are bounded and end with the call that started them. BLAKE3 has
       no threads of its own here: they outlive the call and hang in a forked child.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.files.filesystems import is_racy, racy_window_ns
from prepcache.keys.files.segments import Stamp
from prepcache.keys.files.stat_cache import Memo
from prepcache.keys.observation import context

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
LARGE_BYTES = 1_000_000
"""Size from which on files are put off until all are known; they are then read the largest first."""
MAP_BYTES = 256 * 1024 * 1024
"""Of large files, from which on a map process pays: it takes 12 ms to start, and saves 1 of 8."""
MEANWHILE_BYTES = 32 * 1024 * 1024
"""No larger file is begun while the map process starts: this one takes as long as that."""
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
    context.depend_on((name,))
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


def read_file(name: str | bytes, memo: Memo | None) -> Digested:
    """Read a file and record its digest in the memo."""
    digested = _read(name, memo, memoryview(bytearray(READ_BYTES)))
    assert isinstance(digested, Digested)
    return digested


def _read(
    name: str | bytes, memo: Memo | None, buffer: memoryview, below: int | None = None
) -> Digested | int:
    """As `read_file`; of a file that is not below that many bytes only its size."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from error
    try:
        for _ in range(MAX_ATTEMPTS):
            read_at_ns = _now_ns(memo)
            info = os.fstat(fd)
            if not is_regular(info):
                what = special_kind(info) or "a directory"
                raise UnkeyableError(f"{printable(name)} is {what}, not a file whose bytes can be counted")
            if below is not None and info.st_size >= below:
                return info.st_size
            digest, size = _hash(fd, buffer)
            stamp = stamp_of(info)
            if size == info.st_size and stamp_of(os.fstat(fd)) == stamp:
                return _digested(stamp, digest, memo, read_at_ns)
    except OSError as error:
        raise unreadable(name, error) from error
    finally:
        os.close(fd)
    raise UnkeyableError(f"{printable(name)} changes while it is read; wait for its writer, then open again")


def _now_ns(memo: Memo | None) -> int:
    return time.time_ns() if memo is None else memo.clock()


def _digested(stamp: Stamp, digest: bytes, memo: Memo | None, read_at_ns: int) -> Digested:
    """Record a digest in the memo.

    Args:
        read_at_ns: when reading began, or earlier.
    """
    if memo is None:
        racy = is_racy(stamp, read_at_ns, racy_window_ns(stamp[0]))
    else:
        racy = not memo.add(stamp, digest, read_at_ns)
    return Digested(digest, stamp, racy)


def _hash(fd: int, buffer: memoryview) -> tuple[bytes, int]:
    hasher = blake3()
    size = 0
    while count := os.preadv(fd, [buffer], size):
        hasher.update(buffer[:count])
        size += count
    return hasher.digest(), size


def read_files(names: Sequence[str | bytes], memo: Memo | None, threads: int | None = None) -> list[Digested]:
    """Read many files, by a bounded number of threads.

    Raises:
        UnkeyableError: as `file_digest`; it names one of the files that it holds for.
    """
    reading = _Reading(names, memo, threads or thread_count())
    reading.read(range(len(names)), LARGE_BYTES)
    large = [place for _, place in sorted(reading.put_off, reverse=True)]
    if sum(size for size, _ in reading.put_off) >= MAP_BYTES:
        large = reading.map(large)
    reading.read(large)
    return [result for result in reading.results if result is not None]


class _Reading:
    """Many files on the way to their digests. Files are named by their places in `names`."""

    def __init__(self, names: Sequence[str | bytes], memo: Memo | None, threads: int) -> None:
        self.names = names
        self.memo = memo
        self.threads = threads
        self.results: list[Digested | None] = [None] * len(names)
        self.put_off: list[tuple[int, int]] = []
        """Size and place of what was not below the size asked for."""
        self._errors: dict[int, UnkeyableError] = {}
        self._is_over = threading.Event()

    def read(self, places: Sequence[int], below: int | None = None) -> None:
        """Read files, or put them off if they are not below that many bytes.

        Small files that are in memory are read by the calling thread alone: threads that hand the
        interpreter's lock to and fro take twice as long. Helpers come where files are large or the disk is
        slow.
        """
        batch = _BATCH if below else 1
        starts = iter(range(0, len(places), batch))
        helpers: list[threading.Thread] = []

        def help_out() -> None:
            for _ in range(min(self.threads, -(-len(places) // batch)) - 1):
                helpers.append(threading.Thread(target=work, name="prepcache-hash", daemon=True))
                helpers[-1].start()

        def work(is_first: bool = False) -> None:
            buffer = memoryview(bytearray(READ_BYTES))
            wall, own, bytes_read = time.perf_counter(), time.thread_time(), 0
            for start in starts:  # one iterator for all threads: `next` of a range iterator is atomic
                for place in places[start : start + batch]:
                    if self._is_over.is_set():
                        return
                    bytes_read += self._read(place, buffer, below)
                if is_first and not helpers:
                    waited_s = time.perf_counter() - wall - 2 * (time.thread_time() - own)
                    if bytes_read >= (start + batch) * HELP_BYTES or waited_s >= HELP_AFTER_S:
                        help_out()

        try:
            if not below:
                help_out()
            work(is_first=True)
        except BaseException:
            self._is_over.set()
            raise
        finally:
            for helper in helpers:
                helper.join()
        if self._errors:
            raise self._errors[min(self._errors)]

    def _read(self, place: int, buffer: memoryview, below: int | None = None) -> int:
        """Read a file, unless it is put off; the bytes read."""
        try:
            found = _read(self.names[place], self.memo, buffer, below)
        except UnkeyableError as error:
            self._errors[place] = error
            self._is_over.set()
            return 0
        if isinstance(found, int):
            self.put_off.append((found, place))
            return 0
        self.results[place] = found
        return found.stamp[2]

    def map(self, places: Sequence[int]) -> list[int]:
        """Have files hashed by a map process, the last ones by this thread until it has started.

        What it answers is believed if the file has that stamp.

        Returns:
            the files that this left to read.
        """
        from prepcache.keys.files.mapped import START_S, MapProcess

        rest = list(places)
        process = MapProcess.start(self.threads)
        if process is None:
            return rest
        sizes = {place: size for size, place in self.put_off}
        buffer = memoryview(bytearray(READ_BYTES))
        with process:
            while (
                process.has_started(0) is None
                and rest
                and sizes[rest[-1]] <= MEANWHILE_BYTES
                and not self._is_over.is_set()
            ):
                self._read(rest.pop(), buffer)
            if not self._is_over.is_set() and process.has_started(START_S):
                read_at_ns = _now_ns(self.memo)
                answers = process.hash([self.names[place] for place in rest])
                for place, answer in zip(rest, answers, strict=False):
                    if answer is not None and _has_stamp(self.names[place], answer[0]):
                        self.results[place] = _digested(*answer, self.memo, read_at_ns)
        return [place for place in rest if self.results[place] is None]


def _has_stamp(name: str | bytes, stamp: Stamp) -> bool:
    try:
        return stamp_of(os.stat(name)) == stamp
    except OSError:
        return False


def thread_count() -> int:
    """Threads for hashing: the cores this process may use, within bounds."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0))))


def digest_tree(name: str | bytes, memo: Memo | None, trust: Trust) -> Digested:
    """The digest of a directory: the names and bytes of all that is under it.

    The stamp sums up all the stamps in it; its numbers have no other meaning.
    """
    rows = walk_tree(name)
    context.depend_on(path for _, path, info in rows if info is not None and is_regular(info))
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
