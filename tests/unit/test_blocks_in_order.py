"""Samples one after the other: in blocks that are bounded by bytes, large and missing ones by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache import artifact
from prepcache.index.item_index import MISSING, Array
from prepcache.index.snapshot import BLOCK_BYTES, BLOCK_ROWS, given
from support.artifacts import write


class Sized:
    """A view of samples of these sizes, of which some are not there."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = np.array(sizes, "i8")
        self.took: list[list[int]] = []
        self.alone: list[list[int]] = []
        self.asked: list[int] = []

    def positions_of(self, items: Array) -> Array:
        return items

    def sizes(self, positions: Array) -> Array:
        return self._sizes[positions]

    def take(self, indices: list[int], make: Any) -> list[int]:
        absent = [at for at in indices if self._sizes[at] < 0]
        self.asked += absent
        (self.alone if absent or len(indices) == 1 else self.took).append(indices)
        return indices


@pytest.mark.parametrize(
    "sizes",
    [
        [8] * 10_000,
        [0] * 200,
        [BLOCK_BYTES // 3] * 50,
        [8, BLOCK_BYTES + 1, 8, 8, BLOCK_BYTES * 9, BLOCK_BYTES],
        [8, MISSING, 8, 8, MISSING, MISSING],
        [8] * 70 + [BLOCK_BYTES // 2] * 7 + [MISSING] * 3 + [8] * 70,
        [],
    ],
)
def test_blocks_come_in_order_and_within_their_bound(sizes: list[int]) -> None:
    view: Any = Sized(sizes)
    assert list(given(np.arange(len(sizes)), lambda: view, dict)) == [*range(len(sizes))]
    for block in view.took:
        assert 1 < len(block) <= BLOCK_ROWS and sum(sizes[i] for i in block) <= BLOCK_BYTES
        assert all(sizes[i] >= 0 for i in block)
    assert all(len(block) == 1 for block in view.alone)
    if sizes == [8] * len(sizes) and sizes:
        assert len(view.took) <= len(sizes) / BLOCK_ROWS + 3, "small ones go together"


def test_what_is_missing_is_made_when_its_turn_comes() -> None:
    view: Any = Sized([8, 8, MISSING, 8])
    samples = given(np.arange(4), lambda: view, dict)
    assert [next(samples), next(samples), view.asked] == [0, 1, []]
    assert next(samples) == 2 and view.asked == [2]


def test_an_artifact_knows_what_its_rows_hold(tmp_path: Path) -> None:
    samples: list[Any] = [
        np.zeros(3, "f4"), np.zeros(5, "f4"), {"x": np.zeros((2, 2)), "n": 1, "t": "text", "none": None},
        np.zeros(0, "f4"), {"x": np.zeros((4, 2)), "n": 2, "t": "", "none": None}, b"bytes",
    ]  # fmt: skip
    write(tmp_path / "a", samples)
    found = artifact.open(tmp_path / "a")
    assert found.row_bytes(np.array([0, 1, 2, 3, 4, 5])).tolist() == [12, 20, 32 + 8 + 4, 0, 64 + 8, 5]
    assert found.row_bytes(np.array([4, 0])).tolist() == [72, 12]
