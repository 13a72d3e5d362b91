"""Blocks: rows copied in blocks equal the rows, wherever they lie in their source."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prepcache.data.blocks import REACH_BYTES, Source

LENGTHS = st.lists(
    st.one_of(st.integers(0, 3), st.integers(0, 40), st.integers(0, 700)), min_size=1, max_size=80
)
DTYPES = ["u1", "b1", "<i2", "f4", ">f4", "i8", "c16", "S3", "V5", "i4,u1"]


@given(st.sampled_from(DTYPES), LENGTHS, st.integers(0, 3), st.data())
@settings(deadline=None, max_examples=200)
def test_rows_lie_end_to_end_and_hold_nothing_else(
    dtype: str, lengths: list[int], first: int, data: st.DataObject
) -> None:
    """Any dtype, order and lengths, rows that repeat and overlap, up to the slack's begin."""
    kind = np.dtype(dtype)
    size = max(lengths) + sum(lengths) // 2
    octets = np.random.default_rng(len(lengths)).integers(0, 256, size * kind.itemsize).astype(np.uint8)
    if kind == np.bool_:
        octets &= 1
    slack = np.full((first * kind.itemsize,), 1, np.uint8), np.full(REACH_BYTES, 1, np.uint8)
    whole = np.concatenate([slack[0], octets, slack[1]])
    values = whole[: len(whole) // kind.itemsize * kind.itemsize].view(kind)
    begin = np.array([data.draw(st.integers(0, size - length)) for length in lengths], np.int64)
    offsets = np.array([0, *np.cumsum(lengths)], np.int64)
    if offsets[-1] * kind.itemsize > REACH_BYTES * len(lengths):
        return
    made: Any = Source(values, first).end_to_end(begin, offsets)
    rows = [values[first + at :][:length] for at, length in zip(begin.tolist(), lengths, strict=True)]
    assert made.dtype == kind
    assert made.flags.writeable
    assert not np.may_share_memory(made, values)
    assert made.tobytes() == b"".join(row.tobytes() for row in rows)
