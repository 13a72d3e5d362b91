"""Observed inputs in chunks, which the artifacts of a recipe share.

An artifact names all that was read until it was written, in a list that grows at its end. So each chunk
is kept, sent and checked once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from blake3 import blake3

CHUNK_INPUTS = 128  # inputs of one chunk
RANDOM = "random"  # the kind of a row that names a generator which the function drew from; it is no input
_DRAW = "draws:"
GENERATORS = frozenset(
    {
        "random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState",
        "numpy.random.bit_generator.BitGenerator", "torch._C.Generator",
    }
)  # fmt: skip

Row = Mapping[str, Any]  # an observed input: its kind, name and digest


class Chunk(NamedTuple):
    name: str
    rows: tuple[Row, ...]


def draws_in(rows: Iterable[Row]) -> set[str]:
    return {str(row.get("name")).removeprefix(_DRAW) for row in rows if row.get("kind") == RANDOM}


def with_draws(rows: Collection[Row], drawn: Iterable[str]) -> list[Any]:
    found = [{"kind": RANDOM, "name": _DRAW + name, "digest": ""} for name in sorted(drawn)]
    return in_order({str(row["name"]): row for row in (*rows, *found)}) if found else list(rows)


def draws_text(drawn: Iterable[str]) -> str:
    names = ", ".join(sorted(drawn))
    return f"preprocessed with random draws ({names}), the same in every epoch; move them to transform="


def in_order(rows: Mapping[str, Row]) -> list[Any]:
    """Inputs in the order in which they were seen; those of a single chunk are sorted."""
    return [rows[name] for name in sorted(rows)] if len(rows) <= CHUNK_INPUTS else list(rows.values())


def chunks_of(rows: Iterable[Row]) -> list[Chunk]:
    left = iter(rows)
    pieces = iter(lambda: tuple(islice(left, CHUNK_INPUTS)), ())
    return [Chunk(blake3(text_of(some).encode()).hexdigest(), some) for some in pieces]


def text_of(rows: Collection[Row]) -> str:
    """Inputs as the text of which their chunk has its name."""
    return json.dumps(list(rows), sort_keys=True)
