"""The quarantine: bad files, kept for a person to look at, a few at a time.

Invariants:
    1. At most `KEPT` files, or folders, lie there; the oldest goes first. Their bytes count against the
       budget. A purge of everything takes them along.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Sequence

from prepcache.digests import Key
from prepcached.store import durable, listing, queries, removal
from prepcached.store.core import Core, io_told, log
from prepcached.store.queries import Doomable
from prepcached.store.tables import artifacts

KEPT = 8
"""Enough to see what is happening to the disk, few enough not to fill it."""


def put_away(core: Core, path: str) -> None:
    """Moves a file that is no artifact out of the way. Call it with the writer lock."""
    os.rename(path, os.path.join(core.layout.quarantine, os.path.basename(path)[:200]))
    with core.memory:
        core.counters.quarantined += 1
    trim(core)


def quarantine(core: Core, rows: Sequence[Doomable], why: str) -> None:
    """Takes bad artifacts out of the index and moves their files away. Call it with the writer lock."""
    for row in sorted(rows, key=lambda row: row.edition):  # or one takes along what comes later
        digest = row.digest.hex()
        log.error("artifact %s is bad (%s); it goes to quarantine", digest, why)
        with removal.condemned(core, [row]), removal.replaced(core, [row]) as lower:
            with core.index.write() as conn:
                queries.delete(conn, [row])
                lower.write(conn)
                queries.note_damage(conn, row.recipe_id)
            lower.finish(core, "replace")
            _move(core, digest)
            removal.finish(core, [row], "quarantine")
        with core.memory:
            core.counters.quarantined += 1
    trim(core)


def _move(core: Core, digest: str) -> None:
    """What cannot be moved is removed like any other: its row has gone."""
    try:
        os.rename(core.layout.object_path(digest), os.path.join(core.layout.quarantine, digest))
    except FileNotFoundError:
        pass
    except OSError as error:
        log.error("artifact %s cannot be moved to quarantine: %s; it goes for good", digest, error)


def entries(core: Core, keys: Iterable[str], why: str, owner: int | None) -> tuple[Key, ...]:
    """Quarantines entries by their keys, of one owner or (None) of all; returns those that were there."""
    wanted = [listing.key_bytes(key) for key in keys]
    with io_told("quarantine failed"), core.writing():
        rows = removal.rows_of(core, artifacts.c.key, wanted, queries.IS_LIVE, *listing.owned_by(owner))
        quarantine(core, rows, why)
    return tuple(Key(row.key.hex()) for row in rows)


def empty(core: Core, *, dry_run: bool) -> int:
    """Unlinks what lies there; its bytes. Call it with the writer lock."""
    size_bytes = core.ledger.quarantine_bytes
    if not dry_run:
        trim(core, kept=0)
    return size_bytes


def trim(core: Core, kept: int = KEPT) -> None:
    """Keeps the newest few, and counts them."""
    with os.scandir(core.layout.quarantine) as entries:
        there = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries]
    there.sort(key=lambda found: found[0].st_ctime_ns, reverse=True)
    for status, path in there[kept:]:
        if stat.S_ISDIR(status.st_mode):  # it lay among the artifacts
            shutil.rmtree(path)
        else:
            os.unlink(path)
    size = sum(_disk_bytes(status, path) for status, path in there[:kept])
    with core.memory:
        core.ledger.quarantine_bytes = size


def _disk_bytes(status: os.stat_result, path: str) -> int:
    below = durable.tree_bytes(path) if stat.S_ISDIR(status.st_mode) else 0
    return durable.disk_bytes(status) + below
