"""Listing entries and recipes, and finding relatives of a recipe: filters, orders and cursors, as statements.

Invariants:
    1. No listing is unbounded: a page has at most `MAX_PAGE_SIZE` rows.
    2. A cursor is the sort value and id of the last row seen (keyset), so that pages neither skip nor
       repeat entries that stay, whatever is committed or removed between them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcache.digests import Digest, Key, RecipeDigest, is_hex64
from prepcache.protocol.inspection import MAX_PAGE_SIZE, SORTS, Entry, EntryPage, NameSums, NearestRecipe
from prepcache.protocol.wire import MAX_INT
from prepcached.store import queries, scopes
from prepcached.store.core import Core
from prepcached.store.db import artifacts, producers, recipes
from prepcached.store.records import Filter, RecipeRecord

_NO_FILTER = Filter()
MAX_RELATIVES, MAX_PARTS_BYTES = 16, 1 << 18
"""How many are compared for an explanation, and packed parts of one, which take some 5 kB as a rule."""

_SORTS: dict[str, sa.Column[Any]] = {name: artifacts.c[name] for name in (*SORTS, "key")}
"""A leading "-" turns the order around."""


def _of_recipe(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    query = sa.select(column).where(recipes.c.id == artifacts.c.recipe_id)
    return query.correlate(artifacts).scalar_subquery()


_AS_THEY_ARE = (
    *("name", "size_bytes", "disk_bytes", "items", "rows", "cost_s"),
    *("created_at", "used_at", "is_pinned"),
)
_COLUMNS = (
    *(column for column in artifacts.c if column.name not in ("producer_id", "observed")),
    _of_recipe(recipes.c.digest).label("recipe"),
    _of_recipe(recipes.c.name).label("name"),
    sa.select(producers.c.json)
    .where(producers.c.id == artifacts.c.producer_id)
    .correlate(artifacts)
    .scalar_subquery()
    .label("producer"),
)
"""Subqueries and not joins: a page in the order of an index then reads only its own rows."""


def conditions(filter: Filter, now: float) -> list[queries.Where]:
    """What a filter asks of a row."""
    where: list[queries.Where] = []
    if filter.name is not None:
        where.append(_recipe_has(is_called(filter.name)))
    if filter.recipe is not None:
        where.append(_recipe_has(_starts_with(recipes.c.digest, filter.recipe, "recipe")))
    if filter.owner is not None:
        where.append(artifacts.c.owner == filter.owner)
    if filter.older_than_s is not None:
        where.append(artifacts.c.used_at <= now - filter.older_than_s)
    if filter.produced_by is not None:
        each = sa.func.json_each(producers.c.json).table_valued("value")
        # Row by row: a list of all such producers would be made again for each batch of a purge.
        found = sa.select(1).select_from(producers.join(each, sa.true()))
        found = found.where(producers.c.id == artifacts.c.producer_id).correlate(artifacts)
        where.append(found.where(sa.func.instr(each.c.value, filter.produced_by) > 0).exists())
    if filter.keys is not None:
        where.append(artifacts.c.key.in_([key_bytes(key) for key in filter.keys]))
    if filter.is_pinned is not None:
        where.append(artifacts.c.is_pinned == filter.is_pinned)
    if filter.key is not None:
        where.append(_starts_with(artifacts.c.key, filter.key, "key"))
    return where


def is_called(name: str) -> sa.ColumnElement[bool]:
    """A `*` at the end stands for anything."""
    prefix = name.removesuffix("*")
    if prefix == name:
        return recipes.c.name == name
    return sa.func.substr(recipes.c.name, 1, len(prefix)) == prefix


def owned_by(owner: int | None) -> list[sa.ColumnElement[bool]]:
    return [] if owner is None else [artifacts.c.owner == owner]


# Entries


def page(
    core: Core,
    filter: Filter = _NO_FILTER,
    *,
    sort: str = "-used_at",
    cursor: str | None = None,
    limit: int = 100,
) -> EntryPage:
    """One page of entries, without what they observed, and the cursor of the next. Sorted by one of `SORTS`
    or "key", with "-" for descending."""
    column = _SORTS.get(sort.removeprefix("-"))
    if column is None:
        raise errors.BadRequest(f"cannot sort by {sort[:40]!r}; use one of {', '.join(_SORTS)}", field="sort")
    limit = max(1, min(limit, MAX_PAGE_SIZE))
    is_down = sort.startswith("-")
    chosen = sa.select(artifacts.c.id).where(*conditions(filter, core.clock()))
    if cursor is not None:
        value, last = _cursor_read(cursor, sort)
        seen = sa.tuple_(column, artifacts.c.id)
        chosen = chosen.where(seen < (value, last) if is_down else seen > (value, last))
    order = (column.desc(), artifacts.c.id.desc()) if is_down else (column.asc(), artifacts.c.id.asc())
    # Their ids first: to sort a million rows with all their columns takes a second.
    page = artifacts.c.id.in_(chosen.order_by(*order).limit(limit + 1))
    with core.index.read() as conn:
        rows = conn.execute(sa.select(*_COLUMNS).where(page).order_by(*order)).all()
    more = rows[limit - 1] if len(rows) > limit else None
    cursor = None if more is None else _cursor(sort, getattr(more, column.name), more.id)
    return EntryPage(tuple(_entry(core, row, ()) for row in rows[:limit]), cursor)


def entry(
    core: Core, key: str, owner: int | None = None, scope: str = "", digest: str | None = None
) -> Entry:
    """One entry, if asked of this owner or artifact; of several users' that have this key, that of this scope
    (scopes.py), else the oldest."""
    statement = sa.select(*_COLUMNS, artifacts.c.observed)
    statement = statement.where(artifacts.c.key == key_bytes(key), *owned_by(owner))
    if digest is not None:
        statement = statement.where(artifacts.c.digest == bytes.fromhex(digest))
    is_own = _of_recipe(recipes.c.scope) == scope
    with core.index.read() as conn:
        row = conn.execute(statement.order_by(is_own.desc(), artifacts.c.id).limit(1)).one_or_none()
        if row is None:
            raise errors.NotFound(f"there is no entry {key}", key=key)
        names, chunks = queries.read_observed(conn, row.recipe_id, [row.observed])
    return _entry(core, row, (one for name in names[row.observed] for one in chunks[name]))


def _entry(core: Core, row: Any, seen: Iterable[Mapping[str, Any]]) -> Entry:
    with core.memory:
        holds = core.holds.count(row.digest)
    return Entry(
        key=Key(row.key.hex()),
        digest=Digest(row.digest.hex()),
        recipe=RecipeDigest(row.recipe.hex()),
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        owner=None if row.owner < 0 else row.owner,  # it came over TCP (auth.py)
        holds=holds,
        producer=json.loads(row.producer),
        observed=tuple(seen),
    )


def name_sums(core: Core, limit: int, owner: int | None = None) -> list[NameSums]:
    """By name, latest used first."""
    used_at = sa.func.max(artifacts.c.used_at)
    statement = (
        sa.select(recipes.c.name, sa.func.count(recipes.c.id.distinct()), sa.func.count())
        .add_columns(*(sa.func.sum(artifacts.c[name]) for name in ("items", "size_bytes", "cost_s")), used_at)
        .select_from(artifacts.join(recipes, recipes.c.id == artifacts.c.recipe_id))
        .where(*owned_by(owner))
        .group_by(recipes.c.name)
        .order_by(used_at.desc(), recipes.c.name)
        .limit(limit)
    )
    with core.index.read() as conn:
        return [NameSums(*row) for row in conn.execute(statement)]


# Recipes


def _sums() -> sa.Select[Any]:
    """Recipes with what their entries come to."""
    seen = recipes.c.digest, recipes.c.name, recipes.c.generation, recipes.c.created_at
    size = sa.func.coalesce(sa.func.sum(artifacts.c.size_bytes), 0)
    return (
        sa.select(*seen, sa.func.count(artifacts.c.id), size)
        .add_columns(recipes.c.scope, recipes.c.id)
        .join_from(recipes, artifacts, artifacts.c.recipe_id == recipes.c.id, isouter=True)
        .group_by(recipes.c.id)
    )


def _recipe(row: Any, packed: bytes | None = None) -> RecipeRecord:
    digest, name, generation, created_at, entries, size_bytes, scope, *_ = row
    of = RecipeDigest(digest.hex())
    return RecipeRecord(of, name, generation, created_at, entries, size_bytes, _unpacked(packed), scope)


def recipe_page(
    core: Core,
    *,
    cursor: str | None = None,
    limit: int = 100,
    scope: str | None = None,
    prefix: str | None = None,
) -> tuple[list[RecipeRecord], str | None]:
    """Recipes without their parts, newest first; of one scope, or with these first digits, if asked."""
    limit = max(1, min(limit, MAX_PAGE_SIZE))
    chosen = sa.select(recipes.c.id)
    if scope is not None:
        chosen = chosen.where(recipes.c.scope == scope)
    if prefix is not None:
        chosen = chosen.where(_starts_with(recipes.c.digest, prefix, "digest"))
    if cursor is not None:
        chosen = chosen.where(recipes.c.id < _cursor_read(cursor, "recipes")[1])
    with core.index.read() as conn:
        ids = conn.execute(chosen.order_by(recipes.c.id.desc()).limit(limit + 1)).scalars().all()
        rows = conn.execute(_sums().where(recipes.c.id.in_(ids[:limit])).order_by(recipes.c.id.desc())).all()
    cursor = _cursor("recipes", 0, ids[limit - 1]) if len(ids) > limit else None
    return [_recipe(row) for row in rows], cursor


def recipe(core: Core, recipe: str, *, any_scope: bool = False) -> RecipeRecord:
    """One recipe with its readable parts; with `any_scope`, else the shared one of its digest, or else one of
    some user's own."""
    is_it = queries.is_recipe(recipe)
    found = _sums().add_columns(recipes.c.parts).order_by(is_it.desc(), recipes.c.scope).limit(1)
    digest = scopes.digest(recipe)
    with core.index.read() as conn:
        chosen = recipes.c.digest == bytes.fromhex(digest) if any_scope else is_it
        row = conn.execute(found.where(chosen)).one_or_none()
    if row is None:
        raise errors.NotFound(f"there is no recipe {digest}", recipe=digest)
    return _recipe(row, row.parts)


