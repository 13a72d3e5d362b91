"""The index's queries: each one statement or a few, on a connection that the caller got from `Index`.

Rows stay rows here: nothing keeps a Python object per entry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from prepcache.digests import Digest, Key
from prepcached.store import observed, scopes
from prepcached.store.models import artifacts, doomed, notes, producers, recipes
from prepcached.store.models import observed as observed_table
from prepcached.store.records import ArtifactRef

CHUNK = 500
"""Values in one IN (...) list; SQLite allows 32,766 in a statement."""

Where = sa.TextClause | sa.ColumnElement[bool]
_IS_UNPINNED = sa.text("artifacts.is_pinned = 0")


def is_called(name: str) -> sa.ColumnElement[bool]:
    """A recipe has this name, or one that begins so where it ends in `*`."""
    prefix = name.removesuffix("*")
    if prefix == name:
        return recipes.c.name == name
    return sa.func.substr(recipes.c.name, 1, len(prefix)) == prefix


def is_recipe(recipe: str) -> sa.ColumnElement[bool]:
    """A row is of this scoped recipe (scopes.py)."""
    digest, scope = scopes.split(recipe)
    return sa.and_(recipes.c.digest == digest, recipes.c.scope == scope)


_RECIPE = sa.select(*(column for column in recipes.c if column.name not in ("asked_at", "parts")))


class RecipeRow(NamedTuple):
    """A recipe, without its parts."""

    id: int
    digest: bytes
    scope: str
    name: str
    generation: int
    removed_generation: int
    created_at: float


class Doomable(NamedTuple):
    """What a removal has to know of a row."""

    id: int
    key: bytes
    digest: bytes
    recipe_id: int
    size_bytes: int
    disk_bytes: int
    cost_s: float
    is_pinned: bool
    edition: int
    owner: int
    used_at: float


class Totals(NamedTuple):
    """Sums over all rows, from which the store's counters start."""

    entries: int
    size_bytes: int
    live_bytes: int
    pinned_bytes: int
    cost_s: float


def recipe(conn: sa.Connection, recipe: str) -> RecipeRow | None:
    """The row of a scoped recipe."""
    row = conn.execute(_RECIPE.where(is_recipe(recipe))).one_or_none()
    return None if row is None else RecipeRow(*row)


def recipe_of_any_scope(conn: sa.Connection, digest: str) -> RecipeRow | None:
    """The recipe that is shared, or else one of those that a user has for himself."""
    of_digest = _RECIPE.where(recipes.c.digest == scopes.split(digest)[0])
    row = conn.execute(of_digest.order_by(recipes.c.scope).limit(1)).one_or_none()
    return None if row is None else RecipeRow(*row)


def recipe_with(conn: sa.Connection, digest: str, owner: int) -> RecipeRow | None:
    """A recipe of this digest in which an owner has entries, as it would be were these all: a recipe that is
    shared tells nobody of the others who share it."""
    sums = (sa.func.max(artifacts.c.generation), sa.func.min(artifacts.c.created_at))
    statement = (
        sa.select(recipes.c.id, recipes.c.digest, recipes.c.scope, recipes.c.name, *sums)
        .join(artifacts, artifacts.c.recipe_id == recipes.c.id)
        .where(recipes.c.digest == bytes.fromhex(digest), artifacts.c.owner == owner)
        .group_by(recipes.c.id)
        .order_by(recipes.c.scope)
        .limit(1)
    )
    row = conn.execute(statement).one_or_none()
    return None if row is None else RecipeRow(*row[:5], 0, row[5])


def add_recipe(
    conn: sa.Connection, recipe: str, name: str, now: float, parts: bytes | None = None
) -> RecipeRow:
    """The recipe's row, made if absent, and given the parts if it has none; a generation starts where no
    client can have been yet."""
    base = note(conn, "generation_base")
    digest, scope = scopes.split(recipe)
    values = {"digest": digest, "scope": scope, "name": name, "generation": base, "removed_generation": base}
    statement = insert(recipes).values({**values, "created_at": now, "asked_at": now, "parts": parts})
    given = {"name": name, "asked_at": now, "parts": parts}
    of = [recipes.c.digest, recipes.c.scope]
    if parts is None:
        conn.execute(statement.on_conflict_do_nothing(of))
    else:
        conn.execute(statement.on_conflict_do_update(of, set_=given, where=recipes.c.parts.is_(None)))
    row = conn.execute(_RECIPE.where(is_recipe(recipe))).one()
    return RecipeRow(*row)


def has_parts(conn: sa.Connection, recipe: str) -> bool:
    """Whether a recipe is there with its parts, which are not read."""
    statement = sa.select(recipes.c.id).where(is_recipe(recipe), recipes.c.parts.is_not(None))
    return conn.execute(statement).first() is not None


