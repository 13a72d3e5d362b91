"""Listing entries and recipes: filters, orders and cursors, as statements.

Invariants:
    1. No listing is unbounded: a page has at most `MAX_PAGE` rows.
    2. A cursor is the sort value and id of the last row seen (keyset), so that pages neither skip nor
       repeat entries that stay, whatever is committed or removed between them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcache.digests import Digest, Key, RecipeDigest, is_hex64
from prepcache.protocol.members import MAX_INT
from prepcache.protocol.observed import Chunk
from prepcached.store import observed
from prepcached.store.models import artifacts, producers, recipes
from prepcached.store.queries import is_called
from prepcached.store.records import Entry, Filter, NameSums, RecipeRecord

MAX_PAGE = 1000

SORTS: dict[str, sa.Column[Any]] = {
    "created_at": artifacts.c.created_at,
    "used_at": artifacts.c.used_at,
    "size_bytes": artifacts.c.size_bytes,
    "cost_s": artifacts.c.cost_s,
    "items": artifacts.c["items"],
    "key": artifacts.c.key,
}
"""What a listing may be sorted by; a leading "-" turns the order around."""


def _of_recipe(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    query = sa.select(column).where(recipes.c.id == artifacts.c.recipe_id)
    return query.correlate(artifacts).scalar_subquery()


_COLUMNS = (
    *(column for column in artifacts.c if column.name not in ("recipe_id", "producer_id")),
    _of_recipe(recipes.c.digest).label("recipe"),
    _of_recipe(recipes.c.name).label("name"),
    sa.select(producers.c.json)
    .where(producers.c.id == artifacts.c.producer_id)
    .correlate(artifacts)
    .scalar_subquery()
    .label("producer"),
)
"""Subqueries and not joins: a page in the order of an index then reads only its own rows."""


def conditions(filter: Filter, now: float) -> list[sa.ColumnElement[bool] | sa.TextClause]:
    """What a filter asks of a row."""
    where: list[sa.ColumnElement[bool] | sa.TextClause] = []
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
        # Row by row: a list of all such producers would be made anew for each batch of a purge.
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


def ids_after(
    conn: sa.Connection, where: list[sa.ColumnElement[bool] | sa.TextClause], after: int, limit: int
) -> list[int]:
    """Ids of matching rows beyond one, ascending: how a purge walks through millions in bounded memory."""
    statement = (
        sa.select(artifacts.c.id).where(*where, artifacts.c.id > after).order_by(artifacts.c.id).limit(limit)
    )
    return list(conn.execute(statement).scalars())


def page(
    conn: sa.Connection,
    filter: Filter,
    *,
    sort: str,
    cursor: str | None,
    limit: int,
    now: float,
    holds: Callable[[bytes], int],
) -> tuple[list[Entry], str | None]:
    """One page of entries and the cursor of the next.

    What they observed, which may be a hundred thousand files each, is told of one entry at a time.
    """
    column = SORTS.get(sort.removeprefix("-"))
    if column is None:
        raise errors.BadRequest(f"cannot sort by {sort[:40]!r}; use one of {', '.join(SORTS)}", field="sort")
    limit = max(1, min(limit, MAX_PAGE))
    is_down = sort.startswith("-")
    statement = sa.select(*_COLUMNS).where(*conditions(filter, now))
    if cursor is not None:
        value, last = _cursor_read(cursor, sort)
        seen = sa.tuple_(column, artifacts.c.id)
        statement = statement.where(seen < (value, last) if is_down else seen > (value, last))
    order = (column.desc(), artifacts.c.id.desc()) if is_down else (column.asc(), artifacts.c.id.asc())
    rows = conn.execute(statement.order_by(*order).limit(limit + 1)).all()
    more = rows[limit - 1] if len(rows) > limit else None
    cursor = None if more is None else _cursor(sort, getattr(more, column.name), more.id)
    return [_entry(row, holds, ()) for row in rows[:limit]], cursor


def entry(
    conn: sa.Connection, key: str, holds: Callable[[bytes], int], owner: int | None, scope: str
) -> Entry:
    """One entry; of several users' that have this key, that of this scope (scopes.py), else the oldest.

    Raises:
        NotFound: the index knows of none, or of none of this owner.
    """
    statement = sa.select(*_COLUMNS).where(artifacts.c.key == key_bytes(key), *owned_by(owner))
    is_own = _of_recipe(recipes.c.scope) == scope
    row = conn.execute(statement.order_by(is_own.desc(), artifacts.c.id).limit(1)).one_or_none()
    if row is None:
        raise errors.NotFound(f"there is no entry {key}", key=key)
    return _entry(row, holds, observed.read(conn, [row.observed])[row.observed])


def owned_by(owner: int | None) -> list[sa.ColumnElement[bool]]:
    """The condition that an entry is this owner's; none for None."""
    return [] if owner is None else [artifacts.c.owner == owner]


