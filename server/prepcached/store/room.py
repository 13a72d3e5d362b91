"""Room for what is to be written: reserved before it comes, evicting what is idle, and given back after.

Invariants:
    1. Eviction never takes what is held or pinned. It takes all that is needed, or nothing.
    2. A user over his quota loses his own coldest entries first; nobody else's go for him.
    3. Nothing is evicted for bytes that never come. Room that an upload announces is kept from others for as
       long as the upload goes on, and so no longer than its lease (routes/data.py).
    4. Uploads that go on at once are admitted only where there is room for all of them, so that none is
       declined for the sake of another when most of it has come. A commit may still be quicker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from prepcache import errors
from prepcached.store import disk_reserve, eviction, queries, removal
from prepcached.store.core import Core, io_told, no_space_declined
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable

EVICT_BATCH = 256
"""Entries one transaction of the evictor deletes, so that a commit never waits long for it."""
ATTEMPTS = 5
"""Others take what was made free in between, but not this often in a row."""
STEP_BYTES = 16 << 20
"""Room is made for so much at once."""


def evict(core: Core, need_bytes: int, owner: int | None = None) -> bool:
    """Frees at least this much by what is idle, of one owner or of all, or nothing at all; whether it did."""
    with core.memory:
        if need_bytes > core.idle_bytes():
            return False  # without a walk past everything that is held
    disk_reserve.give_up(core.layout)
    with core.writer:
        while True:
            removal.write_recency(core)
            chosen = _choose(core, need_bytes, owner)
            if chosen is None:
                return False
            now = core.monotonic()
            with core.memory:
                is_idle = not any(core.holds.is_held(row.digest, now) for row in chosen)
                core.holds.condemn(row.digest for row in chosen if is_idle)
            if is_idle:  # else a job took a hold between the choice and now: choose again
                _evict(core, chosen)
                return True


def could_evict(core: Core, need_bytes: int, owner: int) -> bool:
    """Whether so many bytes of a user's entries are idle."""
    with core.memory:
        if need_bytes > core.idle_bytes():
            return False
    return _choose(core, need_bytes, owner) is not None


def _choose(core: Core, need_bytes: int, owner: int | None) -> list[Doomable] | None:
    with core.index.read() as conn:
        return eviction.choose(queries.coldest(conn, owner), need_bytes, is_held_now(core))


def idle(
    core: Core, need_bytes: int, owner: int | None = None, where: Sequence[queries.Where] = ()
) -> list[Doomable]:
    """What would go first for so many bytes, or less where only less is idle: one walk past everything that
    is held."""
    with core.index.read() as conn:
        return eviction.idle_of(queries.coldest(conn, owner, where), need_bytes, is_held_now(core))


@contextlib.contextmanager
def idle_still(core: Core, chosen: Sequence[Doomable]) -> Iterator[list[Doomable]]:
    """Those of these that nobody holds, has pinned or has used since they were chosen, condemned. Call it
    with the writer lock."""
    removal.write_recency(core)
    used_at = {row.id: row.used_at for row in chosen}
    rows = removal.rows_of(core, artifacts.c.id, used_at)
    going = _condemn_idle(core, [row for row in rows if row.used_at == used_at[row.id] and not row.is_pinned])
    with removal.condemned(core, going):
        yield going


def evict_chosen(core: Core, chosen: Sequence[Doomable]) -> None:
    """Evicts those of these that are idle still."""
    disk_reserve.give_up(core.layout)
    with core.writer, idle_still(core, chosen) as rows:
        _evict(core, rows)


def is_held_now(core: Core) -> Callable[[bytes], bool]:
    """Whether a digest is held."""
    now = core.monotonic()

    def is_held(digest: bytes) -> bool:
        with core.memory:
            return core.holds.is_held(digest, now)

    return is_held


def _condemn_idle(core: Core, rows: Sequence[Doomable]) -> list[Doomable]:
    """Those of these that nobody holds, from now on condemned."""
    now = core.monotonic()
    with core.memory:
        going = [row for row in rows if not core.holds.is_held(row.digest, now)]
        core.holds.condemn(row.digest for row in going)
    return going


def _evict(core: Core, rows: list[Doomable]) -> None:
    """Removes condemned rows. Call it with the writer lock."""
    rows.sort(key=lambda row: row.edition)  # or a batch takes along what a later one has
    with removal.condemned(core, rows):
        for start in range(0, len(rows), EVICT_BATCH):
            removal.remove(core, rows[start : start + EVICT_BATCH])
    now = core.monotonic()
    with core.memory:
        core.counters.evictions += len(rows)
        core.counters.evicted_bytes += sum(row.disk_bytes for row in rows)
        core.recent_evictions.extend([now] * len(rows))


