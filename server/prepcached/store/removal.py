"""Removing artifacts: rows first, files after (NOTE [ Commit order ] in durable.py).

Invariants:
    1. A digest is condemned before its row goes and pardoned after its file went, so nobody is given
       a hold on a file that is being deleted (NOTE [ Holds against removals ] in core.py).
    2. Eviction never takes what is held; purge, quarantine and replacement do. A merge retires what
       is held instead. What goes takes the lower editions of its recipe along, but for what others pinned.
    3. A file that cannot be unlinked stays doomed, and is tried again by `upkeep` and at the next start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcached.store import ballast, eviction, quarantined, queries
from prepcached.store.core import Core, log
from prepcached.store.layout import VERSION
from prepcached.store.queries import Doomable
from prepcached.store.tables import RETIRED, artifacts

RETIRED_MODE = 0o1440
"""The sticky bit tells a rebuild, which has no index to ask, that the items are in a merged artifact."""
EVICT_BATCH = 256
"""Entries one transaction of the evictor deletes, so that a commit never waits long for it."""


def remove(core: Core, rows: Sequence[Doomable], reason: str) -> None:
    """Removes rows and files. Call it with the writer lock."""
    if not rows:
        return
    ballast.give_up(core.layout)
    with condemned(core, rows), replaced(core, rows) as lower:
        with core.index.write() as conn:
            queries.delete(conn, rows)
            lower.write(conn)
        lower.finish(core, "replace")  # first: were the index lost now, what replaced them must be there
        finish(core, rows, reason)


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


def finish(core: Core, rows: Sequence[Doomable], reason: str) -> None:
    """After the rows' deletion was committed: unlinks, accounts, tells. Call it with the writer lock."""
    if not rows:
        return
    for row in rows:
        unlink_object(core, row.digest.hex())
    with core.memory:
        core.holds.removed([row.digest for row in rows])
        for row in rows:
            account(core, row, -1)
            core.used.pop(row.digest, None)
            core.unsettled.pop(row.digest, None)
        core.ledger.unlinked_bytes = core.holds.unlinked_bytes()
    core.notice([row.digest.hex() for row in rows], reason)


@dataclass(frozen=True, slots=True)
class Superseded:
    """Rows that newer ones take the place of: those that are held retire, the rest go."""

    going: list[Doomable]
    retiring: list[Doomable]

    def write(self, conn: sa.Connection) -> None:
        """Their part of the transaction that brings the newer ones."""
        if self.going:
            queries.delete(conn, self.going)
        if self.retiring:
            queries.retire(conn, self.retiring)

    def finish(self, core: Core, reason: str) -> None:
        """After that transaction. Call it with the writer lock."""
        finish(core, self.going, reason)
        digests = [row.digest for row in self.retiring]
        for digest in digests:
            with contextlib.suppress(OSError):  # without the mark a rebuild only keeps some items twice
                os.chmod(core.layout.object_path(digest.hex()), RETIRED_MODE)
        with core.memory:
            core.holds.retired(digests)
            for row in self.retiring:
                account(core, row, -1)
                account(core, row._replace(state=RETIRED), +1)
        if digests:
            core.notice([digest.hex() for digest in digests], reason)


@contextlib.contextmanager
def superseding(core: Core, rows: Sequence[Doomable]) -> Iterator[Superseded]:
    """Parts rows into those that go and those that retire. Call it with the writer lock."""
    now = core.monotonic()
    with core.memory:
        retiring = [row for row in rows if core.holds.is_held(row.digest, now)]
        going = [row for row in rows if not core.holds.is_held(row.digest, now)]
        core.holds.condemn(row.digest for row in going)
        core.changing.update(row.digest for row in going)
    try:
        with condemned(core, going):
            yield Superseded(going, retiring)
    finally:
        with core.memory:
            core.changing.difference_update(row.digest for row in going)