def parts(conn: sa.Connection, recipe: str) -> bytes | None:
    """A recipe's readable parts, packed (recipes.py); None where they, or the recipe, are not known."""
    return conn.execute(sa.select(recipes.c.parts).where(is_recipe(recipe))).scalar_one_or_none()


def note_asked(conn: sa.Connection, asked: Mapping[str, float]) -> None:
    """Writes down when recipes were asked for."""
    for recipe, at in asked.items():
        conn.execute(recipes.update().where(is_recipe(recipe)).values(asked_at=at))


def drop_idle_recipes(conn: sa.Connection, before: float, most_bytes: int) -> None:
    """Forgets recipes without artifacts that were not asked for since, and of each scope all but the last so
    many bytes; generations start beyond theirs from now on."""
    has_any = sa.exists().where(artifacts.c.recipe_id == recipes.c.id)
    size = sa.func.coalesce(sa.func.length(recipes.c.parts), 0)
    order = [recipes.c.asked_at.desc(), recipes.c.id.desc()]
    newer = sa.func.sum(size).over(partition_by=recipes.c.scope, order_by=order)
    idle = sa.select(recipes.c.id, recipes.c.asked_at, newer.label("bytes")).where(~has_any).subquery()
    going = sa.select(idle.c.id).where(sa.or_(idle.c.asked_at < before, idle.c.bytes > most_bytes))
    dropped = recipes.delete().where(recipes.c.id.in_(going))
    gone = conn.execute(dropped.returning(recipes.c.id, recipes.c.generation)).all()
    for chunk in chunks(recipe_id for recipe_id, _ in gone):
        conn.execute(notes.delete().where(notes.c.name.in_([f"damaged {recipe_id}" for recipe_id in chunk])))
        conn.execute(observed_table.delete().where(observed_table.c.recipe_id.in_(chunk)))
    highest = max((generation for _, generation in gone), default=-1)
    set_note(conn, "generation_base", max(note(conn, "generation_base"), highest + 1))


def raise_generation(conn: sa.Connection, recipe_id: int, *, is_removal: bool) -> int:
    """Raises a recipe's generation by one; returns it."""
    values: dict[str, Any] = {"generation": recipes.c.generation + 1}
    if is_removal:
        values["removed_generation"] = recipes.c.generation + 1
    statement = recipes.update().where(recipes.c.id == recipe_id).values(values)
    return int(conn.execute(statement.returning(recipes.c.generation)).scalar_one())


def newest_generation(conn: sa.Connection, digests: Iterable[bytes]) -> int:
    """The generation with which the last of a commit's artifacts came; 0 where none is there."""
    newest = sa.func.max(artifacts.c.generation)
    return conn.execute(sa.select(newest).where(artifacts.c.digest.in_(digests))).scalar_one() or 0


_REF = (
    artifacts.c.key,
    artifacts.c.digest,
    artifacts.c.size_bytes,
    artifacts.c["items"],
    artifacts.c.rows,
    artifacts.c.cost_s,
    artifacts.c.observed,
    artifacts.c.edition,
    artifacts.c.disk_bytes,
    artifacts.c.is_pinned,
)
_RESOLVE = (
    sa.select(*_REF)
    .where(artifacts.c.recipe_id == sa.bindparam("recipe_id"))
    .where(artifacts.c.generation > sa.bindparam("since"))
    .order_by(artifacts.c.generation, artifacts.c.id)
)


def of_recipe(
    conn: sa.Connection, recipe_id: int, since: int
) -> tuple[list[ArtifactRef], list[tuple[bytes, int, bool]]]:
    """A recipe's artifacts newer than a generation, and for each (digest, bytes on disk, is pinned)."""
    refs, found = [], []
    answer = conn.execute(_RESOLVE, {"recipe_id": recipe_id, "since": since}).all()
    chunks_of = observed.read(conn, (row.observed for row in answer))
    for key, digest, size, items, rows, cost_s, seen, edition, disk, is_pinned in answer:
        names = Key(key.hex()), Digest(digest.hex())
        refs.append(ArtifactRef(*names, size, items, rows, cost_s, chunks_of[seen], edition))
        found.append((digest, disk, is_pinned))
    return refs, found


_DOOMABLE: sa.Select[Any] = sa.select(
    artifacts.c.id,
    artifacts.c.key,
    artifacts.c.digest,
    artifacts.c.recipe_id,
    artifacts.c.size_bytes,
    artifacts.c.disk_bytes,
    artifacts.c.cost_s,
    artifacts.c.is_pinned,
    artifacts.c.edition,
    artifacts.c.owner,
    artifacts.c.used_at,
)