def _unpacked(packed: bytes | None) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] | None = None if packed is None else json.loads(zlib.decompress(packed))
    except zlib.error:
        return None
    return found


# Relatives: what a miss is explained by


def relatives(
    core: Core, digest: str | None, name: str, scope: str
) -> tuple[bool, list[tuple[NearestRecipe, Mapping[str, Any] | None]]]:
    """Whether a recipe ever had entries; and the latest recipes of the same full name that have some, but for
    itself, with their parts, last used first; at the end those whose parts are None: lost, or too large. Of a
    recipe that is known, older ones if there are any: a later one is no reason for its miss."""
    used_at = sa.func.max(artifacts.c.used_at)
    sums = [sa.func.sum(artifacts.c[of]) for of in ("items", "size_bytes", "cost_s")]
    packed = sa.case((sa.func.length(recipes.c.parts) <= MAX_PARTS_BYTES, recipes.c.parts))
    has_entries = sa.exists().where(artifacts.c.recipe_id == recipes.c.id)
    latest = (
        sa.select(recipes.c.id)
        .where(recipes.c.name == name, recipes.c.scope == scope, has_entries)
        .order_by(packed.is_(None), recipes.c.id.desc())
        .limit(MAX_RELATIVES)
    )
    statement = (
        sa.select(packed, recipes.c.digest, recipes.c.name, used_at, sa.func.count(), *sums)
        .select_from(recipes.join(artifacts, artifacts.c.recipe_id == recipes.c.id))
        .group_by(recipes.c.id)
        .order_by(packed.is_(None), used_at.desc(), recipes.c.id.desc())
    )
    with core.index.read() as conn:
        own = None if digest is None else queries.recipe(conn, digest + scope)
        had_entries = own is not None and own.generation > queries.note(conn, "generation_base")
        if digest is not None:
            latest = latest.where(recipes.c.digest != bytes.fromhex(digest))
        tried = [latest] if own is None else [latest.where(recipes.c.id < own.id), latest]
        rows = next(
            filter(None, (conn.execute(statement.where(recipes.c.id.in_(ids))).all() for ids in tried)), []
        )
    found = [(NearestRecipe(RecipeDigest(other.hex()), *rest), _unpacked(of)) for of, other, *rest in rows]
    return had_entries, found


