"""The index's queries: each one statement or a few, on a connection that the caller got from `Index`.

Rows stay rows here: nothing keeps a Python object per entry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from prepcache.artifact.header import unpack_observed
from prepcache.digests import Digest, Key
from prepcache.protocol.wire import ArtifactRef, Chunk, chunks_of, text_of
from prepcached.store import scopes
from prepcached.store.db import artifacts, doomed, notes, observed, producers, recipes

CHUNK = 500
"""Values in one IN (...) list; SQLite allows 32,766 in a statement."""
Chunks = dict[str, tuple[Mapping[str, Any], ...]]
"""Chunks of inputs by their names."""

T = TypeVar("T")
Where = sa.TextClause | sa.ColumnElement[bool]
_IS_UNPINNED = sa.text("artifacts.is_pinned = 0")


class RecipeRow(NamedTuple):
    id: int
    name: str
    generation: int
    removed_generation: int


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
    created_at: float
    used_at: float


_RECIPE = sa.select(*(recipes.c[name] for name in RecipeRow._fields))
_DOOMABLE = sa.select(*(artifacts.c[name] for name in Doomable._fields))


# Recipes


def is_recipe(recipe: str) -> sa.ColumnElement[bool]:
    digest, scope = scopes.split(recipe)
    return sa.and_(recipes.c.digest == digest, recipes.c.scope == scope)


def recipe(conn: sa.Connection, recipe: str) -> RecipeRow | None:
    row = conn.execute(_RECIPE.where(is_recipe(recipe))).one_or_none()
    return None if row is None else RecipeRow(*row)


def add_recipe(
    conn: sa.Connection, recipe: str, name: str, now: float, parts: bytes | None = None
) -> RecipeRow:
    """The recipe's row, made if absent, and given the parts if it has none; a generation starts where no
    client can have been yet."""
    base = note(conn, "generation_base")
    digest, scope = scopes.split(recipe)
    values = {"digest": digest, "scope": scope, "name": name, "generation": base, "removed_generation": base}
    statement = insert(recipes).values({**values, "created_at": now, "parts": parts})
    of = [recipes.c.digest, recipes.c.scope]
    if parts is None:
        conn.execute(statement.on_conflict_do_nothing(of))
    else:
        given = {"name": name, "created_at": now, "parts": parts}
        conn.execute(statement.on_conflict_do_update(of, set_=given, where=recipes.c.parts.is_(None)))
    return RecipeRow(*conn.execute(_RECIPE.where(is_recipe(recipe))).one())


def has_parts(conn: sa.Connection, recipe: str) -> bool:
    statement = sa.select(recipes.c.id).where(is_recipe(recipe), recipes.c.parts.is_not(None))
    return conn.execute(statement).first() is not None


def drop_idle_recipes(conn: sa.Connection, before: float) -> None:
    """Forgets recipes without artifacts that were registered before; generations start beyond theirs from now
    on."""
    has_any = sa.exists().where(artifacts.c.recipe_id == recipes.c.id)
    dropped = recipes.delete().where(recipes.c.created_at < before, ~has_any)
    gone = conn.execute(dropped.returning(recipes.c.id, recipes.c.generation)).all()
    for chunk in chunks(recipe_id for recipe_id, _ in gone):
        conn.execute(observed.delete().where(observed.c.recipe_id.in_(chunk)))
    highest = max((generation for _, generation in gone), default=-1)
    set_note(conn, "generation_base", max(note(conn, "generation_base"), highest + 1))


def raise_generation(conn: sa.Connection, recipe_id: int, *, is_removal: bool) -> int:
    values: dict[str, Any] = {"generation": recipes.c.generation + 1}
    if is_removal:
        values["removed_generation"] = recipes.c.generation + 1
    statement = recipes.update().where(recipes.c.id == recipe_id).values(values)
    return int(conn.execute(statement.returning(recipes.c.generation)).scalar_one())


def generation_of(conn: sa.Connection, digest: bytes) -> int:
    """The generation with which an artifact came; 0 where it is not there."""
    found = sa.select(artifacts.c.generation).where(artifacts.c.digest == digest)
    return conn.execute(found).scalar() or 0


# Artifacts

_RESOLVE = (
    sa.select(
        *(artifacts.c[name] for name in ("key", "digest", "size_bytes", "items", "rows", "cost_s")),
        *(artifacts.c[name] for name in ("observed", "edition", "disk_bytes", "is_pinned")),
    )
    .where(artifacts.c.recipe_id == sa.bindparam("recipe_id"))
    .where(artifacts.c.generation > sa.bindparam("since"))
    .order_by(artifacts.c.generation, artifacts.c.id)
)


def of_recipe(
    conn: sa.Connection, recipe_id: int, since: int
) -> tuple[list[ArtifactRef], Chunks, list[tuple[bytes, int, bool]]]:
    """A recipe's artifacts newer than a generation, the chunks of inputs that they name, and of each (digest,
    bytes on disk, is pinned)."""
    refs, found = [], []
    answer = conn.execute(_RESOLVE, {"recipe_id": recipe_id, "since": since}).all()
    names, chunks = read_observed(conn, recipe_id, (row.observed for row in answer))
    for key, digest, size, items, rows, cost_s, seen, edition, disk, is_pinned in answer:
        ids = Key(key.hex()), Digest(digest.hex())
        refs.append(ArtifactRef(*ids, size, items, rows, cost_s, names[seen], edition))
        found.append((digest, disk, is_pinned))
    return refs, chunks, found


def doomable_in(
    conn: sa.Connection, column: sa.Column[Any], values: Iterable[Any], *where: Where
) -> list[Doomable]:
    rows: list[Doomable] = []
    for chunk in chunks(values):
        rows += map(Doomable._make, conn.execute(_DOOMABLE.where(column.in_(chunk), *where)))
    return rows


def after(
    conn: sa.Connection, row_id: int, limit: int, *where: Where, used_at: float | None = None
) -> list[Doomable]:
    """The next rows with higher ids; with `used_at` the next unpinned ones after this time of use and id,
    least recently used first. So millions are walked through in bounded memory."""
    statement = _DOOMABLE.where(*where).limit(limit)
    if used_at is None:
        statement = statement.where(artifacts.c.id > row_id).order_by(artifacts.c.id)
    else:
        by_use = artifacts.c.used_at, artifacts.c.id
        statement = statement.where(_IS_UNPINNED, sa.tuple_(*by_use) > (used_at, row_id)).order_by(*by_use)
    return [Doomable(*row) for row in conn.execute(statement)]


def coldest(conn: sa.Connection, owner: int | None = None) -> Iterator[Doomable]:
    """Unpinned entries, of one owner or of all, least recently used first; read as far as it is consumed."""
    of = [] if owner is None else [artifacts.c.owner == owner]
    statement = _DOOMABLE.where(_IS_UNPINNED, *of).order_by(artifacts.c.used_at)
    with conn.execute(statement.execution_options(stream_results=True, yield_per=256)) as result:
        for row in result:
            yield Doomable(*row)


def coldest_used_at(conn: sa.Connection) -> float | None:
    statement = sa.select(artifacts.c.used_at).where(_IS_UNPINNED).order_by(artifacts.c.used_at).limit(1)
    return conn.execute(statement).scalar_one_or_none()


def latest_used_at(conn: sa.Connection) -> float | None:
    """Of a clock that was set back it lies ahead."""
    latest: float | None = conn.execute(sa.select(sa.func.max(artifacts.c.used_at))).scalar_one()
    return latest


def add_artifacts(conn: sa.Connection, rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Inserts rows (values, producer), at most CHUNK; a doomed digest is spared."""
    if not rows:
        return
    texts = [json.dumps(producer, sort_keys=True, default=str) for _, producer in rows]
    distinct = list(dict.fromkeys(texts))
    conn.execute(producers.insert().prefix_with("OR IGNORE"), [{"json": text} for text in distinct])
    known = sa.select(producers.c.json, producers.c.id).where(producers.c.json.in_(distinct))
    ids = {text: producer_id for text, producer_id in conn.execute(known)}  # noqa: C416
    spare(conn, [values["digest"] for values, _ in rows])
    lists = {values["observed"] for values, _ in rows if values["observed"]}
    cut = {None: [], **{packed: chunks_of(unpack_observed(packed)) for packed in lists}}
    names = {packed: ",".join(chunk.name for chunk in its) or None for packed, its in cut.items()}
    new = [
        {**values, "observed": names[values["observed"]], "producer_id": ids[text]}
        for (values, _), text in zip(rows, texts, strict=True)
    ]
    conn.execute(artifacts.insert(), new)
    for recipe_id, packed in {(values["recipe_id"], values["observed"]) for values, _ in rows}:
        _keep_observed(conn, recipe_id, cut[packed])


