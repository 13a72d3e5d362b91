"""What goes to quarantine: bad files. quarantined.py keeps some of them, for a person to look at."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence

from prepcache.digests import Key
from prepcached.store import listing, quarantined, queries, removal
from prepcached.store.core import Core, io_told, log
from prepcached.store.models import artifacts
from prepcached.store.queries import Doomable


def put_away(core: Core, path: str) -> None:
    """Moves a file, or a folder, that is no artifact out of the way. Call it with the writer lock.

    Raises:
        OSError: it cannot be moved.
    """
    to = os.path.join(core.layout.quarantine, os.path.basename(path)[:200])
    if os.path.lexists(to):  # a folder takes the place of nothing
        to += "-" + secrets.token_hex(4)
    os.rename(path, to)
    with core.memory:
        core.counters.quarantined += 1
    quarantined.trim(core)


def quarantine(core: Core, rows: Sequence[Doomable], why: str) -> None:
    """Takes bad artifacts out of the index and moves their files away. Call it with the writer lock."""
    for row in sorted(rows, key=lambda row: row.edition):  # or one takes along what comes later
        digest = row.digest.hex()
        log.error("artifact %s is bad (%s); it goes to quarantine", digest, why)
        with removal.condemned(core, [row]):
            lower = removal.replaced(core, [row])
            with core.index.write() as conn:
                queries.delete(conn, [row, *lower])
                queries.note_damage(conn, row.recipe_id)
            removal.finish(core, lower, "replace", may_linger=True)
            _move(core, digest)
            removal.finish(core, [row], "quarantine")
        with core.memory:
            core.counters.quarantined += 1
    quarantined.trim(core)


def _move(core: Core, digest: str) -> None:
    """What cannot be moved is removed like any other: its row has gone."""
    try:
        os.rename(core.layout.object_path(digest), os.path.join(core.layout.quarantine, digest))
    except FileNotFoundError:
        pass
    except OSError as error:
        log.error("artifact %s cannot be moved to quarantine: %s; it is deleted", digest, error)


def entries(core: Core, keys: Iterable[str], why: str, owner: int | None) -> tuple[Key, ...]:
    """Quarantines entries by their keys, of one owner or (None) of all; returns those that were there."""
    wanted = [listing.key_bytes(key) for key in keys]
    with io_told("quarantine failed"), core.writing():
        rows = removal.rows_of(core, artifacts.c.key, wanted, *listing.owned_by(owner))
        quarantine(core, rows, why)
    return tuple(Key(row.key.hex()) for row in rows)
