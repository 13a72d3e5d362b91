"""What people are shown: entries in pages, one by one, open for reading, and summed up by name.

Invariants:
    1. Nothing that is shown needs a write, or waits for one: what was used within the last few seconds may
       still be shown in an older order (housekeeping.py writes it behind).
"""

from __future__ import annotations

import os
from functools import partial

from prepcache import errors
from prepcached.store import listing, removal
from prepcached.store.core import Core, io_told
from prepcached.store.models import artifacts
from prepcached.store.records import Entry, Filter, NameSums, Page


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
    having = [(row.key, row.owner) for row in rows]
    with core.memory:
        lingering = core.lingering.get(bytes.fromhex(digest))
    if lingering is not None:
        having.append(lingering)
    if not any(of == bytes.fromhex(key) and owner in (None, whose) for of, whose in having):
        raise errors.NotFound(f"entry {key} has no artifact {digest} any more", key=key)
    return _opened(core, key, digest)


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