def delete(conn: sa.Connection, rows: Sequence[Doomable]) -> None:
    """Deletes rows, dooms their files, and raises the generations of the recipes that lost one."""
    for chunk in chunks(rows):
        doom(conn, [row.digest for row in chunk])
        conn.execute(artifacts.delete().where(artifacts.c.id.in_([row.id for row in chunk])))
    for recipe_id in sorted({row.recipe_id for row in rows}):
        raise_generation(conn, recipe_id, is_removal=True)


def doom(conn: sa.Connection, digests: Iterable[bytes]) -> None:
    """Notes that files are to be unlinked."""
    for chunk in chunks(digests):
        conn.execute(doomed.insert().prefix_with("OR IGNORE"), [{"digest": digest} for digest in chunk])


def doomed_digests(conn: sa.Connection) -> list[bytes]:
    """What is to be unlinked; what has a row is not, whatever became of its doom."""
    has_row = sa.exists().where(artifacts.c.digest == doomed.c.digest)
    return list(conn.execute(sa.select(doomed.c.digest).where(~has_row)).scalars())


def spare(conn: sa.Connection, digests: Iterable[bytes]) -> None:
    """Forgets doomed digests: their files are gone, or have rows."""
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
    """Brings the latest time of use back to now where it lies ahead, and all others by as much: what a clock
    that was ahead left would stay the warmest, and alone brought back would lose its order."""
    latest = latest_used_at(conn)
    if latest is not None and latest > now:
        conn.execute(artifacts.update().values(used_at=artifacts.c.used_at - (latest - now)))


