"""Purging: what the user asked to be gone, held and pinned entries too.

Invariants:
    1. Rows go in batches, a transaction each: a purge of millions neither blocks commits nor fills memory.
       What is committed while it runs may stay.
    2. A purge that frees a number of bytes takes the least recently used first, and neither pinned nor held
       entries, also where they come to be so meanwhile.
"""

from __future__ import annotations

from prepcache.digests import Key
from prepcache.protocol.inspection import Purged
from prepcached.store import eviction, listing, queries, removal
from prepcached.store.core import Core, io_told
from prepcached.store.models import artifacts
from prepcached.store.records import Filter

BATCH = 500
MAX_KEYS = 10_000
"""Keys that the answer names; the counts are of all."""


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
        where.append(artifacts.c.used_at <= now)
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
            rows = eviction.idle_of(rows, free_bytes - disk_bytes, eviction.is_held_now(core))
        if not dry_run:
            with io_told("a purge failed"), core.writer:
                if free_bytes is None:
                    rows = removal.rows_of(core, artifacts.c.id, [row.id for row in rows])
                else:
                    rows = eviction.idle_still(core, rows)
                removal.remove(core, rows)
        entries += len(rows)
        pinned += sum(bool(row.is_pinned) for row in rows)
        size_bytes += sum(row.size_bytes for row in rows)
        disk_bytes += sum(row.disk_bytes for row in rows)
        keys += [Key(row.key.hex()) for row in rows[: MAX_KEYS - len(keys)]]
    return Purged(entries, size_bytes, disk_bytes, tuple(keys), dry_run, pinned)
