"""What sessions are answered, and hold: the side of NOTE [ Holds against removals ] (core.py) that takes.

Invariants:
    1. Who is answered with an artifact as a holder has it from then on: it was neither gone nor on its
       way out at the moment at which the hold was taken, and neither was what had replaced some of it.
    2. What is answered or touched was used just now; that is kept in memory, and written behind.
"""

from __future__ import annotations

from collections.abc import Iterable

from prepcache import errors
from prepcache.digests import is_hex64
from prepcached.store import queries, scopes
from prepcached.store.core import Core
from prepcached.store.records import Resolved


def resolve(core: Core, recipe: str, since: int, holder: str | None) -> Resolved:
    """See `Store.resolve`."""
    while True:
        removals = core.removals
        with core.index.read() as conn:
            row = queries.recipe(conn, recipe)
            generation = 0 if row is None else row.generation
            if since > generation:
                raise errors.FutureGeneration(
                    f"generation {since} of recipe {scopes.digest(recipe)} never existed here (now "
                    f"{generation}); this is another index: resolve from 0",
                    recipe=scopes.digest(recipe),
                    generation=generation,
                )
            if row is None:
                return Resolved(0, True, ())
            is_complete = since == 0 or since < row.removed_generation
            refs, found = queries.of_recipe(conn, row.id, 0 if is_complete else since)
            is_damaged = since == 0 and queries.is_damage(conn, row)
        now = core.clock()
        with core.memory:
            if holder is not None and core.removals != removals:
                continue  # NOTE [ Holds against removals ] in core.py
            if holder is not None:
                pairs = zip(refs, found, strict=True)
                stays = [(r, f) for r, f in pairs if not core.holds.is_condemned(f[0])]
                if len(stays) < len(refs):  # what an artifact replaced leaves with it: catalogue.py
                    there = {r.digest for r, _ in stays}
                    floor = max(r.edition for r in refs if r.digest not in there)
                    stays = [(r, f) for r, f in stays if r.edition >= floor]
                refs, found = [r for r, _ in stays], [f for _, f in stays]
                core.holds.take(holder, found, core.monotonic())
            core.used.update((entry[0], now) for entry in found)
            return Resolved(generation, is_complete, tuple(refs), is_damaged)


def touch(core: Core, session_id: str, digests: Iterable[str]) -> None:
    """See `Store.touch`."""
    now = core.clock()
    with core.memory:
        wanted = (bytes.fromhex(digest) for digest in digests if is_hex64(digest))
        used = core.holds.touch(session_id, wanted, core.monotonic())
        core.used.update(dict.fromkeys(used, now))


def release(core: Core, session_id: str, digests: Iterable[str] | None) -> None:
    """See `Store.release`."""
    which = None if digests is None else [bytes.fromhex(d) for d in digests if is_hex64(d)]
    with core.memory:
        core.holds.drop(session_id, which)
        core.has_ended_session |= which is None
        core.ledger.unlinked_bytes = core.holds.unlinked_bytes()