def doomable(conn: sa.Connection, *where: Where) -> Iterator[Doomable]:
    """The rows that match, as a removal needs them."""
    for row in conn.execute(_DOOMABLE.where(*where)):
        yield Doomable(*row)


def doomable_in(
    conn: sa.Connection, column: sa.Column[Any], values: Iterable[Any], *where: Where
) -> list[Doomable]:
    """The rows whose column has one of these values."""
    return [row for chunk in chunks(values) for row in doomable(conn, column.in_(chunk), *where)]


def replaced_by(conn: sa.Connection, rows: Iterable[Doomable]) -> list[Doomable]:
    """The rows of lower editions than these of the same recipe: NOTE [ Editions ] in catalogue.py.

    What another owner has pinned is not among them: who may purge one may not purge the other.
    """
    highest: dict[tuple[int, int], int] = {}
    for row in rows:
        if row.edition:
            of = row.recipe_id, row.owner
            highest[of] = max(highest.get(of, 0), row.edition)
    lower: dict[int, Doomable] = {}
    for (recipe_id, owner), edition in highest.items():
        may_go = sa.or_(artifacts.c.owner == owner, sa.not_(artifacts.c.is_pinned))
        below = artifacts.c.edition < edition
        found = doomable(conn, artifacts.c.recipe_id == recipe_id, below, may_go)
        lower.update((row.id, row) for row in found)
    return list(lower.values())


def below_others(conn: sa.Connection) -> list[Doomable]:
    """The rows of recipes that have one of a higher edition."""
    higher = artifacts.alias()
    is_below = sa.exists().where(
        higher.c.recipe_id == artifacts.c.recipe_id,
        higher.c.edition > artifacts.c.edition,
    )
    return list(doomable(conn, is_below))


def next_row(conn: sa.Connection, after: int, *where: Where) -> Doomable | None:
    """The row with the next higher id."""
    row = conn.execute(
        _DOOMABLE.where(artifacts.c.id > after, *where).order_by(artifacts.c.id).limit(1)
    ).one_or_none()
    return None if row is None else Doomable(*row)


def coldest(conn: sa.Connection, owner: int | None = None, where: Sequence[Where] = ()) -> Iterator[Doomable]:
    """Unpinned entries, of one owner or of all, least recently used first; read as far as it is consumed."""
    of = [] if owner is None else [artifacts.c.owner == owner]
    statement = _DOOMABLE.where(_IS_UNPINNED, *of, *where).order_by(artifacts.c.used_at)
    with conn.execute(statement.execution_options(stream_results=True, yield_per=256)) as result:
        for row in result:
            yield Doomable(*row)


def coldest_used_at(conn: sa.Connection) -> float | None:
    statement = sa.select(artifacts.c.used_at).where(_IS_UNPINNED).order_by(artifacts.c.used_at).limit(1)
    return conn.execute(statement).scalar_one_or_none()


def add_artifact(conn: sa.Connection, values: Mapping[str, Any], producer: Mapping[str, Any]) -> None:
    """Inserts a row; a doomed digest is spared."""
    add_artifacts(conn, [(values, producer)])


