"""Room for what is to be written: reserved before it comes, evicting what is idle, and given back after. And
purges: what the user asked to be gone.

Invariants:
    1. Eviction takes the least recently used of what is neither held nor pinned. For a write it takes all
       that is needed, or nothing: when even that would not make enough room, the write is declined. So a data
       set larger than the budget keeps a steady part of itself instead of thrashing.
    2. A user over his quota loses his own coldest entries first; nobody else's go for him.
    3. An upload reserves all that it announces before its first byte is written, so none is declined when
       most of it has come.
    4. A purge goes in batches, a transaction each: one of millions neither blocks commits nor fills memory.
       What is committed while it runs may stay.
    5. A purge that frees a number of bytes takes the least recently used first, and neither pinned nor held
       entries, also where they come to be so meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from prepcache import errors
from prepcache.digests import Key
from prepcache.protocol.inspection import Purged
from prepcached.store import listing, queries, removal
from prepcached.store.core import Core, io_told, no_space_declined
from prepcached.store.db import artifacts
from prepcached.store.queries import Doomable
from prepcached.store.records import Filter

PURGE_BATCH = 500
MAX_KEYS = 10_000
"""Keys that the answer to a purge names; the counts are of all."""
ATTEMPTS = 5
"""Others take what was made free in between, but not this often in a row."""
HEADROOM_ENTRIES = 32
"""Evicted ahead at once, where much has to go: commits and new recipes wait no longer than for so many..."""
HEADROOM_PIECE_BYTES = 16 << 20
"""...and after the entry that reaches this, a piece ends: unlinking a large file takes its time."""


def idle_of(
    coldest: Iterable[Doomable], need_bytes: int, is_protected: Callable[[bytes], bool]
) -> list[Doomable]:
    """The entries to evict for `need_bytes`, or all idle ones where they are not enough. Pure.

    Args:
        coldest: least recently used first; read only as far as needed.
        need_bytes: bytes on disk to be freed; 0 or less needs nothing.
        is_protected: whether a digest is held.
    """
    chosen: list[Doomable] = []
    for candidate in coldest if need_bytes > 0 else ():
        if is_protected(candidate.digest):
            continue
        chosen.append(candidate)
        need_bytes -= candidate.disk_bytes
        if need_bytes <= 0:
            break
    return chosen


def idle(core: Core, need_bytes: int, owner: int | None = None) -> list[Doomable]:
    """What would go first for so many bytes, or less where only less is idle: one walk past everything that
    is held."""
    with core.index.read() as conn:
        return idle_of(queries.coldest(conn, owner), need_bytes, is_held_now(core))


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


def refusal(core: Core, size_bytes: int, owner: int | None = None) -> str:
    """Why so many more bytes, of this owner, would not be taken, evicting what is idle; empty where they
    fit. An estimate for leases."""
    with io_told("the disk could not be read"):
        free = core.disk.free_bytes()
    with core.memory:
        own = 0 if owner is None else core.quotas.shortfall(owner, size_bytes)
        short, idle_bytes = core.ledger.shortfall(size_bytes, free), core.idle_bytes()
        if short > 0 and short > idle_bytes:
            return core.ledger.refusal(size_bytes, free)
    if owner is None or own <= 0:
        return ""
    # Where less is idle than is needed, no walk past everything that is held.
    if own <= idle_bytes and sum(row.disk_bytes for row in idle(core, own, owner)) >= own:
        return ""
    with core.memory:
        return core.quotas.refusal(owner, size_bytes)


def evict(core: Core, need_bytes: int, owner: int | None = None) -> bool:
    """Frees at least this much by what is idle, of one owner or of all, or nothing at all; whether it did."""
    with core.memory:
        if need_bytes > core.idle_bytes():
            return False  # without a walk past everything that is held
    with core.writer:
        while True:
            removal.write_recency(core)
            chosen = idle(core, need_bytes, owner)
            if sum(row.disk_bytes for row in chosen) < need_bytes:
                return False
            if len(idle_still(core, chosen)) == len(chosen):  # else a job has come: choose again
                _evict(core, chosen)
                return True


def make_room_ahead(core: Core) -> None:
    """Evicts what is over the users' quotas, and until the headroom is free; less if only less is idle."""
    with core.memory:
        over = {owner: core.quotas.shortfall(owner) for owner in core.quotas.over()}
    for owner, short in over.items():
        _evict_pieces(core, short, owner)
    free = core.disk.free_bytes()
    with core.memory:
        short = core.ledger.shortfall(core.ledger.headroom(free), free) if core.idle_bytes() > 0 else 0
    _evict_pieces(core, short)


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
        evict_chosen(core, chosen[:count])
        chosen = chosen[count:]


