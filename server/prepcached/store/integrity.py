"""Reading everything again: slowly in the background, at once by `verify`.

Invariants:
    1. An artifact with a wrong byte is removed; a read that fails is an error that is logged and
       counted, and the artifact stays: it could not be told.
    2. What was not in the page cache is dropped again, so that nobody's data is pushed out of it.
    3. The scrub goes round by row id and remembers where it is over restarts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable, Iterator

from blake3 import blake3

from prepcache.digests import Key
from prepcache.protocol.inspection import Verified
from prepcached.store import durable, queries, removal
from prepcached.store.core import Core, io_told, log
from prepcached.store.db import artifacts
from prepcached.store.listing import key_bytes, owned_by
from prepcached.store.queries import Doomable

PIECE_BYTES = 1 << 20
POSITION, ROUND_AT = "scrub_position", "scrub_round_at"
"""Notes in the index: the id of the last row read, and when the round began."""
ROUND_S = 86_400
"""A round begins at most so often: a small store is not read over and over."""
VERIFY_BYTES_PER_S = 64 << 20
"""What `verify` reads of a disk that jobs use; 200 GiB in an hour."""
REMEMBER_S = 60.0
"""The position is written down this often; a crash repeats a minute of reading."""


class Scrubber:
    """The background scrub. One thread calls `some`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        with core.index.read() as conn:
            self._position = queries.note(conn, POSITION)
            self._round_at = queries.note(conn, ROUND_AT)
        self._remembered_at = core.clock()
        self._pieces = self._go_round()

    def some(self, max_bytes: int) -> int:
        """Reads up to so many bytes, going on where the last call stopped; returns how many.

        0 when the round is done and the next not due yet.
        """
        read = 0
        try:
            while read < max_bytes and (n := next(self._pieces)):
                read += n
        except BaseException:
            self._pieces = self._go_round()
            raise
        with self._core.memory:
            self._core.counters.scrubbed_bytes += read
        return read

    def close(self) -> None:
        """Writes down where the round is."""
        self._pieces.close()
        self._remember()

    def _go_round(self) -> Generator[int, None, None]:
        """What was read, piece by piece, round after round; 0 where nothing is to be read just now."""
        core = self._core
        while True:
            now = core.clock()
            if self._position == 0:
                if 0 <= now - self._round_at < ROUND_S:  # one of the future was begun under a wrong clock
                    yield 0
                    continue
                self._round_at = int(now)
            if now - self._remembered_at >= REMEMBER_S:
                self._remember()
            with core.index.read() as conn:
                rows = queries.after(conn, self._position, 1)
            self._position = rows[0].id if rows else 0
            if rows:
                yield from read_whole(core, rows[0])
            else:
                yield 0

    def _remember(self) -> None:
        self._remembered_at = self._core.clock()
        with self._core.index.write() as conn:
            queries.set_note(conn, POSITION, self._position)
            queries.set_note(conn, ROUND_AT, self._round_at)


def verify(
    core: Core,
    keys: Iterable[str] | None = None,
    *,
    progress: Callable[[int, int], None] = lambda checked, total: None,
    owner: int | None = None,
) -> Verified:
    """Reads artifacts whole, now: all, or those of some keys, or an owner. Damaged ones are removed.

    Args:
        progress: called with (checked, of how many) after each artifact; its exception ends the work.
    """
    wanted = None if keys is None else [key_bytes(key) for key in keys]
    with core.memory:
        total = core.counters.entries if wanted is None else len(wanted)
    checked = read = 0
    found: dict[bool | None, list[Key]] = {True: [], False: [], None: []}
    for row in _rows(core, wanted, owner):
        checked += 1
        pieces = read_whole(core, row)
        try:
            while True:
                n = next(pieces)
                read += n
                core.stopping.wait(n / VERIFY_BYTES_PER_S)
                core.check_not_stopping()
        except StopIteration as end:
            found[end.value].append(Key(row.key.hex()))
        finally:
            pieces.close()
        progress(checked, total)
    return Verified(checked, read, tuple(found[False]), tuple(found[None]))


def lose(core: Core, row: Doomable) -> bool:
    """A row's file is not there: looks again with the writer lock, then drops the row; whether it did.

    Raises:
        OSError: the second look could not tell.
    """
    with core.writer:
        rows = removal.rows_of(core, artifacts.c.id, [row.id])
        is_lost = bool(rows) and not durable.is_there(core.layout.object_path(row.digest.hex()))
        if is_lost:
            its = "removing its entry, which was pinned" if row.is_pinned else "removing its entry"
            log.warning("artifact %s has lost its file; %s", row.digest.hex(), its)
            removal.remove(core, rows)
    return is_lost


def _rows(core: Core, wanted: list[bytes] | None, owner: int | None) -> Iterator[Doomable]:
    if wanted is not None:
        yield from removal.rows_of(core, artifacts.c.key, wanted, *owned_by(owner))
        return
    position = 0
    while True:
        with core.index.read() as conn:
            rows = queries.after(conn, position, 1, *owned_by(owner))
        if not rows:
            return
        position = rows[0].id
        yield rows[0]


def read_whole(core: Core, row: Doomable) -> Generator[int, None, bool | None]:
    """Reads an artifact, yielding the bytes of each piece; returns whether it is whole. One that is lost or
    damaged is removed; None where that could not be told, which is logged."""
    try:
        return (yield from _judge(core, row))
    except OSError as error:
        log.error("cannot read artifact %s: %s", row.digest.hex(), error)
        return None


def _judge(core: Core, row: Doomable) -> Generator[int, None, bool]:
    try:
        fd = os.open(core.layout.object_path(row.digest.hex()), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return not lose(core, row)
    try:
        hasher, offset, last = blake3(), 0, 0
        buffer = memoryview(bytearray(min(PIECE_BYTES, row.size_bytes + 1)))
        while n := _read_kindly(fd, buffer, offset):
            hasher.update(buffer[:n])
            offset += n
            if offset < row.size_bytes:
                yield n
            else:  # after the judgement: who asks for no more hears of it all the same
                last += n
    finally:
        os.close(fd)
    is_whole = hasher.digest() == row.digest
    if not is_whole:
        with io_told("a damaged artifact could not be removed"), core.writer:
            rows = removal.rows_of(core, artifacts.c.id, [row.id])
            removal.remove_damaged(core, rows, f"its digest is {hasher.hexdigest()}")
    if last:
        yield last
    return is_whole


def _read_kindly(fd: int, buffer: memoryview, offset: int) -> int:
    """One read that leaves the page cache as it was."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    n = os.preadv(fd, [buffer], offset)
    os.posix_fadvise(fd, offset, n, os.POSIX_FADV_DONTNEED)
    return n