def add_artifacts(conn: sa.Connection, rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Does that with many rows (values, producer), at most CHUNK."""
    if not rows:
        return
    texts = [json.dumps(producer, sort_keys=True, default=str) for _, producer in rows]
    distinct = list(dict.fromkeys(texts))
    conn.execute(producers.insert().prefix_with("OR IGNORE"), [{"json": text} for text in distinct])
    known = sa.select(producers.c.json, producers.c.id).where(producers.c.json.in_(distinct))
    ids = {text: producer_id for text, producer_id in conn.execute(known)}  # noqa: C416
    digests = [values["digest"] for values, _ in rows]
    conn.execute(doomed.delete().where(doomed.c.digest.in_(digests)))
    lists = _observed(conn, [values for values, _ in rows])
    told = zip(rows, texts, lists, strict=True)
    new = [{**v, "observed": seen, "producer_id": ids[text]} for (v, _), text, seen in told]
    conn.execute(artifacts.insert(), new)


def _observed(conn: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """What they observed as the index names it; they have it as their files do."""
    told: list[str | None] = [None] * len(rows)
    places: dict[int, list[int]] = {}
    for place, values in enumerate(rows):
        if values["observed"]:
            places.setdefault(values["recipe_id"], []).append(place)
    for recipe_id, of in places.items():
        names = observed.keep(conn, recipe_id, [rows[place]["observed"] for place in of])
        for place, name in zip(of, names, strict=True):
            told[place] = name
    return told


def delete(conn: sa.Connection, rows: Sequence[Doomable]) -> None:
    """Deletes rows, dooms their files, and raises the generations of the recipes that lost one."""
    for chunk in chunks(rows):
        doom(conn, [row.digest for row in chunk])
        conn.execute(artifacts.delete().where(artifacts.c.id.in_([row.id for row in chunk])))
    for recipe_id in sorted({row.recipe_id for row in rows}):
        raise_generation(conn, recipe_id, is_removal=True)


def doom(conn: sa.Connection, digests: Iterable[bytes]) -> None:
    """Notes that files without rows are to be unlinked, should they be there at the next start."""
    for chunk in chunks(digests):
        conn.execute(doomed.insert().prefix_with("OR IGNORE"), [{"digest": digest} for digest in chunk])


def doomed_digests(conn: sa.Connection) -> list[bytes]:
    """What is to be unlinked; what has a row is not, whatever became of its doom."""
    has_row = sa.exists().where(artifacts.c.digest == doomed.c.digest)
    return list(conn.execute(sa.select(doomed.c.digest).where(~has_row)).scalars())


def spare(conn: sa.Connection, digests: Iterable[bytes]) -> None:
    """Forgets doomed digests whose files are gone."""
    for chunk in chunks(digests):
        conn.execute(doomed.delete().where(doomed.c.digest.in_(chunk)))


def touch(conn: sa.Connection, used: Mapping[bytes, float]) -> None:
    """Writes recency behind."""
    statement = (
        artifacts.update()
        .where(artifacts.c.digest == sa.bindparam("d"), artifacts.c.used_at < sa.bindparam("t"))
        .values(used_at=sa.bindparam("t"))
    )
    for chunk in chunks(used.items()):
        conn.execute(statement, [{"d": digest, "t": at} for digest, at in chunk])


def use_by(conn: sa.Connection, now: float) -> None:
    """Brings the latest time of use back to now where it lies ahead, and all others by as much.

    A clock that was ahead, or is behind just now, leaves such times. They would stay the warmest whatever is
    used from now on; were they alone brought back, they would lose their order.
    """
    latest = conn.execute(sa.select(sa.func.max(artifacts.c.used_at))).scalar_one()
    if latest is not None and latest > now:
        conn.execute(artifacts.update().values(used_at=artifacts.c.used_at - (latest - now)))


def digests_between(conn: sa.Connection, prefix: str) -> set[str]:
    """Hex digests of all rows that start with two hex digits."""
    low = bytes.fromhex(prefix)
    statement = "SELECT lower(hex(digest)) FROM artifacts WHERE digest >= ? AND digest < ?"
    high = bytes([low[0] + 1]) if low[0] < 255 else b"\xff" * 33
    return {row[0] for row in conn.exec_driver_sql(statement, (low, high))}


def totals(conn: sa.Connection) -> Totals:
    """One pass over all rows."""
    statement = sa.text(
        "SELECT count(*), sum(size_bytes), sum(disk_bytes), sum(disk_bytes * is_pinned), sum(cost_s) "
        "FROM artifacts"
    )
    return Totals(*(value or 0 for value in conn.execute(statement).one()))


def owner_bytes(conn: sa.Connection) -> Counter[int]:
    """Bytes on disk of each owner's entries."""
    sums = sa.select(artifacts.c.owner, sa.func.sum(artifacts.c.disk_bytes)).group_by(artifacts.c.owner)
    return Counter({row[0]: row[1] for row in conn.execute(sums)})


def recipe_sums(conn: sa.Connection, recipe_id: int, owner: int | None = None) -> tuple[int, int]:
    """(entries, size_bytes) of a recipe; of one owner, if any."""
    sums = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(artifacts.c.size_bytes), 0))
    whose = [] if owner is None else [artifacts.c.owner == owner]
    row = conn.execute(sums.where(artifacts.c.recipe_id == recipe_id, *whose)).one()
    return int(row[0]), int(row[1])


def note(conn: sa.Connection, name: str) -> int:
    """A number that the store remembers; 0 when it never wrote it."""
    return conn.execute(sa.select(notes.c.value).where(notes.c.name == name)).scalar_one_or_none() or 0


def set_note(conn: sa.Connection, name: str, value: int) -> None:
    conn.execute(notes.insert().prefix_with("OR REPLACE"), {"name": name, "value": value})


def note_damage(conn: sa.Connection, recipe_id: int) -> None:
    """Remembers that the recipe lost a damaged artifact in its present generation."""
    generation = conn.execute(sa.select(recipes.c.generation).where(recipes.c.id == recipe_id)).scalar_one()
    set_note(conn, f"damaged {recipe_id}", generation)


def is_damage(conn: sa.Connection, recipe: RecipeRow) -> bool:
    """Whether what happened to the recipe last is that it lost a damaged artifact."""
    return note(conn, f"damaged {recipe.id}") == recipe.generation


def chunks(values: Iterable[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    """`values` in lists of at most so many."""
    chunk: list[Any] = []
    for value in values:
        chunk.append(value)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