@contextlib.contextmanager
def replaced(core: Core, rows: Sequence[Doomable]) -> Iterator[Superseded]:
    """What goes or retires with these: lower editions may hold items that a refresh made anew in them."""
    with core.index.read() as conn:
        lower = queries.replaced_by(conn, rows)
    leaving = {row.id for row in rows}
    with superseding(core, [row for row in lower if row.id not in leaving]) as parts:
        yield parts


def account(core: Core, row: Doomable, sign: int) -> None:
    """Counts a row in or out. Call it with `memory`."""
    if row.state == RETIRED:
        core.ledger.retired_bytes += sign * row.disk_bytes
        return
    core.ledger.live_bytes += sign * row.disk_bytes
    core.counters.entries += sign
    core.counters.size_bytes += sign * row.size_bytes
    core.counters.cost_s += sign * row.cost_s
    core.counters.pinned_bytes += sign * row.disk_bytes * row.is_pinned


def account_new(core: Core, values: Mapping[str, Any], twins: Iterable[Doomable]) -> None:
    """Counts a new live row in, and a retired one of the same digest out. Call it with `memory`."""
    for twin in twins:
        if twin.state == RETIRED and twin.digest == values["digest"]:
            account(core, twin, -1)
            core.holds.revived([twin.digest])
    core.ledger.live_bytes += values["disk_bytes"]
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
        log.error("cannot unlink %s: %s; it is tried again later", digest, error)
        return False
    return True


def unlink_if_absent(core: Core, digests: Sequence[str]) -> None:
    """Takes back files that were placed for a transaction that failed. Call it with the writer lock."""
    try:
        rows = rows_of(core, artifacts.c.digest, [bytes.fromhex(digest) for digest in digests])
    except errors.StoreError:
        log.exception("cannot tell whether a commit happened; its files stay for the next start")
        return
    there = {row.digest.hex() for row in rows}
    for digest in digests:
        if digest not in there:
            unlink_object(core, digest)


def evict(core: Core, need_bytes: int) -> bool:
    """Frees at least this much by what is idle, or nothing at all; whether it did."""
    with core.memory:
        if need_bytes > core.idle_bytes():
            return False  # without a walk past everything that is held
    ballast.give_up(core.layout)
    with core.writing():
        while True:
            chosen = _choose(core, need_bytes)
            if chosen is None:
                return False
            doomed_now = _condemn_unheld(core, chosen)
            if doomed_now is None:
                continue  # somebody took a hold between the choice and now: choose again
            _evict(core, doomed_now)
            return True


def idle(core: Core, need_bytes: int) -> tuple[list[eviction.Candidate], float]:
    """What would go first for so many bytes, or less where only less is idle; and when that was so. One walk
    past everything that is held, for any number of calls of `evict_chosen`."""
    with core.writing():
        write_recency(core)
    now = core.clock()
    with core.index.read() as conn:
        return eviction.idle_of(queries.coldest(conn), need_bytes, _protection(core)), now


def evict_chosen(core: Core, chosen: Sequence[eviction.Candidate], since: float) -> None:
    """Evicts those of these that are idle still: nobody holds, has pinned or has used them since."""
    ballast.give_up(core.layout)
    with core.writing():
        write_recency(core)
        is_unused = (queries.IS_LIVE, artifacts.c.used_at <= since)
        rows = rows_of(core, artifacts.c.id, [candidate.id for candidate in chosen], *is_unused)
        now = core.monotonic()
        with core.memory:
            going = [r for r in rows if not (r.is_pinned or core.holds.is_protected(r.digest, now))]
            core.holds.condemn(row.digest for row in going)
        _evict(core, going)


def _evict(core: Core, rows: list[Doomable]) -> None:
    """Removes condemned rows. Call it with the writer lock."""
    rows.sort(key=lambda row: row.edition)  # or a batch takes along what a later one has
    with condemned(core, rows):
        for start in range(0, len(rows), EVICT_BATCH):
            remove(core, rows[start : start + EVICT_BATCH], "evict")
    now = core.monotonic()
    with core.memory:
        core.counters.evictions += len(rows)
        core.counters.evicted_bytes += sum(row.disk_bytes for row in rows)
        core.recent_evictions.extend([now] * len(rows))


