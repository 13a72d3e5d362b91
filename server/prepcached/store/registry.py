"""The registry of recipes: their rows, and their readable parts in `recipes/<digest>.json`.

Invariants:
    1. A recipe's parts are durable before its row is there, and so before its first artifact can be.
    2. The first registration stands: the digest says that later ones mean the same.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from prepcache import errors
from prepcache.digests import RecipeDigest, is_hex64
from prepcached.store import durable, listing, queries
from prepcached.store.commit import no_space_declined
from prepcached.store.core import Core, io_told
from prepcached.store.records import RecipeRecord


def recipe_bytes(recipe: str) -> bytes:
    """A recipe digest's bytes; BadRequest when it is not 64 hex digits."""
    if not is_hex64(recipe):
        raise errors.BadRequest(
            f"{recipe[:80]!r} is not a recipe digest: 64 lower-case hex digits", field="recipe"
        )
    return bytes.fromhex(recipe)


def row(core: Core, recipe: str) -> queries.RecipeRow | None:
    """A recipe's row, None where nobody registered it."""
    with core.index.read() as conn:
        return queries.recipe(conn, recipe_bytes(recipe))


def register(core: Core, recipe: str, name: str, parts: Mapping[str, Any]) -> None:
    """See `Store.register`."""
    digest = recipe_bytes(recipe)
    path = core.layout.recipe_path(recipe)
    if row(core, recipe) is not None and os.path.exists(path):
        return
    document = {"digest": recipe, "name": name, "parts": dict(parts)}
    with no_space_declined(core), io_told(f"recipe {recipe} could not be kept"):
        durable.write_file(
            core.layout.recipes,
            os.path.basename(path),
            json.dumps(document, indent=1).encode(),
            tmp=core.layout.tmp,
        )
        with core.writing(), core.index.write() as conn:
            queries.add_recipe(conn, digest, name, core.clock())


def record(core: Core, recipe: str) -> RecipeRecord:
    """See `Store.recipe`."""
    with core.index.read() as conn:
        found = queries.recipe(conn, recipe_bytes(recipe))
        if found is None:
            raise errors.NotFound(f"there is no recipe {recipe}", recipe=recipe)
        sums = queries.recipe_sums(conn, found.id)
    parts = None
    with (
        io_told(f"recipe {recipe} could not be read"),
        contextlib.suppress(FileNotFoundError, ValueError),
        open(core.layout.recipe_path(recipe), encoding="utf-8") as file,
    ):
        parts = json.load(file)["parts"]
    return RecipeRecord(RecipeDigest(recipe), found.name, found.generation, found.created_at, *sums, parts)


def page(core: Core, cursor: str | None, limit: int) -> tuple[list[RecipeRecord], str | None]:
    """See `Store.recipes`."""
    with core.index.read() as conn:
        rows, cursor = listing.recipe_page(conn, cursor, limit)
    return [
        RecipeRecord(RecipeDigest(digest.hex()), name, generation, created_at, entries, size_bytes)
        for digest, name, generation, created_at, entries, size_bytes in rows
    ], cursor
