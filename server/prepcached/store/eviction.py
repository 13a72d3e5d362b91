"""What goes: removals (rows first, files after), room for what is to be written, and purges.

Invariants:
    1. Eviction takes the least recently used of what is neither held nor pinned. For a write it takes all
       that is needed, or nothing, and the write is declined: a data set larger than the budget keeps a steady
       part of itself. Damage, replacement and a plain purge take what is held, too.
    2. A user over his quota loses his own coldest entries first; nobody else's go for him.
    3. Removals and purges go in batches, a transaction each, so that nobody waits long for one of many.
    4. What was chosen is looked at again, with the writer lock, before it is evicted or purged by size.
    5. A file that cannot be unlinked stays doomed; housekeeping and the next start try again.

Locking: what removes is called with the writer lock, unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcache.digests import Key
from prepcache.protocol import status_text
from prepcache.protocol.inspection import Purged
from prepcached.store import durable, listing, queries
from prepcached.store.core import Core, io_told, log, no_space_declined
from prepcached.store.db import artifacts
from prepcached.store.queries import Doomable
from prepcached.store.records import Filter

BATCH = 500
"""Entries that one transaction deletes."""
MAX_KEYS = 10_000
"""Keys that a purge remembers for its answer, which names fewer; the counts are of all."""
ATTEMPTS = 5
"""Others take what was made free in between, but not this often in a row."""
HEADROOM_ENTRIES = 8
"""Evicted ahead at once, where much has to go: commits and new recipes wait no longer than for so many."""


# Removals


def rows_of(
    core: Core, column: sa.Column[Any], values: Iterable[Any], *where: queries.Where
) -> list[Doomable]:
    """Rows by key, digest or id. Needs no lock."""
    with core.index.read() as conn:
        return queries.doomable_in(conn, column, values, *where)


def remove(core: Core, rows: Sequence[Doomable]) -> None:
    """Removes rows and files."""
    for batch in queries.chunks(rows, BATCH):
        with core.index.write() as conn:
            queries.delete(conn, batch)
        finish(core, batch)


def remove_damaged(core: Core, rows: Sequence[Doomable], why: str) -> None:
    """Removes artifacts whose bytes are not what they must be."""
    for row in rows:
        log.error("artifact %s is damaged (%s); removing it", row.digest.hex(), why)
    remove(core, rows)
    with core.memory:
        core.counters.damaged += len(rows)


def lose(core: Core, row: Doomable) -> bool:
    """A row's file is not there: looks again with the writer lock, then drops the row; whether it did."""
    with core.writer:
        rows = rows_of(core, artifacts.c.id, [row.id])
        is_lost = bool(rows) and not durable.is_there(core.layout.object_path(row.digest.hex()))
        if is_lost:
            its = "removing its entry, which was pinned" if row.is_pinned else "removing its entry"
            log.warning("artifact %s has lost its file; %s", row.digest.hex(), its)
            remove(core, rows)
    return is_lost


def finish(core: Core, rows: Sequence[Doomable]) -> None:
    """After the rows' deletion was committed: accounts and unlinks."""
    if not rows:
        return
    with core.memory:
        core.holds.removed([row.digest for row in rows])
        for row in rows:
            account(core, row, -1)
            core.used.pop(row.digest, None)
        core.removals += 1
    for row in rows:
        unlink_object(core, row.digest.hex())


def account(core: Core, row: Doomable, sign: int) -> None:
    """Counts a row in or out. Call it with `memory`."""
    core.ledger.live_bytes += sign * row.disk_bytes
    core.quotas.used[row.owner] += sign * row.disk_bytes
    core.counters.entries += sign
    core.counters.size_bytes += sign * row.size_bytes
    core.counters.cost_s += sign * row.cost_s
    core.counters.pinned_bytes += sign * row.disk_bytes * row.is_pinned


def account_new(core: Core, values: Mapping[str, Any]) -> None:
    """Counts a new row in. Call it with `memory`."""
    account(core, Doomable._make(values.get(name) for name in Doomable._fields), 1)
    core.grown_recipes.add(values["recipe_id"])


