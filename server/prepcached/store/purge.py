"""Purging: what the user asked to be gone, held and pinned entries too.

Invariants:
    1. Rows go in batches, a transaction each: a purge of millions neither blocks commits nor, by a filter,
       fills memory. What is committed while it runs may stay.
    2. A purge that frees a number of bytes takes the least recently used first, and neither pinned nor held
       entries, also where they come to be so meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prepcache.digests import Key
from prepcache.protocol.inspection import Purged
from prepcached.store import disk_reserve, listing, queries, removal, room
from prepcached.store.core import Core, io_told
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable
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
    disk_reserve.give_up(core.layout)
    removal.write_recency(core)
    where = listing.conditions(filter, core.clock())
    found: Iterator[list[Doomable]] = _matching(core, where)
    if free_bytes is not None:
        found = queries.chunks(room.idle(core, free_bytes, where=where), BATCH)
    entries = size_bytes = disk_bytes = pinned = 0
    keys: list[Key] = []
    for batch in found:
        core.check_not_stopping()
        rows = batch
        if not dry_run:
            with io_told("a purge failed"), core.writer:
                if free_bytes is None:
                    rows = removal.rows_of(core, artifacts.c.id, [row.id for row in batch])
                else:
                    rows = room.idle_still(core, batch)
                removal.remove(core, rows)
        entries += len(rows)
        pinned += sum(bool(row.is_pinned) for row in rows)
        size_bytes += sum(row.size_bytes for row in rows)
        disk_bytes += sum(row.disk_bytes for row in rows)
        keys += [Key(row.key.hex()) for row in rows[: MAX_KEYS - len(keys)]]
    return Purged(entries, size_bytes, disk_bytes, tuple(keys), dry_run, pinned)


def _matching(core: Core, where: Sequence[queries.Where]) -> Iterator[list[Doomable]]:
    """All matching rows, in batches."""
    position = 0
    while True:
        with core.index.read() as conn:
            rows = queries.after(conn, position, BATCH, *where)
        if not rows:
            return
        yield rows
        position = rows[-1].id
