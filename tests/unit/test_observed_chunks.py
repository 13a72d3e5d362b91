"""Lists of observed inputs in chunks: the same list, cut by their number."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from prepcache.index.artifact_set import ArtifactSet
from prepcache.protocol import wire
from prepcache.protocol.wire import CHUNK_INPUTS, Row, chunks_of, in_order


def row(name: object, digest: str = "aa") -> Row:
    return {"kind": "file", "name": f"project:masks/{name}.png", "digest": digest}


def names(rows: list[Row]) -> list[str]:
    return [chunk.name for chunk in chunks_of(rows)]


@pytest.mark.parametrize("count", [0, 1, CHUNK_INPUTS, CHUNK_INPUTS + 1, 3000])
def test_chunks_joined_are_the_list(count):
    rows = [row(f"{number} \udcff\udc80") for number in range(count)]
    chunks = chunks_of(rows)
    assert [one for chunk in chunks for one in chunk.rows] == rows
    assert len(chunks) == -(-count // CHUNK_INPUTS)


def test_a_list_that_grows_keeps_its_chunks():
    rows = [row(number) for number in range(20_000)]
    before, after = names(rows[:15_000]), names(rows)
    assert before[:-1] == after[: len(before) - 1] and len(after) > len(before)


def test_a_changed_input_changes_its_chunk_alone():
    rows = [row(number) for number in range(10_000)]
    assert len(set(names([*rows[:3333], row(3333, "bb"), *rows[3334:]])) - set(names(rows))) == 1


def test_few_inputs_are_one_list_and_many_grow_at_the_end():
    few = {str(number): row(number) for number in random.Random(1).sample(range(1000), CHUNK_INPUTS)}
    assert in_order(few) == in_order(dict(reversed(few.items())))
    many = few | {"a": row("a")}
    assert in_order(many) == list(many.values())


def test_an_artifact_without_its_observed_inputs_is_a_miss():
    """A session without methods: the artifact is not even looked for."""
    ref = wire.ArtifactRef("ab" * 32, "cd" * 32, 1, 1, 1, 1.0, ("ef" * 32,))
    for observed in ({}, {"ab" * 32: ()}):
        nobody: Any = SimpleNamespace(observed=observed)
        assert ArtifactSet._open(nobody, ref, {}) is None
