"""Removing artifacts: rows first, files after (NOTE [ Commit order ] in durable.py).

Invariants:
    1. A digest is condemned before its row goes and pardoned after its file went, so nobody is given
       a hold on a file that is being deleted (NOTE [ Holds against removals ] in core.py).
    2. Eviction never takes what is held; purge, damage and replacement do. What goes takes the lower
       editions of its recipe along, but for what others pinned.
    3. A file that cannot be unlinked stays doomed. Housekeeping and the next start try again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcached.store import disk_reserve, queries
from prepcached.store.core import Core, log
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable


def remove(core: Core, rows: Sequence[Doomable], *, are_damaged: bool = False) -> None:
    """Removes rows and files. Call it with the writer lock.

    Args:
        are_damaged: which is remembered of their recipes, in the same transaction.
    """
    if not rows:
        return
    disk_reserve.give_up(core.layout)
    with condemned(core, rows):
        lower = replaced(core, rows)
        with core.index.write() as conn:
            queries.delete(conn, [*rows, *lower])
            for recipe_id in {row.recipe_id for row in rows} if are_damaged else ():
                queries.note_damage(conn, recipe_id)
        finish(core, [*lower, *rows])


def remove_damaged(core: Core, rows: Sequence[Doomable], why: str) -> None:
    """Removes artifacts whose bytes are not what they must be. Call it with the writer lock."""
    for row in sorted(rows, key=lambda row: row.edition):  # or one takes along what comes later
        log.error("artifact %s is damaged (%s); removing it", row.digest.hex(), why)
        remove(core, [row], are_damaged=True)
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