def unlink_object(core: Core, digest: str) -> bool:
    """Unlinks an artifact's file; False (and logged) when that failed and must be tried again."""
    try:
        os.unlink(core.layout.object_path(digest))
    except FileNotFoundError:
        pass
    except OSError as error:
        log.error("cannot unlink %s: %s; retrying later", digest, error)
        return False
    return True


def unlink_if_absent(core: Core, digest: str) -> None:
    """Takes back a file that was placed for a transaction that failed."""
    try:
        is_there = rows_of(core, artifacts.c.digest, [bytes.fromhex(digest)])
    except errors.StoreError:
        log.exception("cannot tell whether a commit happened; its file stays until the next start")
        return
    if not is_there:
        unlink_object(core, digest)


def finish_doomed(core: Core) -> None:
    """Unlinks what was doomed and is still there, and makes that durable."""
    with core.index.read() as conn:
        doomed = queries.doomed_digests(conn)
    if not doomed:
        return
    gone = [digest for digest in doomed if unlink_object(core, digest.hex())]
    for folder in {core.layout.object_folder(digest.hex()) for digest in gone}:
        durable.fsync_folder(folder)
    with core.index.write() as conn:
        queries.spare(conn, gone)


# What would go


def write_recency(core: Core) -> None:
    """Writes what was used since the last call; the index then knows the order of eviction."""
    with core.memory:
        used, core.used = core.used, {}
    if not used:
        return
    try:
        with core.index.write() as conn:
            queries.touch(conn, used)
    except errors.StoreError:
        with core.memory:
            core.used = {**used, **core.used}
        raise


def idle_of(
    coldest: Iterable[Doomable], need_bytes: int, is_protected: Callable[[bytes], bool]
) -> list[Doomable]:
    """The entries to evict for so many bytes, or all idle ones where they are not enough. Pure; reads no more
    of the coldest than it needs."""
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
    """What would go first for so many bytes, or less where only less is idle."""
    with core.index.read() as conn:
        return idle_of(queries.coldest(conn, owner), need_bytes, is_held_now(core))


def idle_still(core: Core, chosen: Sequence[Doomable]) -> list[Doomable]:
    """Those of these that are as idle as when they were chosen. Call it with the writer lock."""
    write_recency(core)
    used_at = {row.id: row.used_at for row in chosen}
    is_held = is_held_now(core)
    rows = sorted(rows_of(core, artifacts.c.id, used_at), key=lambda row: row.used_at)
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


def evict(core: Core, need_bytes: int, owner: int | None = None) -> bool:
    """Frees at least this much by what is idle, of one owner or of all, or nothing at all; whether it did.
    Takes the writer lock itself."""
    with core.memory:
        if need_bytes > core.idle_bytes():
            return False  # without a walk past everything that is held
    with core.writer:
        while True:
            write_recency(core)
            chosen = idle(core, need_bytes, owner)
            if sum(row.disk_bytes for row in chosen) < need_bytes:
                return False
            if len(idle_still(core, chosen)) == len(chosen):  # else a job has come: choose again
                _evict(core, chosen)
                return True


def make_room_ahead(core: Core) -> None:
    """Evicts what is over the users' quotas, and until the headroom is free; less if only less is idle. Takes
    the writer lock itself, and lets others have it in between."""
    with core.memory:
        over = {owner: core.quotas.shortfall(owner) for owner in core.quotas.over()}
    for owner, short in over.items():
        _evict_pieces(core, short, owner)
    free = core.free_bytes()
    was_full, core.is_full = core.is_full, core.ledger.limit(free) == 0
    if core.is_full and not was_full:
        log.warning(
            "nothing can be stored: the disk under %s has %s",
            core.layout.root,
            status_text.free(free, core.ledger.min_free_bytes),
        )
    with core.memory:
        ahead = core.ledger.headroom(free)
        short = core.ledger.shortfall(ahead, free) if core.idle_bytes() > 0 else 0
    _evict_pieces(core, short)


def _evict_pieces(core: Core, need_bytes: int, owner: int | None = None) -> None:
    if need_bytes <= 0:
        return
    write_recency(core)
    for piece in queries.chunks(idle(core, need_bytes, owner), HEADROOM_ENTRIES):
        core.check_not_stopping()
        with core.writer:
            _evict(core, idle_still(core, piece))


