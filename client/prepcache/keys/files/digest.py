"""Digests of files and of directories, and the stamps that tell that one changed.

Invariants:
    1. A digest belongs to a stamp: both come through one descriptor, and the stamp was the same before
       and after the bytes were read. A file that changes each time it is read is refused.
    2. Symlinks are followed: what counts is what the function would read.
    3. Only regular files are opened. Opening never blocks, which a pipe would, and files are never
       mapped: one that shrinks under a map kills the process.
    4. Threads for hashing end with the call that started them. BLAKE3 has none of its own here: they outlive
       the call and hang in a forked child.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator, Sequence
from stat import S_ISDIR, S_ISREG
from typing import Literal, NamedTuple

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.files.stat_cache import Stamp, StatCache, is_racy, racy_window_ns, stamp_of
from prepcache.keys.observation import watches

Trust = Literal["stat", "content"]

TREE_DOMAIN = b"prepcache tree v1\0"  # its number rises when what a directory's digest is taken over changes
READ_BYTES = 512 * 1024
MAX_THREADS = 8
MAX_ATTEMPTS = 3  # to read a file that changes meanwhile

_BATCH_FILES = 64


class Digested(NamedTuple):
    """A file or directory as it was read; racy if a later write could leave its stamp as it is."""

    digest: bytes
    stamp: Stamp
    is_racy: bool


def kind_of(info: os.stat_result) -> str:
    if S_ISREG(info.st_mode):
        return "a file"
    return "a directory" if S_ISDIR(info.st_mode) else "a pipe, a socket or a device"


def stat_or_none(path: str | bytes) -> os.stat_result | None:
    """The stat of what a path leads to, None if to nothing. OSError: it cannot be told."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a NUL, or what no name can hold
        return None


def digest_file(
    name: str | bytes, stat_cache: StatCache | None, trust: Trust = "stat", info: os.stat_result | None = None
) -> Digested:
    """The BLAKE3 digest of a regular file's bytes, with its stamp. `info`: its stat of a moment ago."""
    watches.depend_on((name,))
    if stat_cache is not None and trust == "stat":
        with contextlib.suppress(OSError, ValueError):  # reading it says what is wrong
            stamp = stamp_of(info or os.stat(name))
            if (known := stat_cache.get(stamp)) is not None:
                return Digested(known, stamp, False)
    return read_file(name, stat_cache)


def read_file(name: str | bytes, stat_cache: StatCache | None) -> Digested:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            for _ in range(MAX_ATTEMPTS):
                read_at_ns = time.time_ns() if stat_cache is None else stat_cache.clock()
                info = os.fstat(fd)
                if not S_ISREG(info.st_mode):
                    raise UnkeyableError(f"{printable(name)} is {kind_of(info)}, not a regular file")
                digest, size = _hash(fd, info.st_size)
                stamp = stamp_of(info)
                if size == info.st_size and stamp_of(os.fstat(fd)) == stamp:
                    if stat_cache is None:
                        return Digested(digest, stamp, is_racy(stamp, read_at_ns, racy_window_ns(stamp[0])))
                    return Digested(digest, stamp, not stat_cache.add(stamp, digest, read_at_ns))
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error
    raise UnkeyableError(f"{printable(name)} changes while it is read; wait for its writer to finish")


def _hash(fd: int, expected_bytes: int) -> tuple[bytes, int]:
    hasher = blake3()
    buffer = memoryview(bytearray(min(READ_BYTES, expected_bytes + 1)))
    size = 0
    while count := os.preadv(fd, [buffer], size):
        hasher.update(buffer[:count])
        size += count
    return hasher.digest(), size


def read_files(names: Sequence[str | bytes], stat_cache: StatCache | None) -> list[Digested]:
    if len(names) < 2:
        return [read_file(name, stat_cache) for name in names]
    from concurrent.futures import ThreadPoolExecutor  # not needed where all files are known

    threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    size = max(1, min(_BATCH_FILES, len(names) // (4 * threads)))
    batches = [names[at : at + size] for at in range(0, len(names), size)]
    with ThreadPoolExecutor(threads, "prepcache-hash") as pool:
        read = pool.map(lambda batch: [read_file(name, stat_cache) for name in batch], batches)
        return [one for some in read for one in some]


def digest_tree(name: str | bytes, stat_cache: StatCache | None, trust: Trust) -> Digested:
    """By the names and bytes of all that is under a directory. Its stamp sums up theirs."""
    root = os.path.join(os.fsencode(name), b"")
    try:
        found = sorted(walk_tree(root))
    except OSError as error:
        raise _unreadable(error.filename, error) from error
    content, stamps = blake3(TREE_DOMAIN), blake3(TREE_DOMAIN)
    is_any_racy = False
    for path, info in found:
        relative = path.removeprefix(root)
        kind = b"?" if info is None else b"d" if S_ISDIR(info.st_mode) else b"f"
        entry = kind + len(relative).to_bytes(8, "big") + relative
        content.update(entry)
        stamps.update(entry)
        if info is not None and S_ISREG(info.st_mode):
            digested = digest_file(path, stat_cache, trust, info)
            content.update(digested.digest)
            stamps.update(struct.pack(">5q", *digested.stamp))
            is_any_racy |= digested.is_racy
    a, b, c, d = struct.unpack(">4q", stamps.digest())
    return Digested(content.digest(), (a, b, c, d, 0), is_any_racy)


def walk_tree(
    folder: bytes, above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """The path of each thing under a directory, `folder/`, and its stat, None for a link to nothing."""
    here = os.stat(folder)
    if (here.st_dev, here.st_ino) in above:
        raise UnkeyableError(f"{printable(folder[:-1])} is a link to one of its parent directories")
    for entry in os.listdir(folder):
        path = folder + entry
        info = stat_or_none(path)
        is_directory = info is not None and S_ISDIR(info.st_mode)
        if not (info is None or is_directory or S_ISREG(info.st_mode)):
            raise UnkeyableError(f"{printable(path)} is {kind_of(info)}, which has no bytes to hash")
        yield path, info
        if is_directory:
            yield from walk_tree(path + b"/", above | {(here.st_dev, here.st_ino)})


def printable(name: str | bytes) -> str:
    return repr(os.fsdecode(name))


def _unreadable(name: str | bytes, error: OSError | ValueError) -> UnkeyableError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UnkeyableError(f"{printable(name)} cannot be read: {why}", name=os.fsdecode(name))
