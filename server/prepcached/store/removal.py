"""Removing artifacts: rows first, files after (NOTE [ Commit order ] in durable.py).

Invariants:
    1. Eviction never takes what is held; damage, replacement and a plain purge do.
    2. Rows go in batches, a transaction each, so that nobody waits long for a removal of many.
    3. A file that cannot be unlinked stays doomed. Housekeeping and the next start try again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcached.store import durable, queries
from prepcached.store.core import Core, log
from prepcached.store.db import artifacts
from prepcached.store.queries import Doomable

BATCH = 256
"""Entries that one transaction deletes."""


def remove(core: Core, rows: Sequence[Doomable]) -> None:
    """Removes rows and files. Call it with the writer lock."""
    core.disk.free_reserve()
    for batch in queries.chunks(rows, BATCH):
        with core.index.write() as conn:
            queries.delete(conn, batch)
        finish(core, batch)


def remove_damaged(core: Core, rows: Sequence[Doomable], why: str) -> None:
    """Removes artifacts whose bytes are not what they must be. Call it with the writer lock."""
    for row in rows:
        log.error("artifact %s is damaged (%s); removing it", row.digest.hex(), why)
    remove(core, rows)
    with core.memory:
        core.counters.damaged += len(rows)


def finish(core: Core, rows: Sequence[Doomable]) -> None:
    """After the rows' deletion was committed: accounts and unlinks. Call it with the writer lock."""
    if not rows:
        return
    with core.memory:
        core.holds.removed([row.digest for row in rows])
        for row in rows:
            account(core, row, -1)
            core.used.pop(row.digest, None)
        core.ledger.unlinked_bytes = core.holds.unlinked_bytes()
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


def write_recency(core: Core) -> None:
    """Writes what was used since the last call; the index then knows the order of eviction."""
    with core.memory:
        used, core.used = core.used, {}
    if not used:
        return
    core.disk.free_reserve()
    try:
        with core.index.write() as conn:
            queries.touch(conn, used)
    except errors.StoreError:
        with core.memory:
            core.used = {**used, **core.used}
        raise


def rows_of(
    core: Core, column: sa.Column[Any], values: Iterable[Any], *where: queries.Where
) -> list[Doomable]:
    """Rows by key, digest or id, for a removal."""
    with core.index.read() as conn:
        return queries.doomable_in(conn, column, values, *where)


def finish_doomed(core: Core) -> None:
    """Unlinks what was doomed and is still there, and makes that durable. Call it with the writer lock."""
    with core.index.read() as conn:
        doomed = queries.doomed_digests(conn)
    if not doomed:
        return
    core.disk.free_reserve()
    gone = [digest for digest in doomed if unlink_object(core, digest.hex())]
    for folder in {core.layout.object_folder(digest.hex()) for digest in gone}:
        durable.fsync_folder(folder)
    with core.index.write() as conn:
        queries.spare(conn, gone)
