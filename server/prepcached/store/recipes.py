"""The registry of recipes, which may be scoped (scopes.py): their rows, and their readable parts in
`recipes/<digest>.json`.

Invariants:
    1. A recipe's parts are durable before its row is there, and so before its first artifact can be.
    2. The first registration stands: the digest says that later ones mean the same.
    3. A recipe without artifacts goes when nobody asked for it in `IDLE_S`, by its file's mtime. Should it
       come again, its generation is beyond any that it had.
    4. Those of a scope take no more than a share of the budget: who registers one after the other, with
       megabytes of parts, has no other user's entries evicted for them. Idle ones go earlier then.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from prepcache import errors
from prepcache.protocol.units import size_text
from prepcached.store import durable, listing, queries, removal, scopes
from prepcached.store.commit import no_space_declined
from prepcached.store.core import Core, io_told
from prepcached.store.records import RecipeRecord

IDLE_S = 30 * 86_400.0
"""Longer than a job takes from its opening to its first commit."""
SPARE_S = 2 * 86_400.0
"""How soon they go where there are too many."""
SPARE_PAUSE_S = 60.0
"""They are looked through for that so often."""
SHARE, LEAST_BYTES = 20, 256 << 20
"""All recipes of a scope may take this part of the budget, and in any case so much: some 10,000 of them."""


def is_known(core: Core, recipe: str) -> bool:
    """Whether a recipe is registered. That it was asked for is noted in memory: nothing is written."""
    if row(core, recipe) is None:
        return False
    with core.memory:
        core.asked[recipe] = core.clock()
    return True


def write_asked(core: Core) -> None:
    """Writes down which recipes were asked for since the last call."""
    with core.memory:
        asked, core.asked = core.asked, {}
    for recipe, at in asked.items():
        with contextlib.suppress(OSError):  # it goes earlier than it would
            os.utime(core.layout.recipe_path(recipe), (at, at))


def row(core: Core, recipe: str) -> queries.RecipeRow | None:
    """A recipe's row, None where nobody registered it."""
    with core.index.read() as conn:
        return queries.recipe(conn, scopes.packed(recipe))


def register(core: Core, recipe: str, name: str, parts: Mapping[str, Any]) -> None:
    """See `Store.register`."""
    if not is_known(core, recipe):
        with no_space_declined(core, is_counted=False), io_told(f"recipe {recipe} could not be kept"):
            _keep(core, recipe, name, parts)


def _keep(core: Core, recipe: str, name: str, parts: Mapping[str, Any]) -> None:
    path = core.layout.recipe_path(recipe)
    document = {"digest": scopes.digest(recipe), "name": name, "parts": dict(parts)}
    data = json.dumps(document, indent=1).encode()
    _check_share(core, scopes.scope_of(recipe), len(data))
    _check_room(core, len(data))
    with core.writer:
        if row(core, recipe) is None:
            durable.write_file(core.layout.recipes, os.path.basename(path), data, tmp=core.layout.tmp)
            with core.memory:
                core.recipe_bytes[scopes.scope_of(recipe)] += durable.disk_bytes(os.stat(path))
            with core.index.write() as conn:
                queries.add_recipe(conn, scopes.packed(recipe), name, core.clock())
            os.utime(path, (core.clock(), core.clock()))


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
    min_free = core.ledger.min_free_bytes
    for is_last in (False, True):
        free = core.root.free_bytes()
        short = min_free + size_bytes - free
        if short <= 0:
            return
        if is_last or not removal.evict(core, short):
            break
    raise errors.Declined(
        f"no room for another recipe: the disk has {size_text(free)} free, and {size_text(min_free)} "
        "stay free (--min-free)"
    )


def sweep(core: Core, idle_s: float = IDLE_S, scope: str | None = None) -> None:
    """Removes recipes, of one scope or of all, that have no artifacts and were not asked for lately."""
    write_asked(core)
    before = core.clock() - idle_s
    with core.index.read() as conn:
        empty = queries.empty_recipes(conn, before)
    for found in empty:
        if scope is not None and scopes.scope_of(scopes.text(found.digest)) != scope:
            continue
        path = core.layout.recipe_path(scopes.text(found.digest))
        with core.writer, contextlib.suppress(FileNotFoundError):
            if durable.is_there(path) and os.stat(path).st_mtime > before:
                continue
            with core.index.write() as conn:
                is_dropped = queries.drop_recipe(conn, found)
            if is_dropped:
                os.unlink(path)
    count(core)


def count(core: Core) -> None:
    """Counts what the recipes' files take on disk."""
    found: Counter[str] = Counter()
    with os.scandir(core.layout.recipes) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                size_bytes = durable.disk_bytes(file.stat(follow_symlinks=False))
                found[scopes.scope_of(file.name.removesuffix(".json"))] += size_bytes
    with core.memory:
        core.recipe_bytes = found


def record(core: Core, recipe: str, *, any_scope: bool, owner: int | None) -> RecipeRecord:
    """See `Store.recipe`."""
    digest = scopes.digest(recipe)
    with core.index.read() as conn:
        if owner is not None:
            found = queries.recipe_with(conn, scopes.packed(digest), owner)
        else:
            find = queries.recipe_of_any_scope if any_scope else queries.recipe
            found = find(conn, scopes.packed(recipe))
        if found is None:
            raise errors.NotFound(f"there is no recipe {digest}", recipe=digest)
        sums = queries.recipe_sums(conn, found.id, owner)
    recipe = scopes.text(found.digest)
    parts = None
    with (
        io_told(f"recipe {digest} could not be read"),
        contextlib.suppress(FileNotFoundError, ValueError),
        open(core.layout.recipe_path(recipe), encoding="utf-8") as file,
    ):
        parts = json.load(file)["parts"]
    return RecipeRecord(
        digest, found.name, found.generation, found.created_at, *sums, parts, scopes.scope_of(recipe)
    )


def page(
    core: Core, cursor: str | None, limit: int, scope: str | None, prefix: str | None
) -> tuple[list[RecipeRecord], str | None]:
    """See `Store.recipes`."""
    with core.index.read() as conn:
        rows, cursor = listing.recipe_page(conn, cursor, limit, scope, prefix)
    return [
        RecipeRecord(scopes.digest(row[0]), *row[1:], scope=scopes.scope_of(scopes.text(row[0])))
        for row in rows
    ], cursor
