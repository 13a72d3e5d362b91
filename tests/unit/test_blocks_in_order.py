"""Samples one after the other: in blocks of bounded size, and one by one as long as any is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prepcache.index.item_index import Array
from prepcache.index.snapshot import BLOCK_BYTES, BLOCK_ROWS, View, given


class Taken(View):
    """A view of samples of one size, of which all are there or not."""

    def __init__(self, size: int, is_whole: bool) -> None:
        self._artifacts = [type("", (), {"rows": 10, "size_bytes": 10 * size})]
        self.is_whole = is_whole
        self.took: list[list[int]] = []

    def positions_of(self, items: Array) -> Array:
        return items

    def take(self, indices: list[int], make: Any) -> list[int]:
        self.took.append(indices)
        return indices


@pytest.mark.parametrize(
    ("size", "is_whole", "together"),
    [(8, True, BLOCK_ROWS), (BLOCK_BYTES // 3, True, 3), (BLOCK_BYTES * 9, True, 1), (8, False, 1)],
)
def test_blocks_come_in_order_and_within_their_bound(size: int, is_whole: bool, together: int) -> None:
    view: Any = Taken(size, is_whole)
    assert list(given(np.arange(200), lambda: view, dict)) == [*range(200)]
    assert {len(block) for block in view.took[:-1]} == {together}
    assert list(given(np.arange(0), lambda: view, dict)) == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_block_costs_no_look_at_each_artifact(is_whole: bool) -> None:
    """What does not change is found once, and not at all where samples come one by one."""
    asked: list[str] = []

    class Artifact:
        def __getattr__(self, name: str) -> int:
            asked.append(name)
            return BLOCK_BYTES

    view: Any = Taken(1, is_whole)
    view._artifacts = [Artifact()]
    assert list(given(np.arange(200), lambda: view, dict)) == [*range(200)]
    assert len(view.took) > 1 and len(asked) == 2 * is_whole


def test_what_is_missing_is_made_when_its_turn_comes() -> None:
    view: Any = Taken(8, False)
    samples = given(np.arange(4), lambda: view, dict)
    assert [next(samples), next(samples)] == [0, 1] and view.took == [[0], [1]]
