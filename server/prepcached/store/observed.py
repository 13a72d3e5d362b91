"""What artifacts observed, in the index: chunks of inputs, which the artifacts of a recipe share.

Invariants:
    1. `artifacts.observed` names the chunks of its list, in order, by their ids ("3,17"): of one recipe,
       equal lists are equal texts.
    2. A chunk is there as long as an artifact names it. It goes when new ones of its recipe come, or with
       the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from prepcache.artifact.header import unpack_observed
from prepcache.digests import Digest
from prepcache.protocol.observed import chunks_of, text_of
from prepcached.store.models import artifacts, observed

NAME_BYTES = 68
"""Of a chunk's name in an answer."""

Chunks = dict[str, tuple[Mapping[str, Any], ...]]
"""Chunks of inputs by their names."""


def keep(conn: sa.Connection, recipe_id: int, lists: Iterable[str]) -> dict[str, str]:
    """Keeps lists of inputs, as artifacts have them, for rows to be added; what the rows name each by.

    Raises:
        ValueError: a list is malformed.
    """
    cut = {packed: chunks_of(unpack_observed(packed)) for packed in dict.fromkeys(lists)}
    wanted = {chunk.name: chunk for chunks in cut.values() for chunk in chunks}
    ids = _ids(conn, recipe_id)
    new = [chunk for name, chunk in wanted.items() if name not in ids]
    if new:
        _sweep(conn, recipe_id, {ids[name] for name in wanted if name in ids})
        rows = [
            {"recipe_id": recipe_id, "digest": bytes.fromhex(chunk.name), "json": text_of(chunk.rows)}
            for chunk in new
        ]
        conn.execute(observed.insert(), rows)
        ids = _ids(conn, recipe_id)
    return {packed: ",".join(str(ids[chunk.name]) for chunk in chunks) for packed, chunks in cut.items()}


def read(
    conn: sa.Connection, lists: Iterable[str | None]
) -> tuple[dict[str | None, tuple[Digest, ...]], Chunks]:
    """The names of the chunks of lists, by what rows name these by, and the chunks."""
    names: dict[str | None, tuple[Digest, ...]] = {None: ()}
    distinct = {text for text in lists if text}
    if not distinct:
        return names, {}
    found: dict[str, Digest] = {}
    chunks: Chunks = {}
    numbers = {int(number) for text in distinct for number in text.split(",")}
    wanted = sa.func.json_each(json.dumps(sorted(numbers))).table_valued("value")
    for row in conn.execute(sa.select(observed).where(observed.c.id.in_(sa.select(wanted.c.value)))):
        name = found[str(row.id)] = Digest(row.digest.hex())
        chunks[name] = tuple(json.loads(row.json))
    names |= {text: tuple(found[number] for number in text.split(",")) for text in distinct}
    return names, chunks


def size_bytes(conn: sa.Connection, recipe_id: int) -> int:
    """What a recipe's chunks come to in an answer, each once, and their names, for each artifact."""
    size = sa.func.sum(sa.func.length(observed.c.json))
    chunks = conn.execute(sa.select(size).where(observed.c.recipe_id == recipe_id)).scalar_one()
    ids = artifacts.c.observed
    names = sa.func.sum(sa.func.length(ids) - sa.func.length(sa.func.replace(ids, ",", "")) + 1)
    named = sa.select(names).where(artifacts.c.recipe_id == recipe_id)
    return int(chunks or 0) + NAME_BYTES * int(conn.execute(named).scalar_one() or 0)


def _ids(conn: sa.Connection, recipe_id: int) -> dict[str, int]:
    statement = sa.select(observed.c.digest, observed.c.id).where(observed.c.recipe_id == recipe_id)
    return {digest.hex(): number for digest, number in conn.execute(statement)}


def _sweep(conn: sa.Connection, recipe_id: int, kept: Collection[int]) -> None:
    """Deletes the chunks of a recipe that no artifact names, but for some."""
    lists = sa.select(artifacts.c.observed).distinct()
    lists = lists.where(artifacts.c.recipe_id == recipe_id, artifacts.c.observed.is_not(None))
    used = {int(number) for text in conn.execute(lists).scalars() for number in text.split(",")}
    idle = set(_ids(conn, recipe_id).values()) - used - set(kept)
    if idle:
        conn.execute(observed.delete().where(observed.c.id == sa.bindparam("n")), [{"n": n} for n in idle])
