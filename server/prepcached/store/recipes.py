"""The recipes that jobs registered, which may be scoped (scopes.py): rows of the index, with readable parts.

Invariants:
    1. The first registration stands: the digest says that later ones mean the same.
    2. A recipe without artifacts goes when nobody asked for it in `IDLE_S`. Those of a scope go earlier, the
       one asked for longest ago first, where their parts together exceed `IDLE_BYTES`. Should one come again,
       its generation is beyond any that it had.
    3. An index that is made again has the recipes of its artifacts, by name; their parts come with the next
       registration.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from prepcache import errors
from prepcache.protocol.units import size_text
from prepcached.store import listing, queries, room, scopes
from prepcached.store.core import Core, io_told, no_space_declined
from prepcached.store.records import RecipeRecord

IDLE_S = 30 * 86_400.0
"""Longer than a job takes from its opening to its first commit."""
IDLE_BYTES = 64 << 20
"""Of packed parts: some 10,000 recipes."""


def is_known(core: Core, recipe: str) -> bool:
    """Whether a recipe and its parts are registered. That it was asked for is noted in memory: nothing is
    written."""
    with core.index.read() as conn:
        if not queries.has_parts(conn, recipe):
            return False
    with core.memory:
        core.asked[recipe] = core.clock()
    return True


def write_asked(core: Core) -> None:
    """Writes down which recipes were asked for since the last call."""
    with core.memory:
        asked, core.asked = core.asked, {}
    if asked:
        with core.index.write() as conn:
            queries.note_asked(conn, asked)


def register(core: Core, recipe: str, name: str, parts: Mapping[str, Any]) -> None:
    """See `Store.register`."""
    if is_known(core, recipe):
        return
    packed = zlib.compress(json.dumps(dict(parts)).encode())
    with no_space_declined(core, is_counted=False), io_told(f"recipe {recipe} could not be stored"):
        _check_room(core, len(packed))
        with core.writer, core.index.write() as conn:
            queries.add_recipe(conn, recipe, name, core.clock(), packed)
        sweep(core)


def _check_room(core: Core, size_bytes: int) -> None:
    """
    Raises:
        Declined: the disk must keep what it has free, and no artifacts can go.
    """
    min_free, free = core.ledger.min_free_bytes, core.root.free_bytes()
    short = min_free + size_bytes - free
    if short > 0 and not room.evict(core, short):
        raise errors.Declined(
            f"no room for another recipe: the disk has {size_text(free)} free, and {size_text(min_free)} "
            "stay free (--min-free)"
        )


def sweep(core: Core) -> None:
    """Removes recipes that have no artifacts and were not asked for lately."""
    write_asked(core)
    with core.writer, core.index.write() as conn:
        queries.drop_idle_recipes(conn, core.clock() - IDLE_S, IDLE_BYTES)


def record(core: Core, recipe: str, *, any_scope: bool, owner: int | None) -> RecipeRecord:
    """See `Store.recipe`."""
    digest = scopes.digest(recipe)
    with core.index.read() as conn:
        if owner is not None:
            found = queries.recipe_with(conn, digest, owner)
        else:
            found = (queries.recipe_of_any_scope if any_scope else queries.recipe)(conn, recipe)
        if found is None:
            raise errors.NotFound(f"there is no recipe {digest}", recipe=digest)
        sums = queries.recipe_sums(conn, found.id, owner)
        packed = queries.parts(conn, digest + found.scope)
    text = unpacked(packed)
    parts = None if text is None else json.loads(text)
    return RecipeRecord(digest, found.name, found.generation, found.created_at, *sums, parts, found.scope)


def unpacked(parts: bytes | None) -> bytes | None:
    """Readable parts as JSON; None where they are not known, or damaged."""
    try:
        return None if parts is None else zlib.decompress(parts)
    except zlib.error:
        return None


def page(
    core: Core, cursor: str | None, limit: int, scope: str | None, prefix: str | None
) -> tuple[list[RecipeRecord], str | None]:
    """See `Store.recipes`."""
    with core.index.read() as conn:
        return listing.recipe_page(conn, cursor, limit, scope, prefix)
