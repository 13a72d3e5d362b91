"""Relatives of a recipe: others of its full name that have entries, for explaining a miss by the nearest.

Invariants:
    1. What is read is bounded: `MAX_RELATIVES` recipes and `MAX_READ_BYTES` of parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from prepcache.digests import RecipeDigest
from prepcached.store import observed, queries
from prepcached.store.models import artifacts, recipes
from prepcached.store.recipes import unpacked

MOST_DRAWS = 100
"""Generators that are told of one recipe."""

MAX_RELATIVES = 32
MAX_READ_BYTES = 8 << 20
"""Of parts, which take some 20 kB as a rule."""


@dataclass(frozen=True, slots=True)
class Relative:
    """A recipe with entries, and their sums."""

    digest: RecipeDigest
    name: str
    used_at: float
    entries: int
    items: int
    size_bytes: int
    cost_s: float


def relatives(conn: sa.Connection, digest: str | None, name: str, scope: str) -> list[Relative]:
    """Recipes with entries that a recipe may be compared with, the most recently used first.

    Only those of its full name: `prep.load` and `train.load` are two functions that have nothing in common.
    Of a recipe that is known, older ones if there are any: a later job's recipe is no reason for its miss.

    Args:
        digest: the recipe itself, which is left out; None where it is not known.
        scope: its own, and that of those others (scopes.py).
    """
    own = None if digest is None else queries.recipe(conn, digest + scope)
    others = [recipes.c.scope == scope]
    if digest is not None:
        others.append(recipes.c.digest != bytes.fromhex(digest))
    for is_older in [[recipes.c.id < own.id], []] if own is not None else [[]]:
        found = _with_entries(conn, recipes.c.name == name, *is_older, *others)
        if found:
            return found
    return []


def newest_of(conn: sa.Connection, name: str | None, scope: str) -> RecipeDigest | None:
    """The recipe of a scope that came last, of a name (`queries.is_called`) or of all; it missed when it
    came."""
    statement = sa.select(recipes.c.digest).order_by(recipes.c.id.desc()).limit(1)
    statement = statement.where(recipes.c.scope == scope)
    if name is not None:
        statement = statement.where(queries.is_called(name))
    found = conn.execute(statement).scalar_one_or_none()
    return None if found is None else RecipeDigest(found.hex())


def was_filled(conn: sa.Connection, recipe: str) -> bool:
    """Whether a recipe has, or has had, entries."""
    row = queries.recipe(conn, recipe)
    return row is not None and row.generation > queries.note(conn, "generation_base")


def was_damaged(conn: sa.Connection, recipe: str) -> bool:
    """Whether what happened to a recipe last is that it lost a damaged artifact."""
    row = queries.recipe(conn, recipe)
    return row is not None and queries.is_damage(conn, row)


def draws(conn: sa.Connection, recipe: str) -> tuple[str, ...]:
    """The random generators that samples of a recipe were drawn from."""
    row = queries.recipe(conn, recipe)
    return () if row is None else tuple(sorted(observed.draws(conn, row.id))[:MOST_DRAWS])


def with_parts(
    conn: sa.Connection, found: list[Relative], scope: str
) -> Iterator[tuple[Relative, Mapping[str, Any]]]:
    """Those of a scope whose readable parts are known, in order, up to the bound."""
    left = MAX_READ_BYTES
    for one in found:
        text = unpacked(queries.parts(conn, one.digest + scope))
        left -= len(text or b"")
        if left < 0:
            return
        if text is not None:
            yield one, json.loads(text)


def _with_entries(conn: sa.Connection, *where: sa.ColumnElement[bool]) -> list[Relative]:
    used_at = sa.func.max(artifacts.c.used_at)
    statement = (
        sa.select(
            recipes.c.digest,
            recipes.c.name,
            used_at,
            sa.func.count(),
            sa.func.sum(artifacts.c["items"]),
            sa.func.sum(artifacts.c.size_bytes),
            sa.func.sum(artifacts.c.cost_s),
        )
        .select_from(recipes.join(artifacts, artifacts.c.recipe_id == recipes.c.id))
        .where(*where)
        .group_by(recipes.c.id)
        .order_by(used_at.desc(), recipes.c.id.desc())
        .limit(MAX_RELATIVES)
    )
    return [Relative(RecipeDigest(digest.hex()), *rest) for digest, *rest in conn.execute(statement)]
