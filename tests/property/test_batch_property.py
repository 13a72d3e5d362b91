"""Batches against torch: what a batch collates to equals what torch makes of the single samples."""

import pickle
from collections import namedtuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import prepcache.collate
from prepcache.batching import collation, lending
from prepcache.batching.collation import default_collate
from prepcache.batching.gather import Batch
from support.artifacts import same
from support.rows import rows_of

Point = namedtuple("Point", "x y")

DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "c8", "c16"]
TORCH = ["float16", "float32", "float64", "bfloat16", "uint8", "int16", "int64", "uint16", "bool"]
TORCH += ["complex64", "float8_e4m3fn"]


def array(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """An array of any dtype, filled from a seed."""
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def tensor(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.from_numpy(array("i8", shape, seed)).to(getattr(torch, dtype))


SHAPES = st.sampled_from([(), (3,), (2, 3), (0,), (2, 0), (40, 40)])
RAGGED = st.sampled_from([1, 2])

# A leaf maker takes the number of a sample and gives its leaf; a schema holds leaf makers.
LEAVES = st.one_of(
    st.builds(lambda d, s: lambda i: array(d, s, i), st.sampled_from(DTYPES), SHAPES),
    st.builds(lambda d, s: lambda i: tensor(d, s, i), st.sampled_from(TORCH), SHAPES),
    st.builds(lambda d: lambda i: array(d, (), i)[()], st.sampled_from(DTYPES[:14])),
    st.builds(
        lambda d, n, m: lambda i: tensor(d, (i % m, *(2,) * (n - 1)), i),
        st.sampled_from(TORCH),
        RAGGED,
        st.integers(1, 4),
    ),
    st.builds(lambda d, m: lambda i: array(d, (i % m,), i), st.sampled_from(DTYPES[:14]), st.integers(1, 4)),
    st.just(lambda i: i - 3),
    st.just(lambda i: i / 7),
    st.just(lambda i: i % 2 == 0),
    st.just(lambda i: "é" * i),
    st.just(lambda i: bytes(range(i))),
    st.just(lambda i: None),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=5,
)


def make(schema: Any, i: int) -> Any:
    """Sample i of a schema."""
    if callable(schema):
        return schema(i)
    if isinstance(schema, dict):
        return type(schema)((key, make(child, i)) for key, child in schema.items())
    children = [make(child, i) for child in schema]
    return Point(*children) if isinstance(schema, Point) else type(schema)(children)


def outcome(function: Any, batch: Any) -> Any:
    """What a function gives, or the type of what it raises."""
    try:
        return function(batch)
    except Exception as error:  # noqa: BLE001 - its type is what is compared
        return type(error)


@given(
    st.lists(SCHEMAS, min_size=1, max_size=2),
    st.integers(1, 3),
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
)
@settings(deadline=None, max_examples=250)
def test_a_batch_is_what_torch_makes_of_its_samples(schemas, parts, picks):
    """Any samples, over any number of artifacts, of one tree or two: equal to the bit, or the same error."""
    samples = [make(schemas[i % len(schemas)], i) for i in range(10)]
    expected = [samples[i] for i in picks]
    with TemporaryDirectory() as folder:
        rows = rows_of(Path(folder), samples, parts)
        assert same(outcome(default_collate, rows.take(picks)), outcome(default_collate, expected))
        assert same(list(rows.take(picks)), expected)
        with patch.multiple(lending, SMALL_BYTES=64), patch.multiple(lending.LENDING, _small_bytes=64):
            # Of one tree: torch stacks two dtypes otherwise in a worker.
            for batch in (expected, rows.take(picks)) if len(schemas) == 1 else ():
                assert same(outcome(sent(default_collate), batch), outcome(default_collate, expected))


def sent(collate: Any) -> Any:
    """Gives what a worker makes of a batch, as its job gets it."""

    def made(batch: Any) -> Any:
        if isinstance(batch, Batch):
            batch.pool = lending.LENDING
        return pickle.loads(pickle.dumps(collation.Lends(collate)(batch)))

    return made


SEQUENCES = st.builds(
    lambda d, kind, m: lambda i: (array if kind else tensor)(d, (i * 7 % m,), i),
    st.sampled_from(["float32", "int64", "uint8", "bool"]),
    st.booleans(),
    st.integers(1, 9),
)


@given(
    st.one_of(SEQUENCES, st.builds(lambda a, b: {"a": a, "b": (b, lambda i: i)}, SEQUENCES, SEQUENCES)),
    st.integers(1, 3),
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.sampled_from(["left", "right"]),
    st.integers(1, 4),
    st.sampled_from([None, "lengths", "mask"]),
)
@settings(deadline=None, max_examples=250)
def test_padding_and_packing_a_batch_equal_those_of_its_samples(schema, parts, picks, side, multiple, also):
    """From columns or from samples, and as a loop over elements would: the same values."""
    samples = [make(schema, i) for i in range(10)]
    chosen = [samples[i] for i in picks]
    pad = prepcache.collate.pad_collate(1, side=side, multiple_of=multiple, also=also)
    with TemporaryDirectory() as folder:
        rows = rows_of(Path(folder), samples, parts)
        assert same(pad(rows.take(picks)), pad(chosen)) and same(sent(pad)(chosen), pad(chosen))
        assert same(sent(pad)(rows.take(picks)), pad(chosen))
        pack = prepcache.collate.pack_collate()
        assert same(pack(rows.take(picks)), pack(chosen))
        if callable(schema):
            values = pad(rows.take(picks)) if also is None else pad(rows.take(picks))[0]
            assert values.tolist() == by_hand([sample.tolist() for sample in chosen], side, multiple)


def by_hand(rows: list[list[Any]], side: str, multiple: int) -> list[list[Any]]:
    """Padding with 1 as one would explain it."""
    width = max(len(row) for row in rows)
    width += -width % multiple
    return [
        [1] * (width - len(row)) + row if side == "left" else row + [1] * (width - len(row)) for row in rows
    ]
