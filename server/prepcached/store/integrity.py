"""Reading everything again: slowly in the background, at once by `verify`.

Invariants:
    1. An artifact with a wrong byte is removed; a read that fails is an error that is logged and
       counted, and the artifact stays: it could not be told.
    2. The scrub does not push other people's data out of the page cache: what was not cached when it
       came by is dropped again.
    3. The scrub goes round by row id and remembers where it is over restarts.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable

from blake3 import blake3

from prepcache.digests import Key
from prepcached.store import durable, queries, removal
from prepcached.store.core import Core, io_told, log
from prepcached.store.listing import key_bytes, owned_by
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable
from prepcached.store.records import Verified

Progress = Callable[[int, int], None] | None
"""Called with (checked, of how many) after each artifact; its exception ends the work."""
PIECE_BYTES = 1 << 20
POSITION, ROUND_AT = "scrub_position", "scrub_round_at"
"""Notes in the index: the id of the last row read, and when the round began."""
ROUND_S = 86_400
"""A round begins at most so often: a small store is not read over and over."""
VERIFY_BYTES_PER_S = 64 << 20
"""What `verify` reads of a disk that jobs use; 200 GiB in an hour."""
REMEMBER_S = 60.0
"""The position is written down this often; a crash repeats a minute of reading."""


class _Reading:
    """An artifact that is being read from its beginning."""

    def __init__(self, core: Core, row: Doomable) -> None:
        self.row = row
        self.offset = 0
        self._core = core
        self._fd = os.open(core.layout.object_path(row.digest.hex()), os.O_RDONLY | os.O_CLOEXEC)
        self._hasher = blake3()
        self._buffer = memoryview(bytearray(min(PIECE_BYTES, row.size_bytes + 1)))

    def some(self, max_bytes: int) -> int:
        """Reads on; returns the bytes read, 0 at the end."""
        start = self.offset
        while self.offset - start < max_bytes:
            n = _read_kindly(self._fd, self._buffer, self.offset)
            if n == 0:
                break
            self._hasher.update(self._buffer[:n])
            self.offset += n
        return self.offset - start

    def judge(self) -> bool:
        """At the end: whether the bytes make the artifact's name. If not, it is removed."""
        core, digest = self._core, self._hasher.hexdigest()
        if digest == self.row.digest.hex():
            return True
        with io_told("a damaged artifact could not be removed"), core.writer:
            rows = removal.rows_of(core, artifacts.c.id, [self.row.id])
            removal.remove_damaged(core, rows, f"its digest is {digest}")
        return False

    def close(self) -> None:
        os.close(self._fd)


class Scrubber:
    """The background scrub. One thread calls `some`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reading: _Reading | None = None
        with core.index.read() as conn:
            self._position = queries.note(conn, POSITION)
            self._round_at = queries.note(conn, ROUND_AT)
        self._remembered_at = core.clock()

    def some(self, max_bytes: int) -> int:
        """Reads up to so many bytes, going on where the last call stopped; returns how many.

        0 when the round is done and the next not due yet.
        """
        read = 0
        while read < max_bytes:
            if self._reading is None:
                self._core.foreground.give_way()
                self._reading = self._next()
                if self._reading is None:
                    break
            reading = self._reading
            try:
                n = reading.some(max_bytes - read)
            except OSError as error:
                _note_unread(reading.row, error)
                self._let_go()
                continue
            read += n
            if n == 0 or reading.offset >= reading.row.size_bytes:
                reading.judge()
                self._let_go()
        with self._core.memory:
            self._core.counters.scrubbed_bytes += read
        return read

    def close(self) -> None:
        """Writes down where the round is."""
        self._let_go()
        self._remember()

    def _next(self) -> _Reading | None:
        """The next artifact of the round, opened; None at its end."""
        core, now = self._core, self._core.clock()
        if self._position == 0:
            if 0 <= now - self._round_at < ROUND_S:  # one of the future was begun under a wrong clock
                return None
            self._round_at = int(now)
        if now - self._remembered_at >= REMEMBER_S:
            self._remember()
        while True:
            with core.index.read() as conn:
                row = queries.next_row(conn, self._position)
            if row is None:
                self._position = 0
                return None
            self._position = row.id
            try:
                return _Reading(core, row)
            except FileNotFoundError:
                with contextlib.suppress(OSError):
                    lose(core, row)
            except OSError as error:
                _note_unread(row, error)

    def _let_go(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _remember(self) -> None:
        self._remembered_at = self._core.clock()
        with self._core.index.write() as conn:
            queries.set_note(conn, POSITION, self._position)
            queries.set_note(conn, ROUND_AT, self._round_at)


def verify(core: Core, keys: Iterable[str] | None, progress: Progress, owner: int | None) -> Verified:
    """Reads artifacts whole, now. See `Store.verify`."""
    wanted = None if keys is None else [key_bytes(key) for key in keys]
    with core.memory:
        total = core.counters.entries if wanted is None else len(wanted)
    checked = read = 0
    bad: list[Key] = []
    unreadable: list[Key] = []
    for row in _rows(core, wanted, owner):
        checked += 1
        try:
            is_whole, n = _is_whole(core, row)
        except OSError as error:
            _note_unread(row, error)
            unreadable.append(Key(row.key.hex()))
            continue
        read += n
        if not is_whole:
            bad.append(Key(row.key.hex()))
        if progress is not None:
            progress(checked, total)
    return Verified(checked, read, tuple(bad), tuple(unreadable))


def lose(core: Core, row: Doomable) -> None:
    """A row's file is not there: looks again with the writer lock, then drops the row.

    Raises:
        OSError: the second look could not tell.
    """
    with core.writer:
        rows = removal.rows_of(core, artifacts.c.id, [row.id])
        if rows and not durable.is_there(core.layout.object_path(row.digest.hex())):
            its = "removing its entry, which was pinned" if row.is_pinned else "removing its entry"
            log.warning("artifact %s has lost its file; %s", row.digest.hex(), its)
            removal.remove(core, rows)


def _rows(core: Core, wanted: list[bytes] | None, owner: int | None) -> Iterable[Doomable]:
    if wanted is not None:
        yield from removal.rows_of(core, artifacts.c.key, wanted, *owned_by(owner))
        return
    position = 0
    while True:
        with core.index.read() as conn:
            row = queries.next_row(conn, position, *owned_by(owner))
        if row is None:
            return
        position = row.id
        yield row


def _is_whole(core: Core, row: Doomable) -> tuple[bool, int]:
    """Whether the file has the bytes that its name says, and how many were read."""
    try:
        reading = _Reading(core, row)
    except FileNotFoundError:
        was_there = bool(removal.rows_of(core, artifacts.c.id, [row.id]))
        lose(core, row)
        return not was_there, 0
    try:
        while n := reading.some(PIECE_BYTES):
            core.stopping.wait(n / VERIFY_BYTES_PER_S)
            core.check_not_stopping()
        return reading.judge(), reading.offset
    finally:
        reading.close()


def _note_unread(row: Doomable, error: OSError) -> None:
    log.error("cannot read artifact %s: %s", row.digest.hex(), error)


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
