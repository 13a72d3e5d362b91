"""Entries as people see them: in pages, one by one, open for reading, pinned, and in sums.

Invariants:
    1. Nothing that is shown needs a write, or waits for one: what was used within the last few seconds may
       still be shown in an older order (housekeeping.py writes it behind).
"""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial

from prepcache import errors
from prepcached.store import listing, queries, removal
from prepcached.store.core import Core, io_told
from prepcached.store.models import artifacts
from prepcached.store.records import Entry, Filter, NameSums, Page, Stats, UserBytes

RATE_S = 60.0
"""The eviction rate is that of the last minute."""
_OF_LEDGER = "unlinked_bytes", "staged_bytes", "stray_bytes", "reserved_bytes", "max_bytes", "min_free_bytes"


def entries(core: Core, filter: Filter, *, sort: str, cursor: str | None, limit: int) -> Page:
    """See `Store.entries`."""
    with core.index.read() as conn:
        found, cursor = listing.page(
            conn,
            filter,
            sort=sort,
            cursor=cursor,
            limit=limit,
            now=core.clock(),
            holds=partial(_count_holds, core),
        )
    return Page(tuple(found), cursor)


def entry(core: Core, key: str, owner: int | None, scope: str) -> Entry:
    """See `Store.entry`."""
    with core.index.read() as conn:
        return listing.entry(conn, key, partial(_count_holds, core), owner, scope)


def open_entry(core: Core, key: str, owner: int | None, scope: str) -> tuple[int, Entry]:
    """See `Store.open_entry`."""
    found = entry(core, key, owner, scope)
    return _opened(core, key, found.digest), found


def open_artifact(core: Core, key: str, digest: str, owner: int | None) -> int:
    """See `Store.open_artifact`."""
    rows = removal.rows_of(core, artifacts.c.digest, [bytes.fromhex(digest)])
    if not any(row.key == bytes.fromhex(key) and owner in (None, row.owner) for row in rows):
        raise errors.NotFound(f"entry {key} no longer has artifact {digest}", key=key)
    return _opened(core, key, digest)


def pin(core: Core, key: str, is_pinned: bool, owner: int | None) -> None:
    """Sets or takes away the pin of an owner's entry, or (None) of all that have this key."""
    with core.writer:
        named = [listing.key_bytes(key)]
        rows = removal.rows_of(core, artifacts.c.key, named, *listing.owned_by(owner))
        for row in rows:
            with core.index.write() as conn:
                conn.execute(artifacts.update().where(artifacts.c.id == row.id).values(is_pinned=is_pinned))
            with core.memory:
                core.counters.pinned_bytes += row.disk_bytes * (is_pinned - row.is_pinned)
                core.holds.pin(row.digest, is_pinned)


def stats(core: Core) -> Stats:
    """See `Store.stats`."""
    with io_told("the disk could not be read"):
        core.look_at_staging()
        free = core.root.free_bytes()
        index_bytes = core.index.disk_bytes()
    with core.index.read() as conn:
        coldest = queries.coldest_used_at(conn)
    now, ticks = core.clock(), core.monotonic()
    with core.memory:
        ledger, counters = core.ledger, core.counters
        recent = sum(1 for at in core.recent_evictions if ticks - at <= RATE_S)
        return Stats(
            **asdict(counters),
            **{name: getattr(ledger, name) for name in _OF_LEDGER},
            disk_bytes=ledger.on_disk,
            held_bytes=core.holds.held_bytes(ticks),
            yielding_bytes=core.idle_bytes(),
            effective_limit_bytes=ledger.limit(free),
            free_bytes=free,
            evictions_per_s=recent / RATE_S,
            coldest_age_s=None if coldest is None else max(0.0, now - coldest),
            index_bytes=index_bytes,
            users=tuple(UserBytes(*one) for one in core.quotas.told()),
        )


def _opened(core: Core, key: str, digest: str) -> int:
    with io_told(f"artifact {digest} could not be opened"):
        try:
            return os.open(core.layout.object_path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise errors.NotFound(f"entry {key} was removed just now", key=key) from None


def name_sums(core: Core, limit: int, owner: int | None) -> list[NameSums]:
    """See `Store.name_sums`."""
    with core.index.read() as conn:
        return listing.name_sums(conn, limit, owner)


def _count_holds(core: Core, digest: bytes) -> int:
    with core.memory:
        return core.holds.count(digest)