def recipe_page(
    conn: sa.Connection, cursor: str | None, limit: int, scope: str | None, prefix: str | None
) -> tuple[list[RecipeRecord], str | None]:
    """Recipes without their parts, newest first.

    Args:
        scope: only of this one; None for all.
        prefix: the first hex digits of their digests; None for all.
    """
    limit = max(1, min(limit, MAX_PAGE))
    of = [artifacts.c.recipe_id == recipes.c.id]
    count = sa.select(sa.func.count()).where(*of).scalar_subquery()
    size = sa.select(sa.func.coalesce(sa.func.sum(artifacts.c.size_bytes), 0)).where(*of).scalar_subquery()
    columns = recipes.c.digest, recipes.c.name, recipes.c.generation, recipes.c.created_at
    chosen = sa.select(*columns, count, size, recipes.c.scope, recipes.c.id)
    if scope is not None:
        chosen = chosen.where(recipes.c.scope == scope)
    if prefix is not None:
        chosen = chosen.where(_starts_with(recipes.c.digest, prefix, "digest"))
    if cursor is not None:
        chosen = chosen.where(recipes.c.id < _cursor_read(cursor, "recipes")[1])
    rows = conn.execute(chosen.order_by(recipes.c.id.desc()).limit(limit + 1)).all()
    cursor = _cursor("recipes", 0, rows[limit - 1].id) if len(rows) > limit else None
    found = [RecipeRecord(RecipeDigest(row.digest.hex()), *row[1:6], scope=row.scope) for row in rows[:limit]]
    return found, cursor


def name_sums(conn: sa.Connection, limit: int, owner: int | None) -> list[NameSums]:
    """What the entries of each name come to, latest used first."""
    live = (
        sa.select(
            artifacts.c.recipe_id,
            sa.func.count().label("entries"),
            sa.func.sum(artifacts.c["items"]).label("items"),
            sa.func.sum(artifacts.c.size_bytes).label("size_bytes"),
            sa.func.sum(artifacts.c.cost_s).label("cost_s"),
            sa.func.max(artifacts.c.used_at).label("used_at"),
        )
        .where(*owned_by(owner))
        .group_by(artifacts.c.recipe_id)
        .with_hint(artifacts, "NOT INDEXED", "sqlite")  # by the index, a million rows take thrice as long
        .subquery()
    )
    used_at = sa.func.max(live.c.used_at)
    statement = (
        sa.select(
            recipes.c.name,
            sa.func.count(),
            *(sa.func.sum(live.c[name]) for name in ("entries", "items", "size_bytes", "cost_s")),
            used_at,
        )
        .select_from(live.join(recipes, recipes.c.id == live.c.recipe_id))
        .group_by(recipes.c.name)
        .order_by(used_at.desc(), recipes.c.name)
        .limit(limit)
    )
    return [NameSums(*row) for row in conn.execute(statement)]


def _entry(row: Any, holds: Callable[[bytes], int], chunks: Iterable[Chunk]) -> Entry:
    return Entry(
        key=Key(row.key.hex()),
        digest=Digest(row.digest.hex()),
        recipe=RecipeDigest(row.recipe.hex()),
        name=row.name,
        size_bytes=row.size_bytes,
        disk_bytes=row.disk_bytes,
        items=row.items,
        rows=row.rows,
        cost_s=row.cost_s,
        owner=row.owner,
        created_at=row.created_at,
        used_at=row.used_at,
        is_pinned=row.is_pinned,
        holds=holds(row.digest),
        producer=json.loads(row.producer),
        observed=tuple(one for chunk in chunks for one in chunk.rows),
    )


def _recipe_has(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return artifacts.c.recipe_id.in_(sa.select(recipes.c.id).where(condition))


def _starts_with(column: sa.Column[bytes], prefix: str, field: str) -> sa.ColumnElement[bool]:
    """A range, which the column's index finds."""
    digits = prefix.lower()
    if not 4 <= len(digits) <= 64 or any(digit not in "0123456789abcdef" for digit in digits):
        raise errors.BadRequest(f"{prefix[:80]!r} must be 4 to 64 hex digits", field=field)
    lowest, highest = (bytes.fromhex(digits.ljust(64, fill)) for fill in "0f")
    return column.between(lowest, highest)


def key_bytes(key: str) -> bytes:
    """A key's bytes; BadRequest when it is not 64 hex digits."""
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