def _evict(core: Core, rows: Sequence[Doomable]) -> None:
    remove(core, rows)
    now = core.monotonic()
    with core.memory:
        core.counters.evictions += len(rows)
        core.counters.evicted_bytes += sum(row.disk_bytes for row in rows)
        core.recent_evictions.extend([now] * len(rows))


# Room for what is to be written


def refusal(core: Core, size_bytes: int) -> str:
    """Why so many more bytes would not be taken, evicting what is idle; empty where they fit. An estimate for
    leases."""
    with io_told("the disk could not be read"):
        free = core.free_bytes()
    with core.memory:
        short = core.ledger.shortfall(size_bytes, free)
        is_refused = short > 0 and short > core.idle_bytes()
        return core.ledger.refusal(size_bytes, free) if is_refused else ""


@contextlib.contextmanager
def room(core: Core, size_bytes: int, owner: int | None = None, *, placed_bytes: int = 0) -> Iterator[None]:
    """Reserves room for a write, of a user's quota too, evicting if needed, or declines; gives it back.
    `placed_bytes` of these are on the disk already."""
    _reserve(core, size_bytes, owner, placed_bytes)
    try:
        yield
    finally:
        with core.memory:
            _promise(core, -size_bytes, -placed_bytes)


def _reserve(core: Core, size_bytes: int, owner: int | None, placed_bytes: int) -> None:
    for attempts_left in reversed(range(ATTEMPTS)):
        free = core.free_bytes()
        with core.memory:
            short = core.ledger.shortfall(size_bytes, free, placed_bytes)
            own = 0 if owner is None else core.quotas.shortfall(owner, size_bytes)
            if short <= 0 and own <= 0:
                return _promise(core, size_bytes, placed_bytes)
        if not attempts_left or not (evict(core, own, owner) if own > 0 else evict(core, short)):
            break
    with core.memory:
        core.counters.declined += 1
        why, limit = core.ledger.refusal(size_bytes, free), core.ledger.limit(free, placed_bytes)
        if owner is not None and own > 0:
            why, limit = core.quotas.refusal(owner, size_bytes), core.quotas.of(owner) or 0
    raise errors.Declined(why, size_bytes=size_bytes, limit_bytes=limit)


def _promise(core: Core, size_bytes: int, placed_bytes: int) -> None:
    core.ledger.reserved_bytes += size_bytes
    core.ledger.placed_bytes += placed_bytes


@contextlib.contextmanager
def uploading(core: Core, name: str, size_bytes: int) -> Iterator[int]:
    """A descriptor of a new staged file, and room for all its bytes until the block ends; the caller closes
    it. Inside, too, a full disk declines, and other trouble is a StoreError."""
    with no_space_declined(core), io_told("a staged file could not be written"):
        core.look_at_staging()
        with room(core, size_bytes), core.staged_area.busy(name):
            yield core.staged_area.new(name)


# Purges


def purge(core: Core, filter: Filter, *, dry_run: bool = False, free_bytes: int | None = None) -> Purged:
    """Removes every entry that matches, held and pinned ones too; says what it removed, or would. What is
    committed meanwhile may stay.

    Args:
        free_bytes: bytes on disk after which to stop. The least recently used entries go first, and those
            that are pinned or held stay.
    """
    write_recency(core)
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
            rows = queries.after(conn, position[0], BATCH, *where, used_at=used_at)
        if not rows:
            break
        position = rows[-1].id, rows[-1].used_at
        if free_bytes is not None:
            rows = idle_of(rows, free_bytes - disk_bytes, is_held_now(core))
        if not dry_run:
            with io_told("a purge failed"), core.writer:
                if free_bytes is None:
                    rows = rows_of(core, artifacts.c.id, [row.id for row in rows])
                else:
                    rows = idle_still(core, rows)
                remove(core, rows)
        entries += len(rows)
        pinned += sum(bool(row.is_pinned) for row in rows)
        size_bytes += sum(row.size_bytes for row in rows)
        disk_bytes += sum(row.disk_bytes for row in rows)
        keys += [Key(row.key.hex()) for row in rows[: MAX_KEYS - len(keys)]]
    return Purged(entries, size_bytes, disk_bytes, tuple(keys), dry_run, pinned)
