"""The reader: item tables, copies and views, lifetimes, processes, bounds."""

from __future__ import annotations

import gc
import math
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepcache import artifact
from prepcache.digests import entry_key
from support.artifacts import RECIPE, digest, samples_of, write, write_items
from support.leaks import Leaks


def _maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_the_item_table_says_which_rows_are_whose(tmp_path: Path) -> None:
    items: list[list[Any]] = [[], [1, 2, 3], [], [4], []]
    written = write_items(tmp_path / "a", items, first=7)
    found = artifact.open(tmp_path / "a")
    assert (found.items, found.rows, found.cost_s) == (5, 4, sum(range(7, 12)))
    assert found.row_count.tolist() == [0, 3, 0, 1, 0]
    assert found.first_row.tolist() == [0, 0, 3, 3, 4]
    assert [bytes(row) for row in found.item_digests] == [digest(n) for n in range(7, 12)]
    assert found.item_cost.tolist() == [7.0, 8.0, 9.0, 10.0, 11.0]
    assert samples_of(found) == [1, 2, 3, 4]
    assert found.key == written.key == entry_key(RECIPE, b"".join(digest(n) for n in range(7, 12)))
    assert written == artifact.Written(found.key, (tmp_path / "a").stat().st_size, 5, 4, found.cost_s)


@pytest.mark.parametrize("items", [[], [[]], [[], [], []]], ids=len)
def test_an_artifact_without_rows_opens(tmp_path: Path, items: list[list[Any]]) -> None:
    write_items(tmp_path / "a", items)
    found = artifact.open(tmp_path / "a")
    assert (found.items, found.rows, found.groups) == (len(items), 0, [])
    with pytest.raises(IndexError):
        found.sample(0)


@pytest.mark.parametrize("cost", [-1.0, math.nan, math.inf, 0.0])
def test_a_cost_that_is_none_counts_nothing(tmp_path: Path, cost: float) -> None:
    """A clock that went back does not spoil the artifact."""
    writer = artifact.Writer(RECIPE)
    writer.add(digest(1), [1], cost)
    with open(tmp_path / "a", "wb") as file:
        assert writer.write(file, producer={}).cost_s == 0.0
    assert artifact.open(tmp_path / "a").cost_s == 0.0


def test_copies_are_the_callers(tmp_path: Path) -> None:
    write(tmp_path / "a", [(torch.zeros(3), np.zeros(3), torch.zeros(()), np.zeros((), ">f4"))])
    found = artifact.open(tmp_path / "a")
    for leaf in found.sample(0):
        leaf[...] = 1
    assert all(leaf.sum() == 0 for leaf in found.sample(0))


def test_the_map_lives_as_long_as_its_last_column(tmp_path: Path) -> None:
    """Columns refuse writes, and outlive the Artifact and the file's name; with the last one the map goes."""
    path = tmp_path / "a"
    write(path, [torch.arange(5), torch.arange(5, 10)])
    found = artifact.open(path)
    values = found.groups[0].columns[0].values
    with pytest.raises(ValueError, match="read-only"):
        values[0, 0] = 5
    path.unlink()
    del found
    gc.collect()
    assert _maps_of(path) == 1
    assert values[1].tolist() == [5, 6, 7, 8, 9]
    del values
    gc.collect()
    assert _maps_of(path) == 0


def test_maps_hold_no_descriptors(tmp_path: Path) -> None:
    """A thousand artifacts fit in a process that may have a thousand descriptors."""
    write(tmp_path / "a", [torch.zeros(3)])
    before = Leaks()
    kept = [artifact.open(tmp_path / "a") for _ in range(50)]
    assert not before.descriptors()
    assert len(kept) == 50


def test_a_mapped_artifact_does_not_travel(tmp_path: Path) -> None:
    """A pickle of it would hold all samples."""
    write(tmp_path / "a", [1])
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    found = artifact.open(fd)
    os.close(fd)
    assert found.sample(0) == 1
    with pytest.raises(TypeError, match="send its path"):
        pickle.dumps(found)


def test_opening_reads_no_columns(tmp_path: Path) -> None:
    """A 64 MB column costs no private memory to open, nor to read one row of."""
    write(tmp_path / "a", [torch.zeros(1 << 22, dtype=torch.uint8) for _ in range(16)])
    tracemalloc.start()
    found = artifact.open(tmp_path / "a")
    found.groups[0].columns[0].values[3].sum()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