def _choose(core: Core, need_bytes: int) -> list[eviction.Candidate] | None:
    write_recency(core)
    with core.index.read() as conn:
        return eviction.choose(queries.coldest(conn), need_bytes, _protection(core))


def _protection(core: Core) -> Callable[[bytes], bool]:
    """Whether a digest is held."""
    now = core.monotonic()

    def is_protected(digest: bytes) -> bool:
        with core.memory:
            return core.holds.is_protected(digest, now)

    return is_protected


def _condemn_unheld(core: Core, chosen: Sequence[eviction.Candidate]) -> list[Doomable] | None:
    """The chosen rows, condemned, unless one of them came to be held meanwhile: then None."""
    with core.index.read() as conn:
        rows = queries.doomable_in(conn, artifacts.c.id, (candidate.id for candidate in chosen))
    now = core.monotonic()
    with core.memory:
        if any(core.holds.is_protected(row.digest, now) for row in rows):
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
def room(core: Core, size_bytes: int) -> Iterator[None]:
    """Reserves room for a write, evicting if needed; gives it back.

    Raises:
        Declined: what is left is held or pinned, or this is larger than the budget.
    """
    reserve(core, size_bytes)
    try:
        yield
    finally:
        with core.memory:
            core.ledger.reserved_bytes -= size_bytes


@contextlib.contextmanager
def spare_room(core: Core, size_bytes: int, beside_bytes: int) -> Iterator[bool]:
    """Reserves room for a write if there is some, and so much beside it; evicts nothing."""
    free = core.root.free_bytes()
    with core.memory:
        is_there = core.ledger.shortfall(size_bytes + beside_bytes, free) <= 0
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
        if attempt == 4 or not (
            drop_retired(core)
            or drop_older_layouts(core)
            or evict(core, short)
            or quarantined.give_way(core, short)
        ):
            break
    with core.memory:
        core.counters.declined += 1
        limit, why = core.ledger.limit(free), core.ledger.refusal(size_bytes, free)
    raise errors.Declined(why, size_bytes=size_bytes, limit_bytes=limit)


def drop_retired(core: Core) -> bool:
    """Removes retired artifacts that nobody holds any more, or only weakly; whether there were any."""
    with core.index.read() as conn:
        rows = list(queries.doomable(conn, queries.IS_RETIRED))
    if not rows:
        return False
    now = core.monotonic()
    with core.writing():
        with core.memory:
            free = [row for row in rows if not core.holds.is_held(row.digest, now)]
            core.holds.condemn(row.digest for row in free)
        with condemned(core, free):
            there = rows_of(core, artifacts.c.id, [row.id for row in free], queries.IS_RETIRED)
            remove(core, there, "merge")
    return bool(there)


def drop_older_layouts(core: Core) -> bool:
    """Removes what older versions of the daemon left, before anything of this one; whether bytes went."""
    before = core.ledger.older_layout_bytes
    if not before:
        return False
    with core.writing():
        for version, path, _ in core.root.other_layouts():
            if version < VERSION:
                shutil.rmtree(path, ignore_errors=True)
        count_other_layouts(core)
    return core.ledger.older_layout_bytes < before


def count_other_layouts(core: Core) -> None:
    found = core.root.other_layouts()
    with core.memory:
        core.ledger.older_layout_bytes = sum(size for version, _, size in found if version < VERSION)
        core.ledger.newer_layout_bytes = sum(size for version, _, size in found if version > VERSION)


def rows_of(
    core: Core, column: sa.Column[Any], values: Iterable[Any], *where: queries.Where
) -> list[Doomable]:
    """Rows by key, digest or id, for a removal."""
    with core.index.read() as conn:
        return queries.doomable_in(conn, column, values, *where)
