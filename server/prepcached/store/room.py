"""Room for what is to be written: reserved before it comes, evicting what is idle, and given back after.

Invariants:
    1. Eviction never takes what is held or pinned. For a write it takes all that is needed, or nothing.
    2. A user over his quota loses his own coldest entries first; nobody else's go for him.
    3. An upload reserves all that it announces before its first byte is written, so none is declined when
       most of it has come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from prepcache import errors
from prepcached.store import disk_reserve, eviction, queries, removal
from prepcached.store.core import Core, io_told, no_space_declined
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable

ATTEMPTS = 5
"""Others take what was made free in between, but not this often in a row."""
HEADROOM_ENTRIES = 32
"""Evicted ahead at once, where much has to go: commits and new recipes wait no longer than for so many..."""
HEADROOM_PIECE_BYTES = 16 << 20
"""...and after the entry that reaches this, a piece ends: unlinking a large file takes its time."""


def evict(core: Core, need_bytes: int, owner: int | None = None) -> bool:
    """Frees at least this much by what is idle, of one owner or of all, or nothing at all; whether it did."""
    with core.memory:
        if need_bytes > core.idle_bytes():
            return False  # without a walk past everything that is held
    disk_reserve.give_up(core.layout)
    with core.writer:
        while True:
            removal.write_recency(core)
            with core.index.read() as conn:
                chosen = eviction.choose(queries.coldest(conn, owner), need_bytes, is_held_now(core))
            if chosen is None:
                return False
            if len(idle_still(core, chosen)) == len(chosen):  # else a job has come: choose again
                _evict(core, chosen)
                return True


def could_evict(core: Core, need_bytes: int, owner: int) -> bool:
    """Whether so many bytes of a user's entries are idle."""
    with core.memory:
        if need_bytes > core.idle_bytes():
            return False
    found = idle(core, need_bytes, owner)
    return sum(row.disk_bytes for row in found) >= need_bytes


def idle(
    core: Core, need_bytes: int, owner: int | None = None, where: Sequence[queries.Where] = ()
) -> list[Doomable]:
    """What would go first for so many bytes, or less where only less is idle: one walk past everything that
    is held."""
    with core.index.read() as conn:
        return eviction.idle_of(queries.coldest(conn, owner, where), need_bytes, is_held_now(core))


def idle_still(core: Core, chosen: Sequence[Doomable]) -> list[Doomable]:
    """Those of these that are as idle as when they were chosen. Call it with the writer lock."""
    removal.write_recency(core)
    used_at = {row.id: row.used_at for row in chosen}
    is_held = is_held_now(core)
    rows = sorted(removal.rows_of(core, artifacts.c.id, used_at), key=lambda row: row.used_at)
    return [
        row
        for row in rows
        if row.used_at == used_at[row.id] and not row.is_pinned and not is_held(row.digest)
    ]


def is_held_now(core: Core) -> Callable[[bytes], bool]:
    """Whether a digest is held."""
    now = core.monotonic()

    def is_held(digest: bytes) -> bool:
        with core.memory:
            return core.holds.is_held(digest, now)

    return is_held


def make_room_ahead(core: Core) -> None:
    """Evicts what is over the users' quotas, and until the headroom is free; less if only less is idle."""
    with core.memory:
        over = {owner: core.quotas.shortfall(owner) for owner in core.quotas.over()}
    for owner, short in over.items():
        _evict_pieces(core, short, owner)
    _evict_pieces(core, headroom_lacking(core))


def headroom_lacking(core: Core) -> int:
    """Bytes that lack of the headroom, where something is idle that may go for them."""
    free = core.disk.free_bytes()
    with core.memory:
        short = core.ledger.shortfall(core.ledger.headroom(free), free)
        return short if core.idle_bytes() > 0 else 0


def _evict_pieces(core: Core, need_bytes: int, owner: int | None = None) -> None:
    """Evicts so much, or less if only less is idle, and lets others have the writer lock in between."""
    if need_bytes <= 0:
        return
    removal.write_recency(core)
    chosen = idle(core, need_bytes, owner)
    while chosen:
        count = size_bytes = 0
        while count < min(HEADROOM_ENTRIES, len(chosen)) and size_bytes < HEADROOM_PIECE_BYTES:
            size_bytes += chosen[count].disk_bytes
            count += 1
        core.check_not_stopping()
        core.foreground.give_way()
        evict_chosen(core, chosen[:count])
        chosen = chosen[count:]


def evict_chosen(core: Core, chosen: Sequence[Doomable]) -> None:
    """Evicts those of these that are idle still."""
    disk_reserve.give_up(core.layout)
    with core.writer:
        _evict(core, idle_still(core, chosen))


def _evict(core: Core, rows: Sequence[Doomable]) -> None:
    """Removes rows and counts them as evicted. Call it with the writer lock."""
    removal.remove(core, rows)
    now = core.monotonic()
    with core.memory:
        core.counters.evictions += len(rows)
        core.counters.evicted_bytes += sum(row.disk_bytes for row in rows)
        core.recent_evictions.extend([now] * len(rows))


@contextlib.contextmanager
def room(core: Core, size_bytes: int, owner: int | None = None) -> Iterator[None]:
    """Reserves room for a write, of a user's quota too, evicting if needed; gives it back.

    Raises:
        Declined: what is left is held or pinned, or this is larger than the budget, or than his quota.
    """
    reserve(core, size_bytes, owner)
    try:
        yield
    finally:
        with core.memory:
            core.ledger.reserved_bytes -= size_bytes
            if owner is not None:
                core.quotas.reserved[owner] -= size_bytes


def reserve(core: Core, size_bytes: int, owner: int | None = None) -> None:
    """Reserves room, of a user's quota too, evicting if needed; whoever calls it gives it back.

    Raises:
        Declined: as `room`.
    """
    for attempt in range(ATTEMPTS):
        free = core.disk.free_bytes()
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


@contextlib.contextmanager
def uploading(core: Core, name: str, size_bytes: int) -> Iterator[int]:
    """A descriptor of a new staged file, and room for its bytes until the block ends; the caller closes it.

    Entering waits for the disk, leaving does not. Inside, a full disk declines, and other trouble is a
    StoreError.

    Raises:
        Declined: no room can be made.
    """
    with no_space_declined(core), io_told("a staged file could not be written"):
        core.look_at_staging()
        with room(core, size_bytes), core.staged_area.busy(name):
            yield core.staged_area.new(name)
