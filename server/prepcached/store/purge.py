"""Purging: what the user asked to be gone, held and pinned entries too.

Invariants:
    1. Rows go in batches, a transaction each: a purge of millions neither blocks commits nor fills
       memory. What is committed while it runs may stay.
    2. What is counted is all that goes: the lower editions too that a removal takes along.
    3. A purge that frees a number of bytes takes the least recently used first, and neither pinned nor held
       entries, also where they come to be so meanwhile.
    4. A dry run condemns nothing: a job that looks up meanwhile would not be given what stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from prepcache.digests import Key
from prepcached.store import disk_reserve, listing, queries, removal, room
from prepcached.store.core import Core, io_told
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable
from prepcached.store.records import Filter, Removed

BATCH = 500
MAX_KEYS = 10_000
"""Keys that the answer names; the counts are of all."""


def purge(core: Core, filter: Filter, *, dry_run: bool, free_bytes: int | None = None) -> Removed:
    """See `Store.purge`."""
    disk_reserve.give_up(core.layout)
    removal.write_recency(core)
    where = listing.conditions(filter, core.clock())
    batches: Iterator[list[Any]] = _all_ids(core, where)
    chosen: Callable[[Core, list[Any]], AbstractContextManager[list[Doomable]]] = _rows
    if free_bytes is not None:
        idle = room.idle(core, free_bytes, where=where)
        batches = queries.chunks(row.id for row in idle) if dry_run else queries.chunks(idle)
        chosen = _rows if dry_run else room.idle_still
    entries = size_bytes = disk_bytes = pinned = 0
    keys: list[Key] = []
    told: set[int] = set()  # lower editions that a dry run has counted
    for batch in batches:
        with io_told("a purge failed"), core.writer, chosen(core, batch) as rows:
            core.check_not_stopping()
            along = _along(core, rows, where if dry_run else [artifacts.c.id.in_([row.id for row in rows])])
            if not dry_run:
                removal.remove(core, rows)
        if free_bytes is not None:
            rows.sort(key=lambda row: row.used_at)
        rows += [row for row in along if row.id not in told]
        if dry_run:
            told.update(row.id for row in along)
        entries += len(rows)
        pinned += sum(bool(row.is_pinned) for row in rows)
        size_bytes += sum(row.size_bytes for row in rows)
        disk_bytes += sum(row.disk_bytes for row in rows)
        keys += [Key(row.key.hex()) for row in rows[: MAX_KEYS - len(keys)]]
    return Removed(entries, size_bytes, disk_bytes, tuple(keys), pinned)


def _all_ids(core: Core, where: list[sa.ColumnElement[bool] | sa.TextClause]) -> Iterator[list[int]]:
    """The ids of all matching rows, in batches."""
    position = 0
    while True:
        with io_told("a purge failed"), core.index.read() as conn:
            ids = listing.ids_after(conn, where, position, BATCH)
        if not ids:
            return
        yield ids
        position = ids[-1]


@contextlib.contextmanager
def _rows(core: Core, ids: list[int]) -> Iterator[list[Doomable]]:
    yield removal.rows_of(core, artifacts.c.id, ids)


def _along(
    core: Core, rows: list[Doomable], counted: list[sa.ColumnElement[bool] | sa.TextClause]
) -> list[Doomable]:
    """What goes with these rows and does not pass the filters that are counted by themselves."""
    with core.index.read() as conn:
        lower = queries.replaced_by(conn, rows)
        passing: set[int] = set()
        for chunk in queries.chunks(row.id for row in lower):
            passing.update(
                conn.execute(sa.select(artifacts.c.id).where(artifacts.c.id.in_(chunk), *counted)).scalars()
            )
    return [row for row in lower if row.id not in passing]
