"""Removing artifacts: rows first, files after (NOTE [ Commit order ] in durable.py).

Invariants:
    1. A digest is condemned before its row goes and pardoned after its file went, so nobody is given
       a hold on a file that is being deleted (NOTE [ Holds against removals ] in core.py).
    2. Eviction never takes what is held; purge, damage and replacement do. What goes takes the lower
       editions of its recipe along, but for what others pinned.
    3. A file that cannot be unlinked stays doomed, and is tried again by `upkeep` and at the next start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcached.store import disk_reserve, eviction, queries
from prepcached.store.core import Core, log
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable

EVICT_BATCH = 256
"""Entries one transaction of the evictor deletes, so that a commit never waits long for it."""


def remove(core: Core, rows: Sequence[Doomable]) -> None:
    """Removes rows and files. Call it with the writer lock."""
    if not rows:
        return
    disk_reserve.give_up(core.layout)
    with condemned(core, rows):
        lower = replaced(core, rows)
        with core.index.write() as conn:
            queries.delete(conn, [*rows, *lower])
        finish(core, [*lower, *rows])


def remove_damaged(core: Core, rows: Sequence[Doomable], why: str) -> None:
    """Removes artifacts whose bytes are not what they must be. Call it with the writer lock."""
    for row in sorted(rows, key=lambda row: row.edition):  # or one takes along what comes later
        log.error("artifact %s is damaged (%s); removing it", row.digest.hex(), why)
        remove(core, [row])
        with core.index.write() as conn:
            queries.note_damage(conn, row.recipe_id)
        with core.memory:
            core.counters.damaged += 1


@contextlib.contextmanager
def condemned(core: Core, rows: Sequence[Doomable]) -> Iterator[None]:
    """Nobody can take holds on these inside. Call it with the writer lock."""
    digests = [row.digest for row in rows]
    with core.memory:
        core.holds.condemn(digests)
    try:
        yield
    finally:
        with core.memory:
            core.holds.pardon(digests)
            core.removals += 1


def finish(core: Core, rows: Sequence[Doomable]) -> None:
    """After the rows' deletion was committed: accounts and unlinks. Call it with the writer lock."""
    if not rows:
        return
    with core.memory:
        core.holds.removed([row.digest for row in rows])
        for row in rows:
            account(core, row, -1)
            core.used.pop(row.digest, None)
            core.unsettled.pop(row.digest, None)
        core.ledger.unlinked_bytes = core.holds.unlinked_bytes()
        core.removals += 1
    for row in rows:
        unlink_object(core, row.digest.hex())


def replaced(core: Core, rows: Sequence[Doomable]) -> list[Doomable]:
    """What goes with these: lower editions may hold items that a refresh made anew in them."""
    leaving = {row.id for row in rows}
    with core.index.read() as conn:
        return [row for row in queries.replaced_by(conn, rows) if row.id not in leaving]


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
    core.ledger.live_bytes += values["disk_bytes"]
    core.quotas.used[values["owner"]] += values["disk_bytes"]
    core.counters.entries += 1
    core.counters.size_bytes += values["size_bytes"]
    core.counters.cost_s += values["cost_s"]
    core.counters.pinned_bytes += values["disk_bytes"] * values["is_pinned"]
    core.unsettled[values["digest"]] = core.clock()
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


def unlink_if_absent(core: Core, digests: Sequence[str]) -> None:
    """Takes back files that were placed for a transaction that failed. Call it with the writer lock."""
    try:
        rows = rows_of(core, artifacts.c.digest, [bytes.fromhex(digest) for digest in digests])
    except errors.StoreError:
        log.exception("cannot tell whether a commit happened; its files stay until the next start")
        return
    there = {row.digest.hex() for row in rows}
    for digest in digests:
        if digest not in there:
            unlink_object(core, digest)


def evict(core: Core, need_bytes: int, owner: int | None = None) -> bool:
    """Frees at least this much by what is idle, of one owner or of all, or nothing at all; whether it did."""
    with core.memory:
        if need_bytes > core.idle_bytes():
            return False  # without a walk past everything that is held
    disk_reserve.give_up(core.layout)
    with core.writer:
        while True:
            chosen = _choose(core, need_bytes, owner)
            if chosen is None:
                return False
            doomed_now = _condemn_unheld(core, chosen)
            if doomed_now is None:
                continue  # somebody took a hold between the choice and now: choose again
            _evict(core, doomed_now)
            return True


def idle(
    core: Core, need_bytes: int, owner: int | None = None, where: Sequence[queries.Where] = ()
) -> list[eviction.Candidate]:
    """What would go first for so many bytes, or less where only less is idle. One walk past everything that
    is held, for any number of calls of `idle_still`."""
    with core.writer:
        write_recency(core)
    with core.index.read() as conn:
        return eviction.idle_of(queries.coldest(conn, owner, where), need_bytes, is_held_now(core))


@contextlib.contextmanager
def idle_still(core: Core, chosen: Sequence[eviction.Candidate]) -> Iterator[list[Doomable]]:
    """Those of these that nobody holds, has pinned or has used since they were chosen, condemned. Call it
    with the writer lock."""
    write_recency(core)
    used_at = {candidate.id: candidate.used_at for candidate in chosen}
    rows = rows_of(core, artifacts.c.id, used_at)
    now = core.monotonic()
    with core.memory:
        going = [
            row
            for row in rows
            if row.used_at == used_at[row.id] and not (row.is_pinned or core.holds.is_held(row.digest, now))
        ]
        core.holds.condemn(row.digest for row in going)
    with condemned(core, going):
        yield going