def evict_chosen(core: Core, chosen: Sequence[Doomable]) -> None:
    """Evicts those of these that are idle still."""
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
def room(
    core: Core, size_bytes: int, owner: int | None = None, *, placed_bytes: int = 0, may_evict: bool = True
) -> Iterator[None]:
    """Reserves room for a write, of a user's quota too, evicting if needed; gives it back.

    Args:
        placed_bytes: so much of these is on the disk already.

    Raises:
        Declined: what is left is held or pinned, or this is larger than the budget, or than his quota.
    """
    _reserve(core, size_bytes, owner, placed_bytes, may_evict)
    try:
        yield
    finally:
        with core.memory:
            _promise(core, -size_bytes, owner, -placed_bytes)


def _reserve(core: Core, size_bytes: int, owner: int | None, placed_bytes: int, may_evict: bool) -> None:
    for attempts_left in reversed(range(ATTEMPTS if may_evict else 1)):
        free = core.disk.free_bytes()
        with core.memory:
            short = core.ledger.shortfall(size_bytes, free, placed_bytes)
            own = 0 if owner is None else core.quotas.shortfall(owner, size_bytes)
            if short <= 0 and own <= 0:
                return _promise(core, size_bytes, owner, placed_bytes)
        if not attempts_left or not (evict(core, own, owner) if own > 0 else evict(core, short)):
            break
    with core.memory:
        core.counters.declined += may_evict
        why, limit = core.ledger.refusal(size_bytes, free), core.ledger.limit(free, placed_bytes)
        if owner is not None and own > 0:
            why, limit = core.quotas.refusal(owner, size_bytes), core.quotas.of(owner) or 0
    raise errors.Declined(why, size_bytes=size_bytes, limit_bytes=limit)


def _promise(core: Core, size_bytes: int, owner: int | None, placed_bytes: int) -> None:
    core.ledger.reserved_bytes += size_bytes
    core.ledger.placed_bytes += placed_bytes
    if owner is not None:
        core.quotas.reserved[owner] += size_bytes


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


def purge(core: Core, filter: Filter, *, dry_run: bool = False, free_bytes: int | None = None) -> Purged:
    """Removes every entry that matches, held and pinned ones too; says what it removed, or would.

    Args:
        free_bytes: bytes on disk after which to stop. The least recently used entries go first, and those
            that are pinned or held stay.
    """
    removal.write_recency(core)
    now = core.clock()
    where = listing.conditions(filter, now)
    if free_bytes is not None:  # what is used from now on moves behind all others
        with core.index.read() as conn:
            where.append(artifacts.c.used_at <= (queries.latest_used_at(conn) or now))
    entries = size_bytes = disk_bytes = pinned = 0
    keys: list[Key] = []
    position: tuple[int, float] = 0, -1.0
    while free_bytes is None or disk_bytes < free_bytes:
        core.check_not_stopping()
        with core.index.read() as conn:
            used_at = None if free_bytes is None else position[1]
            rows = queries.after(conn, position[0], PURGE_BATCH, *where, used_at=used_at)
        if not rows:
            break
        position = rows[-1].id, rows[-1].used_at
        if free_bytes is not None:
            rows = idle_of(rows, free_bytes - disk_bytes, is_held_now(core))
        if not dry_run:
            with io_told("a purge failed"), core.writer:
                if free_bytes is None:
                    rows = removal.rows_of(core, artifacts.c.id, [row.id for row in rows])
                else:
                    rows = idle_still(core, rows)
                removal.remove(core, rows)
        entries += len(rows)
        pinned += sum(bool(row.is_pinned) for row in rows)
        size_bytes += sum(row.size_bytes for row in rows)
        disk_bytes += sum(row.disk_bytes for row in rows)
        keys += [Key(row.key.hex()) for row in rows[: MAX_KEYS - len(keys)]]
    return Purged(entries, size_bytes, disk_bytes, tuple(keys), dry_run, pinned)
