"""Observed inputs in chunks, which the artifacts of a recipe share.

An artifact names all that was read until it was written. Chunk by chunk, each is kept, told and checked once.

Invariants:
    1. A list's chunks, joined, are the list. They depend on its inputs and their order, and on nothing else.
    2. An added input changes the chunk that it comes into and at most those up to the next border: borders
       are where a name says so.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from zlib import crc32

from blake3 import blake3

FEW = 128
"""Inputs that make one chunk in any case, and the mean of others."""
MAX_INPUTS = 8 * FEW
"""Of one chunk."""

Row = Mapping[str, Any]
"""An observed input: its kind, name and digest."""


RANDOM = "random"
"""The kind of a row that names a generator which the function drew from; it is no input."""


def draws_in(rows: Iterable[Row]) -> set[str]:
    return {str(row.get("name")).removeprefix(_DRAW) for row in rows if row.get("kind") == RANDOM}


def with_draws(rows: Collection[Row], drawn: Iterable[str]) -> list[Any]:
    found = [{"kind": RANDOM, "name": _DRAW + name, "digest": ""} for name in sorted(drawn)]
    return in_order({str(row["name"]): row for row in (*rows, *found)}) if found else list(rows)


def draws_text(drawn: Iterable[str]) -> str:
    names = ", ".join(sorted(drawn))
    return f"preprocessed with random draws ({names}), the same in every epoch; move them to transform="


_DRAW = "draws:"


class Chunk(NamedTuple):
    """Some inputs; `name` is the digest of them as text."""

    name: str
    rows: tuple[Row, ...]


def in_order(rows: Mapping[str, Row]) -> list[Any]:
    """Inputs in the order in which they were seen, so that the list grows at its end; few are sorted."""
    return [rows[name] for name in sorted(rows)] if len(rows) <= FEW else list(rows.values())


def chunks_of(rows: Collection[Row]) -> list[Chunk]:
    return [_chunk(some) for some in _cut(rows)]


def text_of(rows: Collection[Row]) -> str:
    """Inputs as the text of which their chunk has its name."""
    return json.dumps(list(rows), sort_keys=True)


def _cut(rows: Collection[Row]) -> Iterator[list[Row]]:
    is_one = len(rows) <= FEW
    some: list[Row] = []
    for row in rows:
        some.append(row)
        name = str(row.get("name")).encode("utf-8", "surrogatepass")
        if not is_one and (crc32(name) % FEW == 0 or len(some) == MAX_INPUTS):
            yield some
            some = []
    if some:
        yield some


def _chunk(rows: list[Row]) -> Chunk:
    return Chunk(blake3(text_of(rows).encode()).hexdigest(), tuple(rows))