def evict_chosen(core: Core, chosen: Sequence[eviction.Candidate]) -> None:
    """Evicts those of these that are idle still."""
    disk_reserve.give_up(core.layout)
    with core.writer, idle_still(core, chosen) as rows:
        _evict(core, rows)


def _evict(core: Core, rows: list[Doomable]) -> None:
    """Removes condemned rows. Call it with the writer lock."""
    rows.sort(key=lambda row: row.edition)  # or a batch takes along what a later one has
    with condemned(core, rows):
        for start in range(0, len(rows), EVICT_BATCH):
            remove(core, rows[start : start + EVICT_BATCH])
    now = core.monotonic()
    with core.memory:
        core.counters.evictions += len(rows)
        core.counters.evicted_bytes += sum(row.disk_bytes for row in rows)
        core.recent_evictions.extend([now] * len(rows))


def could_evict(core: Core, need_bytes: int, owner: int) -> bool:
    """Whether so many bytes of a user's entries are idle."""
    if need_bytes <= 0:
        return True
    with core.index.read() as conn:
        return eviction.choose(queries.coldest(conn, owner), need_bytes, is_held_now(core)) is not None


def _choose(core: Core, need_bytes: int, owner: int | None) -> list[eviction.Candidate] | None:
    write_recency(core)
    with core.index.read() as conn:
        return eviction.choose(queries.coldest(conn, owner), need_bytes, is_held_now(core))


def is_held_now(core: Core) -> Callable[[bytes], bool]:
    """Whether a digest is held."""
    now = core.monotonic()

    def is_protected(digest: bytes) -> bool:
        with core.memory:
            return core.holds.is_held(digest, now)

    return is_protected


def _condemn_unheld(core: Core, chosen: Sequence[eviction.Candidate]) -> list[Doomable] | None:
    """The chosen rows, condemned, unless one of them came to be held meanwhile: then None."""
    with core.index.read() as conn:
        rows = queries.doomable_in(conn, artifacts.c.id, (candidate.id for candidate in chosen))
    now = core.monotonic()
    with core.memory:
        if any(core.holds.is_held(row.digest, now) for row in rows):
            return None
        core.holds.condemn(row.digest for row in rows)
    return rows


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


@contextlib.contextmanager
def room(core: Core, size_bytes: int, owner: int) -> Iterator[None]:
    """Reserves room for a user's write, evicting if needed; gives it back.

    Raises:
        Declined: what is left is held or pinned, or this is larger than the budget, or than his quota.
    """
    _reserve_of_owner(core, size_bytes, owner)
    try:
        reserve(core, size_bytes)
        try:
            yield
        finally:
            with core.memory:
                core.ledger.reserved_bytes -= size_bytes
    finally:
        with core.memory:
            core.quotas.reserved[owner] -= size_bytes


def _reserve_of_owner(core: Core, size_bytes: int, owner: int) -> None:
    """
    Raises:
        Declined: what is left of the user's entries is held or pinned, or his quota is smaller than this.
    """
    for attempt in range(5):
        with core.memory:
            short = core.quotas.shortfall(owner, size_bytes)
            if short <= 0:
                core.quotas.reserved[owner] += size_bytes
                return
        if attempt == 4 or not evict(core, short, owner):
            break
    with core.memory:
        core.counters.declined += 1
        why, quota = core.quotas.refusal(owner, size_bytes), core.quotas.of(owner)
    raise errors.Declined(why, size_bytes=size_bytes, limit_bytes=quota)


@contextlib.contextmanager
def spare_room(core: Core, size_bytes: int) -> Iterator[bool]:
    """Reserves room for a write if there is some; evicts nothing."""
    free = core.root.free_bytes()
    with core.memory:
        is_there = core.ledger.shortfall(size_bytes, free) <= 0
        core.ledger.reserved_bytes += size_bytes * is_there
    try:
        yield is_there
    finally:
        with core.memory:
            core.ledger.reserved_bytes -= size_bytes * is_there


def reserve(core: Core, size_bytes: int) -> None:
    """Reserves room, evicting if needed; whoever calls it gives it back.

    Raises:
        Declined: as `room`.
    """
    for attempt in range(5):
        free = core.root.free_bytes()
        with core.memory:
            short = core.ledger.shortfall(size_bytes, free)
            if short <= 0:
                core.ledger.reserved_bytes += size_bytes
                return
        if attempt == 4 or not evict(core, short):
            break
    with core.memory:
        core.counters.declined += 1
        limit, why = core.ledger.limit(free), core.ledger.refusal(size_bytes, free)
    raise errors.Declined(why, size_bytes=size_bytes, limit_bytes=limit)


def rows_of(
    core: Core, column: sa.Column[Any], values: Iterable[Any], *where: queries.Where
) -> list[Doomable]:
    """Rows by key, digest or id, for a removal."""
    with core.index.read() as conn:
        return queries.doomable_in(conn, column, values, *where)