def digests_in(conn: sa.Connection, prefixes: Sequence[str]) -> list[set[str]]:
    """Hex digests of all rows, by their first two digits: one row each, for there may be many."""
    ends = [end for low in map(bytes.fromhex, prefixes) for end in (low, low + b"\xff" * 32)]
    found = conn.exec_driver_sql(
        "SELECT (SELECT lower(group_concat(hex(digest), ' ')) FROM artifacts "
        "WHERE digest BETWEEN column1 AND column2) "
        f"FROM (VALUES {', '.join(['(?, ?)'] * len(prefixes))})",
        tuple(ends),
    )
    return [set((text or "").split()) for text in found.scalars()]


# What artifacts observed
#
# Chunks of inputs, which the artifacts of a recipe share: `artifacts.observed` names those of its list, in
# order, so equal lists are equal texts. A chunk is there while an artifact of its recipe names it. It goes
# when new ones of its recipe come, or with the recipe.


def _keep_observed(conn: sa.Connection, recipe_id: int, cut: Sequence[Chunk]) -> None:
    """Keeps what an artifact that was just added observed; what no artifact names any more goes."""
    there = {digest.hex() for digest in conn.execute(_chunks_of(recipe_id)).scalars()}
    new = [
        {"recipe_id": recipe_id, "digest": bytes.fromhex(name), "json": text_of(rows)}
        for name, rows in dict(cut).items()
        if name not in there
    ]
    if not new:
        return
    lists = sa.select(artifacts.c.observed).where(artifacts.c.recipe_id == recipe_id).distinct()
    named = {name for text in conn.execute(lists).scalars() if text for name in text.split(",")}
    for chunk in chunks(bytes.fromhex(name) for name in there - named):
        of_recipe = observed.c.recipe_id == recipe_id
        conn.execute(observed.delete().where(of_recipe, observed.c.digest.in_(chunk)))
    conn.execute(observed.insert(), new)


def _chunks_of(recipe_id: int) -> sa.Select[Any]:
    return sa.select(observed.c.digest).where(observed.c.recipe_id == recipe_id)


def read_observed(
    conn: sa.Connection, recipe_id: int, lists: Iterable[str | None]
) -> tuple[dict[str | None, tuple[Digest, ...]], Chunks]:
    """The names of the chunks of lists, by what rows name these by, and the chunks."""
    names = {text: tuple(map(Digest, text.split(",") if text else ())) for text in lists}
    found: Chunks = {}
    for some in chunks({bytes.fromhex(name) for its in names.values() for name in its}):
        rows = _chunks_of(recipe_id).add_columns(observed.c.json).where(observed.c.digest.in_(some))
        found |= {Digest(digest.hex()): tuple(json.loads(text)) for digest, text in conn.execute(rows)}
    return names, found


def observed_bytes(conn: sa.Connection, recipe_id: int) -> int:
    """What a recipe's chunks come to in an answer, each once, and their names, for each artifact."""
    sums = (
        sa.select(sa.func.sum(sa.func.length(column))).where(table.c.recipe_id == recipe_id)
        for table, column in ((observed, observed.c.json), (artifacts, artifacts.c.observed))
    )
    return sum(conn.execute(one).scalar_one() or 0 for one in sums)


# Sums and notes


def totals(conn: sa.Connection) -> tuple[int, int, int, int, float]:
    """Entries, their bytes, those on disk, those of pinned ones, and seconds of work."""
    statement = sa.text(
        "SELECT count(*), sum(size_bytes), sum(disk_bytes), sum(disk_bytes * is_pinned), sum(cost_s) "
        "FROM artifacts"
    )
    entries, size_bytes, live_bytes, pinned_bytes, cost_s = (n or 0 for n in conn.execute(statement).one())
    return entries, size_bytes, live_bytes, pinned_bytes, cost_s


def owner_bytes(conn: sa.Connection) -> Counter[int]:
    sums = sa.select(artifacts.c.owner, sa.func.sum(artifacts.c.disk_bytes)).group_by(artifacts.c.owner)
    return Counter({row[0]: row[1] for row in conn.execute(sums)})


def note(conn: sa.Connection, name: str) -> int:
    """A number that the store remembers; 0 at first."""
    return conn.execute(sa.select(notes.c.value).where(notes.c.name == name)).scalar_one_or_none() or 0


def set_note(conn: sa.Connection, name: str, value: int) -> None:
    conn.execute(notes.insert().prefix_with("OR REPLACE"), {"name": name, "value": value})


def chunks(values: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """`values` in lists of at most so many."""
    chunk: list[T] = []
    for value in values:
        chunk.append(value)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
