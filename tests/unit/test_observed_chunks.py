"""Lists of observed inputs in chunks: the same list, cut where names say so."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepcache.index.artifact_set import ArtifactSet
from prepcache.protocol import wire
from prepcache.protocol.observed import FEW, MAX_INPUTS, Row, chunks_of, in_order


def row(name: object, digest: str = "aa") -> Row:
    return {"kind": "file", "name": f"project:masks/{name}.png", "digest": digest}


def names(rows: list[Row]) -> list[str]:
    return [chunk.name for chunk in chunks_of(rows)]


@given(st.integers(0, 3000), st.integers(0, 9))
def test_chunks_joined_are_the_list(count, seed):
    rows = [row(number) for number in random.Random(seed).sample(range(10**6), count)]
    chunks = chunks_of(rows)
    assert [one for chunk in chunks for one in chunk.rows] == rows
    assert all(0 < len(chunk.rows) <= MAX_INPUTS for chunk in chunks)
    assert len(chunks) == 1 if 0 < count <= FEW else len(chunks) <= count


def test_a_list_that_grows_keeps_its_chunks():
    rows = [row(number) for number in range(20_000)]
    before, after = names(rows[:15_000]), names(rows)
    assert before[:-1] == after[: len(before) - 1] and len(after) > len(before)
    assert 20_000 / FEW / 2 < len(after) < 20_000 / FEW * 2


@pytest.mark.parametrize("place", [0, 3333, 9999])
def test_one_input_changes_its_chunk_alone(place):
    rows = [row(number) for number in range(10_000)]
    more = [*rows[:place], row("another"), *rows[place:]]
    other = [*rows[:place], row(place, "bb"), *rows[place + 1 :]]
    for changed in (more, other):
        assert len(set(names(changed)) - set(names(rows))) <= 2


def test_a_name_that_is_no_utf_8_is_one_like_others():
    rows = [row(f"{number} \udcff\udc80") for number in range(1000)]
    assert [one for chunk in chunks_of(rows) for one in chunk.rows] == rows and len(chunks_of(rows)) > 1


def test_inputs_without_a_border_are_cut_all_the_same():
    rows = [row("same", f"{number:02}") for number in range(5 * MAX_INPUTS)]
    assert [len(chunk.rows) for chunk in chunks_of(rows)] == [MAX_INPUTS] * 5


def test_few_inputs_are_one_list_and_many_grow_at_the_end():
    few = {str(number): row(number) for number in random.Random(1).sample(range(1000), FEW)}
    assert in_order(few) == in_order(dict(reversed(few.items())))
    many = few | {"a": row("a")}
    assert in_order(many) == list(many.values())


def test_an_artifact_without_its_observed_inputs_is_a_miss():
    """A session without methods: the artifact is not even looked for."""
    ref = wire.ArtifactRef("ab" * 32, "cd" * 32, 1, 1, 1, 1.0, ("ef" * 32,))
    for observed in ({}, {"ab" * 32: ()}):
        nobody: Any = SimpleNamespace(observed=observed)
        assert ArtifactSet._open(nobody, ref, {}) is None