@contextlib.contextmanager
def room(core: Core, size_bytes: int, owner: int) -> Iterator[None]:
    """Reserves room for a user's write, evicting if needed; gives it back.

    Raises:
        Declined: what is left is held or pinned, or this is larger than the budget, or than his quota.
    """
    reserve(core, size_bytes, owner)
    try:
        yield
    finally:
        with core.memory:
            core.ledger.reserved_bytes -= size_bytes
            core.quotas.reserved[owner] -= size_bytes


@contextlib.contextmanager
def spare_room(core: Core, size_bytes: int, owner: int, owner_bytes: int) -> Iterator[bool]:
    """Reserves room for a write, and some of a user's quota, if there is both; evicts nothing."""
    free = core.root.free_bytes()
    with core.memory:
        is_short = core.quotas.shortfall(owner, owner_bytes) > 0
        is_there = not is_short and core.ledger.shortfall(size_bytes, free) <= 0
        core.ledger.reserved_bytes += size_bytes * is_there
        core.quotas.reserved[owner] += owner_bytes * is_there
    try:
        yield is_there
    finally:
        with core.memory:
            core.ledger.reserved_bytes -= size_bytes * is_there
            core.quotas.reserved[owner] -= owner_bytes * is_there


def reserve(core: Core, size_bytes: int, owner: int | None = None) -> None:
    """Reserves room, of a user's quota too, evicting if needed; whoever calls it gives it back.

    Raises:
        Declined: as `room`.
    """
    for attempt in range(ATTEMPTS):
        free = core.root.free_bytes()
        with core.memory:
            short = core.ledger.shortfall(size_bytes, free)
            own = 0 if owner is None else core.quotas.shortfall(owner, size_bytes)
            if short <= 0 and own <= 0:
                core.ledger.reserved_bytes += size_bytes
                if owner is not None:
                    core.quotas.reserved[owner] += size_bytes
                return
        if attempt == ATTEMPTS - 1 or not (evict(core, own, owner) if own > 0 else evict(core, short)):
            break
    with core.memory:
        core.counters.declined += 1
        why, limit = core.ledger.refusal(size_bytes, free), core.ledger.limit(free)
        if owner is not None and own > 0:
            why, limit = core.quotas.refusal(owner, size_bytes), core.quotas.of(owner) or 0
    raise errors.Declined(why, size_bytes=size_bytes, limit_bytes=limit)


class Upload:
    """A new staged file that is being uploaded.

    Args:
        fd: open for writing; the caller closes it.
        size_bytes: as announced.
    """

    def __init__(self, core: Core, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self._core = core
        self._announced = size_bytes
        self._expected = 0
        self._reserved = 0

    def expect(self, size_bytes: int) -> None:
        """Makes room for so many more bytes, evicting what is idle; call it before they are written.

        Raises:
            Declined: no room can be made any more.
        """
        self._expected += size_bytes
        while self._reserved < self._expected:
            step = max(1, min(STEP_BYTES, self._announced - self._reserved))
            reserve(self._core, step)
            with self._core.memory:
                self._core.ledger.announced_bytes -= step
            self._reserved += step

    def end(self) -> None:
        """Gives back the room; what was written counts as staged from here on."""
        with self._core.memory:
            self._core.ledger.reserved_bytes -= self._reserved
            self._core.ledger.announced_bytes -= self._announced - self._reserved


@contextlib.contextmanager
def uploading(core: Core, name: str, size_bytes: int) -> Iterator[Upload]:
    """See `Store.upload`."""
    with no_space_declined(core), io_told("a staged file could not be written"):
        core.look_at_staging()
        _admit(core, size_bytes)
        upload = Upload(core, -1, size_bytes)
        try:
            with core.staged_area.uploading(name):
                upload.fd = core.staged_area.new(name)
                yield upload
        finally:
            upload.end()


def _admit(core: Core, size_bytes: int) -> None:
    """
    Raises:
        Declined: there is no room beside what was announced before.
    """
    free = core.root.free_bytes()
    with core.memory:
        if core.fits(size_bytes, free):
            core.ledger.announced_bytes += size_bytes
            return
        core.counters.declined += 1
        why, limit = core.ledger.refusal(size_bytes, free), core.ledger.limit(free)
    raise errors.Declined(why, size_bytes=size_bytes, limit_bytes=limit)
