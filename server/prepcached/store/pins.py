"""Pins: the user's mark that an entry is not to be evicted. Purge, damage and replacement override it."""

from __future__ import annotations

from prepcached.store import listing, removal
from prepcached.store.core import Core
from prepcached.store.models import artifacts


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
