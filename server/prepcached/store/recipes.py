"""The recipes that jobs registered, which may be scoped (scopes.py): rows of the index, with readable parts.

Invariants:
    1. The first registration stands: the digest says that later ones mean the same.
    2. A recipe without artifacts goes when nobody asked for it in `IDLE_S`. Should it come again, its
       generation is beyond any that it had.
    3. Those of a scope take no more than a share of the budget: who registers one after the other, with
       megabytes of parts, has no other user's entries evicted for them. Idle ones go earlier then.
    4. An index that is made again has the recipes of its artifacts, by name; their parts come with the next
       registration.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from prepcache import errors
from prepcache.protocol.units import size_text
from prepcached.store import listing, queries, removal, scopes
from prepcached.store.commit import no_space_declined
from prepcached.store.core import Core, io_told
from prepcached.store.records import RecipeRecord

IDLE_S = 30 * 86_400.0
"""Longer than a job takes from its opening to its first commit."""
SPARE_S = 2 * 86_400.0
"""How soon they go where there are too many."""
SPARE_PAUSE_S = 60.0
"""They are looked through for that so often."""
SHARE, LEAST_BYTES = 20, 64 << 20
"""All recipes of a scope may take this part of the budget, and in any case so much: some 10,000 of them."""


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
    with no_space_declined(core, is_counted=False), io_told(f"recipe {recipe} could not be kept"):
        packed = zlib.compress(json.dumps(dict(parts)).encode())
        _check_share(core, scopes.scope_of(recipe), len(packed))
        _check_room(core, len(packed))
        with core.writer, core.index.write() as conn:
            queries.add_recipe(conn, recipe, name, core.clock(), packed)
        with core.memory:
            core.recipe_bytes[scopes.scope_of(recipe)] += len(packed)


def _check_share(core: Core, scope: str, size_bytes: int) -> None:
    """
    Raises:
        Declined: the scope has as many recipes as it may have.
    """
    most_bytes = max(LEAST_BYTES, core.ledger.max_bytes // SHARE)
    if core.recipe_bytes[scope] + size_bytes <= most_bytes:
        return
    if core.monotonic() - core.recipes_spared_at >= SPARE_PAUSE_S:
        core.recipes_spared_at = core.monotonic()
        sweep(core, SPARE_S, scope)
        if core.recipe_bytes[scope] + size_bytes <= most_bytes:
            return
    raise errors.Declined(
        f"no room for another recipe: those that are there take {size_text(core.recipe_bytes[scope])} of "
        f"{size_text(most_bytes)}; one goes two days after it was last asked for, when its entries are gone "
        "(`prepcache purge`)"
    )


def _check_room(core: Core, size_bytes: int) -> None:
    """Recipes are not evicted, so they stop where the disk must keep what it has free, and no artifacts can
    go for them.

    Raises:
        Declined: so it is.
    """
    min_free, free = core.ledger.min_free_bytes, core.root.free_bytes()
    short = min_free + size_bytes - free
    if short <= 0 or removal.evict(core, short):
        return
    raise errors.Declined(
        f"no room for another recipe: the disk has {size_text(free)} free, and {size_text(min_free)} "
        "stay free (--min-free)"
    )


def sweep(core: Core, idle_s: float = IDLE_S, scope: str | None = None) -> None:
    """Removes recipes, of one scope or of all, that have no artifacts and were not asked for lately."""
    write_asked(core)
    with core.writer, core.index.write() as conn:
        queries.drop_idle_recipes(conn, core.clock() - idle_s, scope)
    count(core)


def count(core: Core) -> None:
    """Counts what the recipes' parts take."""
    with core.index.read() as conn:
        found = queries.parts_bytes(conn)
    with core.memory:
        core.recipe_bytes = found


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
    parts = None if packed is None else unpacked(packed)
    return RecipeRecord(digest, found.name, found.generation, found.created_at, *sums, parts, found.scope)


def unpacked(parts: bytes) -> dict[str, Any]:
    """Readable parts as they were registered."""
    found: dict[str, Any] = json.loads(zlib.decompress(parts))
    return found


def page(
    core: Core, cursor: str | None, limit: int, scope: str | None, prefix: str | None
) -> tuple[list[RecipeRecord], str | None]:
    """See `Store.recipes`."""
    with core.index.read() as conn:
        return listing.recipe_page(conn, cursor, limit, scope, prefix)
