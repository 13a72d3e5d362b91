"""Rows: positions checked as lists are, tables over many artifacts, and memory that grows with neither."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prepcache.artifact.header
import prepcache.batching.table
from prepcache.batching.gather import Rows
from support.artifacts import same
from support.rows import rows_of

COUNT = 12


def sample(i: int) -> dict[str, Any]:
    image = np.random.default_rng(i).integers(0, 255, (3, 32, 32)).astype(np.uint8)
    return {"image": torch.from_numpy(image), "words": np.arange(i % 4), "label": i, "name": f"n{i}"}


@pytest.fixture(params=[1, 5], ids=["one artifact", "five artifacts"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Rows:
    return rows_of(tmp_path, [sample(i) for i in range(COUNT)], request.param)


def labels(samples: Any) -> list[int]:
    return [sample["label"] for sample in samples]


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([3, 1, 3], [3, 1, 3]),
        ([-1, 0, -COUNT], [COUNT - 1, 0, 0]),
        ((2, 5), [2, 5]),
        (range(3), [0, 1, 2]),
        ({5: 0, 2: 0}.keys(), [5, 2]),
        ({7}, [7]),
        ([np.int32(4), np.uint8(2)], [4, 2]),
        ([torch.tensor(4), torch.tensor(-1)], [4, COUNT - 1]),
        (np.array([1, -1], np.int16), [1, COUNT - 1]),
        (np.array([7, 2], np.uint64), [7, 2]),
        (torch.tensor([9, 2]), [9, 2]),
        (np.arange(COUNT) % 5 == 0, [0, 5, 10]),
        (torch.arange(COUNT) > 9, [10, 11]),
        ([], []),
        (np.empty(0), []),
        (torch.zeros(COUNT, dtype=torch.bool), []),
    ],
)
def test_positions_may_be_any_integers_or_a_mask(rows: Rows, indices: Any, expected: list[int]) -> None:
    assert labels(rows.take(indices)) == expected


@pytest.mark.parametrize(
    ("indices", "error"),
    [
        ([COUNT], IndexError),
        ([0, -COUNT - 1], IndexError),
        ([2**70], IndexError),
        ([-(2**63)], IndexError),
        (np.array([2**64 - 1], np.uint64), IndexError),
        (np.ones(COUNT - 1, bool), IndexError),
        ([1.0], TypeError),
        (["1"], TypeError),
        (np.array([0.5]), TypeError),
        ([None], TypeError),
    ],
)
def test_a_position_that_is_none_is_refused(rows: Rows, indices: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        rows.take(indices)


def test_the_message_names_the_position_and_the_size(rows: Rows) -> None:
    with pytest.raises(IndexError, match=f"index 99 is out of range for a data set of {COUNT} samples"):
        rows.take([1, 99, 2])


def test_a_write_into_a_batch_never_reaches_the_cache(rows: Rows) -> None:
    batch = rows.take(range(COUNT))
    for taken in batch:
        taken["image"].zero_()
        taken["words"][...] = -1
    torch.utils.data.default_collate([taken["image"] for taken in rows.take([1, 2])]).fill_(9)
    assert all(same(taken, sample(i)) for i, taken in enumerate(rows.take(range(COUNT))))


def test_an_empty_data_set_has_no_positions() -> None:
    rows = Rows([], np.empty(0, np.int32), np.empty(0, np.int64))
    assert len(rows) == 0
    assert rows.take([]) == []
    with pytest.raises(IndexError):
        rows.take([0])


@pytest.mark.parametrize(
    ("small", "mapped"),
    [(0, 1), (10**9, 10**9), (0, 10**9), (10**9, 1)],
    ids=["mapped", "copied together", "copied one by one", "mapped though small"],
)
@pytest.mark.parametrize("windows", [True, False])
def test_columns_of_many_artifacts_are_read_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, mapped: int, windows: bool
) -> None:
    monkeypatch.setattr(prepcache.batching.table, "SMALL_ROW_BYTES", small)
    for module in (prepcache.batching.table, prepcache.artifact.header):
        monkeypatch.setattr(module, "MAPPED_BYTES", mapped)
    if not windows:
        monkeypatch.setattr(prepcache.batching.table, "_libc", lambda: None)
    samples = [sample(i) for i in range(COUNT)]
    rows = rows_of(tmp_path, samples, 5)
    order = np.random.default_rng(1).permutation(COUNT).tolist()
    assert same(list(rows.take(order)), [samples[i] for i in order])


def test_rows_are_read_where_addresses_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `ulimit -v`: rows are numbered without gaps, and gathered one by one."""
    samples = [sample(i) for i in range(COUNT)]
    whole = mmap.mmap

    def short(fd: int, length: int, **options: int) -> mmap.mmap:
        if length > COUNT * 8:
            raise OSError(errno.ENOMEM, "no addresses")
        return whole(fd, length, **options)

    monkeypatch.setattr(mmap, "mmap", short)
    rows = rows_of(tmp_path, samples, 5)
    assert rows.tables[0].first[-1] == COUNT
    assert same(list(rows.take(range(COUNT))), samples)


def test_large_ragged_rows_are_copied_into_recycled_memory(tmp_path: Path) -> None:
    samples = [np.arange(20_000 + i) for i in range(6)]
    rows = rows_of(tmp_path, samples, 2)
    seen = set()
    for _ in range(5):
        batch = rows.take([5, 0, 3])
        assert same(list(batch), [samples[5], samples[0], samples[3]])
        seen.add(batch.gathered()[0].values.__array_interface__["data"][0])  # type: ignore[union-attr]
        del batch
    assert len(seen) <= 2
