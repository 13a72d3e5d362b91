"""Purging: what the user asked to be gone, held and pinned entries too.

Invariants:
    1. Rows go in batches, a transaction each: a purge of millions neither blocks commits nor fills
       memory. What is committed while it runs may stay.
"""

from __future__ import annotations

from prepcache.digests import Key
from prepcached.store import listing, removal
from prepcached.store.core import Core, io_told
from prepcached.store.records import Filter, Removed
from prepcached.store.tables import artifacts

BATCH = 500
MAX_KEYS = 10_000
"""Keys that the answer names; the counts are of all."""


def purge(core: Core, filter: Filter, *, dry_run: bool) -> Removed:
    """See `Store.purge`."""
    removal.write_recency(core)
    where = listing.conditions(filter, core.clock())
    entries = size_bytes = disk_bytes = pinned = position = 0
    keys: list[Key] = []
    while True:
        with io_told("a purge failed"), core.writing():
            with core.index.read() as conn:
                ids = listing.ids_after(conn, where, position, BATCH)
            if not ids:
                return Removed(entries, size_bytes, disk_bytes, tuple(keys), pinned)
            rows = removal.rows_of(core, artifacts.c.id, ids)
            if not dry_run:
                removal.remove(core, rows, "purge")
        position = ids[-1]
        entries += len(rows)
        pinned += sum(bool(row.is_pinned) for row in rows)
        size_bytes += sum(row.size_bytes for row in rows)
        disk_bytes += sum(row.disk_bytes for row in rows)
        keys += [Key(row.key.hex()) for row in rows[: MAX_KEYS - len(keys)]]