# What statements and cursors are made of


def _recipe_has(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return artifacts.c.recipe_id.in_(sa.select(recipes.c.id).where(condition))


def _starts_with(column: sa.Column[bytes], prefix: str, field: str) -> sa.ColumnElement[bool]:
    """A range, which the column's index finds."""
    digits = prefix.lower()
    if not 4 <= len(digits) <= 64 or any(digit not in "0123456789abcdef" for digit in digits):
        raise errors.BadRequest(f"{prefix[:80]!r} must be 4 to 64 hex digits of a key or recipe", field=field)
    lowest, highest = (bytes.fromhex(digits.ljust(64, fill)) for fill in "0f")
    return column.between(lowest, highest)


def key_bytes(key: str) -> bytes:
    if not is_hex64(key):
        raise errors.BadRequest(f"{key[:80]!r} is not a key: 64 lower-case hex digits", field="key")
    return bytes.fromhex(key)


def _cursor(sort: str, value: float | bytes, last: int) -> str:
    plain = value.hex() if isinstance(value, bytes) else value
    return base64.urlsafe_b64encode(json.dumps([sort, plain, last]).encode()).decode()


def _cursor_read(cursor: str, sort: str) -> tuple[Any, int]:
    try:
        made_for, value, last = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        if made_for != sort or not isinstance(last, int) or abs(last) > MAX_INT:
            raise ValueError(made_for)
        return (bytes.fromhex(value) if isinstance(value, str) else float(value)), last
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise errors.BadRequest("the cursor is not from this listing", field="cursor") from None
