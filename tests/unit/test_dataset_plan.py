"""Distinct items: found in item tables whatever their order, with duplicates numbered once."""

from __future__ import annotations

import numpy as np

from prepcache.index.item_index import MISSING, Distinct, Places, rows_of


def digests(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32), dtype="u1")


def test_equal_items_are_numbered_once_in_order() -> None:
    three = digests(3)
    distinct = Distinct(three[[2, 0, 2, 1, 0]])
    assert len(distinct) == 3
    assert distinct.inverse.tolist() == [0, 1, 0, 2, 1]
    assert distinct.first.tolist() == [0, 1, 3]
    assert (distinct.digests == three[[2, 0, 1]]).all()
    assert distinct.find(three).tolist() == [1, 2, 0]


def test_digests_that_share_their_first_bytes_are_told_apart() -> None:
    own = digests(40)
    own[:20, :8] = 7
    twice = np.concatenate([own, own[::-1]])
    distinct = Distinct(twice)
    assert len(distinct) == 40
    assert (distinct.find(own) == np.arange(40)).all()
    stranger = own[:1].copy()
    stranger[0, 31] ^= 1
    assert distinct.find(stranger).tolist() == [MISSING]


def test_expanded_rows_follow_the_order_of_the_data_set() -> None:
    places = Places(np.array([1, 0, -1], "i4"), np.array([5, 2, 0], "i8"), np.array([3, 2, 4], "i8"), {})
    slots, rows = rows_of(np.array([1, 0, 2, 1]), places)
    assert slots.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert rows.tolist() == [2, 3, 5, 6, 7, 2, 3]


def test_an_item_that_spans_artifacts_has_its_rows_in_order() -> None:
    chains = {1: ((4, 0, 2), (3, 7, 1))}
    places = Places(np.array([0, 4], "i4"), np.array([9, 0], "i8"), np.array([1, 3], "i8"), chains)
    slots, rows = rows_of(np.array([1, 0]), places)
    assert list(zip(slots.tolist(), rows.tolist(), strict=True)) == [(4, 0), (4, 1), (3, 7), (0, 9)]
