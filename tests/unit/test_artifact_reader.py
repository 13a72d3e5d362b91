"""The reader: item tables, copies and views, lifetimes, processes, bounds."""

from __future__ import annotations

import gc
import math
import os
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepcache import artifact
from prepcache.artifact import header as artifact_format
from prepcache.digests import entry_key
from prepcache.errors import ArtifactError
from support.artifacts import RECIPE, digest, same, samples_of, write, write_items
from support.leaks import Leaks


def _maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_the_item_table_says_which_rows_are_whose(tmp_path: Path) -> None:
    """Items without samples and with many keep their place; costs, key and counts are those written."""
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
    """Items that expand to nothing are an answer too: preprocessed, no samples."""
    write_items(tmp_path / "a", items)
    found = artifact.open(tmp_path / "a")
    assert (found.items, found.rows, found.groups) == (len(items), 0, [])
    with pytest.raises(IndexError):
        found.sample(0)


def test_observed_inputs_and_producer_are_kept(tmp_path: Path) -> None:
    """What was observed comes back as it was, in order."""
    observed = [
        {"kind": "file", "name": '/a/\udc80\n\\"', "digest": "00"},
        {"kind": "env", "name": "B", "digest": ""},
    ]
    write(tmp_path / "a", [1], observed=observed)
    found = artifact.open(tmp_path / "a")
    assert found.observed == observed and found.producer == {"name": "test"}


@pytest.mark.parametrize("cost", [-1.0, math.nan, math.inf, 0.0])
def test_a_cost_that_is_none_counts_nothing(tmp_path: Path, cost: float) -> None:
    """A clock that went back does not spoil the artifact."""
    writer = artifact.Writer(RECIPE)
    writer.add(digest(1), [1], cost)
    with open(tmp_path / "a", "wb") as file:
        assert writer.write(file, producer={}).cost_s == 0.0
    assert artifact.open(tmp_path / "a").cost_s == 0.0


def test_groups_know_their_rows(tmp_path: Path) -> None:
    """Rows of different trees lie in their groups in order, and `row_group`, `row_index` lead there."""
    samples = [(n, "t") if n % 3 else n for n in range(10)]
    write(tmp_path / "a", samples)
    found = artifact.open(tmp_path / "a")
    assert found.row_group is not None and found.row_index is not None
    assert found.row_group.tolist() == [0, 1, 1, 0, 1, 1, 0, 1, 1, 0]
    assert found.row_index.tolist() == [0, 0, 1, 1, 2, 3, 2, 4, 5, 3]
    assert [group.rows for group in found.groups] == [4, 6]
    assert samples_of(found) == samples


def test_one_group_needs_no_table(tmp_path: Path) -> None:
    """The common artifact has no row tables, in memory or in the file."""
    write(tmp_path / "a", [1, 2])
    found = artifact.open(tmp_path / "a")
    assert found.row_group is None and found.row_index is None and "_rows.group" not in found.header.spans


def test_copies_are_the_callers(tmp_path: Path) -> None:
    """What `sample` gives may be written to; the next one is as stored."""
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


def test_a_refused_file_leaves_no_descriptor_and_no_map(tmp_path: Path) -> None:
    """Refusals do not leak."""
    write(tmp_path / "a", [torch.zeros(3)])
    raw = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(raw[:-1])
    before = Leaks()
    for _ in range(5):
        with pytest.raises(ArtifactError):
            artifact.open(tmp_path / "a")
    assert not before.descriptors() and _maps_of(tmp_path / "a") == 0


def test_an_artifact_pickles_as_its_path(tmp_path: Path) -> None:
    """The copy reads the same rows through a map of its own; a few hundred bytes travel."""
    write(tmp_path / "a", [torch.zeros(1000), torch.ones(1000)])
    found = artifact.open(tmp_path / "a")
    raw = pickle.dumps(found)
    assert len(raw) < 1000
    assert same(samples_of(pickle.loads(raw)), samples_of(found))


def test_a_pickle_of_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """Another file under the same path is not mistaken for the pickled one."""
    write(tmp_path / "a", [1])
    raw = pickle.dumps(artifact.open(tmp_path / "a"))
    write(tmp_path / "b", [1])
    (tmp_path / "b").replace(tmp_path / "a")
    with pytest.raises(ArtifactError, match="not the file"):
        pickle.loads(raw)


def test_an_artifact_without_a_path_does_not_pickle(tmp_path: Path) -> None:
    """One opened by descriptor says why it cannot travel."""
    write(tmp_path / "a", [1])
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    found = artifact.open(fd)
    os.close(fd)
    assert found.sample(0) == 1
    with pytest.raises(TypeError, match="descriptor"):
        pickle.dumps(found)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_the_parents_map(tmp_path: Path) -> None:
    """A child reads on through what it inherited, and its end takes nothing from the parent."""
    write(tmp_path / "a", [np.arange(5), np.arange(5, 9)])
    found = artifact.open(tmp_path / "a")
    child = os.fork()
    if child == 0:
        is_right = found.sample(1).tolist() == [5, 6, 7, 8]
        del found
        gc.collect()
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert found.sample(0).tolist() == [0, 1, 2, 3, 4]


def test_threads_share_an_artifact(tmp_path: Path) -> None:
    """Threads that meet at the first sample all get their own right ones."""
    samples = [{"x": torch.full((n,), n), "t": str(n)} if n % 2 else n for n in range(200)]
    write(tmp_path / "a", samples)
    found = artifact.open(tmp_path / "a")
    with ThreadPoolExecutor(8) as pool:
        assert all(map(same, pool.map(found.sample, range(200)), samples))


@pytest.mark.parametrize("row", [-1, 2, 2**40])
def test_rows_out_of_range_are_index_errors(tmp_path: Path, row: int) -> None:
    """No negative rows, none past the end."""
    write(tmp_path / "a", [1, 2])
    with pytest.raises(IndexError):
        artifact.open(tmp_path / "a").sample(row)


def test_opening_reads_no_columns(tmp_path: Path) -> None:
    """A 64 MB column costs no private memory to open, nor to read one row of."""
    write(tmp_path / "a", [torch.zeros(1 << 22, dtype=torch.uint8) for _ in range(16)])
    tracemalloc.start()
    found = artifact.open(tmp_path / "a")
    found.groups[0].columns[0].row(3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_column_of_rows_is_what_samples_hold(tmp_path: Path) -> None:
    """`Column.row` gives the values that `sample` gives, for those who gather batches."""
    write(tmp_path / "a", [(torch.full((n, 2), n, dtype=torch.bfloat16), n) for n in range(1, 5)])
    ragged, numbers = artifact.open(tmp_path / "a").groups[0].columns
    assert ragged.values.dtype == np.uint16
    assert artifact.to_leaf(ragged.row(2).copy(), ragged.leaf).tolist() == [[3.0, 3.0]] * 3
    assert numbers.values.tolist() == [1, 2, 3, 4] and numbers.row(1).shape == ()


def test_the_format_version_is_pinned() -> None:
    """Raising the version is deliberate: the golden files of the old one must then be refused."""
    assert artifact_format.FORMAT_VERSION == 2
