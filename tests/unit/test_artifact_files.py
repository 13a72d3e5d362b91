"""Artifacts as files: what the writer keeps to, what the reader gives, and samples merged into one file."""

import gc
import os
import pickle
import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepcache import artifact
from prepcache.artifact import writer
from prepcache.artifact.header import MAX_INPUTS
from prepcache.artifact.writer import Writer
from prepcache.digests import RecipeDigest, entry_key
from prepcache.errors import ArtifactError, SampleError
from support.artifacts import RECIPE, digest, merge, samples_of, write, write_items
from support.leaks import Leaks


def test_a_refused_item_leaves_nothing(tmp_path):
    writer = Writer(RECIPE)
    writer.add(digest(0), [1], 0.0)
    with pytest.raises(SampleError):
        writer.add(digest(1), [(1, "new tree"), object()], 0.0)
    writer.add(digest(1), [2.5], 0.0)
    with open(tmp_path / "a", "wb") as file:
        writer.write(file, producer={})
    assert samples_of(artifact.open(tmp_path / "a")) == [1, 2.5]
    write(tmp_path / "b", [1, 2.5])
    ours, plain = (artifact.open(tmp_path / name).header.spans for name in "ab")
    assert ours.keys() == plain.keys()


def test_too_many_trees_are_refused_by_name(monkeypatch):
    """Keys that vary with the sample would make a group each: refused with the remedy, not written slowly."""
    monkeypatch.setattr("prepcache.artifact.writer.MAX_GROUPS", 3)
    writer = Writer(RECIPE)
    for number in range(3):
        writer.add(digest(number), [{str(number): 1}], 0.0)
    with pytest.raises(SampleError, match="return them as values"):
        writer.add(digest(4), [{"x": 1}], 0.0)
    assert writer.items == 3


def test_a_header_over_the_bound_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("prepcache.artifact.header.MAX_HEADER_BYTES", 8192)
    with pytest.raises(ArtifactError, match="put their paths in the items"):
        names = [str(random.random()) for _ in range(999)]
        write(tmp_path / "a", [1], observed=[{"kind": "file", "name": name, "digest": "0"} for name in names])
    assert (tmp_path / "a").stat().st_size == 0


def test_too_many_observed_inputs_are_not_written(tmp_path):
    """They may be alike, so that their text packs well."""
    for row, count in (
        ({"name": "x", "digest": "absent"}, MAX_INPUTS + 1),
        ({"name": "x" * 1000, "digest": ""}, 40_000),
    ):
        with pytest.raises(ArtifactError, match="put their paths in the items"):
            write(tmp_path / "a", [1], observed=[{"kind": "file", **row}] * count)
        assert (tmp_path / "a").stat().st_size == 0


def test_a_full_disk_is_an_os_error():
    """No room is the kernel's error, unchanged: the store decides what it means."""
    writer = Writer(RECIPE)
    writer.add(digest(0), [torch.zeros(1000)], 0.0)
    with pytest.raises(OSError) as caught, open("/dev/full", "wb", buffering=0) as file:
        writer.write(file, producer={})
    assert caught.value.errno == 28


# --- the reader: item tables, copies and views, lifetimes, processes, bounds ---


def _maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_the_item_table_says_which_rows_are_whose(tmp_path):
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


@pytest.mark.parametrize("items", [[], [[]], [[], [], []]], ids=len)
def test_an_artifact_without_rows_opens(tmp_path, items):
    write_items(tmp_path / "a", items)
    found = artifact.open(tmp_path / "a")
    assert (found.items, found.rows, found.groups) == (len(items), 0, [])
    with pytest.raises(IndexError):
        found.sample(0)


def test_copies_are_the_callers(tmp_path):
    write(tmp_path / "a", [(torch.zeros(3), np.zeros(3), torch.zeros(()), np.zeros((), ">f4"))])
    found = artifact.open(tmp_path / "a")
    for leaf in found.sample(0):
        leaf[...] = 1
    assert all(leaf.sum() == 0 for leaf in found.sample(0))


def test_the_map_lives_as_long_as_its_last_column(tmp_path):
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


def test_maps_hold_no_descriptors(tmp_path):
    """A thousand artifacts fit in a process that may have a thousand descriptors."""
    write(tmp_path / "a", [torch.zeros(3)])
    before = Leaks()
    kept = [artifact.open(tmp_path / "a") for _ in range(50)]
    assert not before.descriptors()
    assert len(kept) == 50


def test_a_mapped_artifact_does_not_travel(tmp_path):
    """A pickle of it would hold all samples."""
    write(tmp_path / "a", [1])
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    found = artifact.open(fd)
    os.close(fd)
    assert found.sample(0) == 1
    with pytest.raises(TypeError, match="send its path"):
        pickle.dumps(found)


def test_opening_reads_no_columns(tmp_path):
    """A 64 MB column costs no private memory to open, nor to read one row of."""
    write(tmp_path / "a", [torch.zeros(1 << 22, dtype=torch.uint8) for _ in range(16)])
    tracemalloc.start()
    found = artifact.open(tmp_path / "a")
    found.groups[0].columns[0].values[3].sum()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


# --- merging: the same samples, whatever the columns were, in bounded memory ---


def _write_parts(folder: Path, parts: list[list[Any]]) -> list[Path]:
    paths, first = [], 0
    for number, samples in enumerate(parts):
        paths.append(folder / f"part{number}")
        write(paths[-1], samples, first=first)
        first += len(samples)
    return paths


def test_other_recipes_do_not_merge(tmp_path):
    write(tmp_path / "a", [1])
    write(tmp_path / "b", [2], first=1, recipe=RecipeDigest("00" * 32))
    with pytest.raises(ArtifactError, match="different recipes or editions"):
        merge(tmp_path / "c", [tmp_path / "a", tmp_path / "b"])
    assert (tmp_path / "c").stat().st_size == 0


def test_an_item_in_two_files_does_not_merge(tmp_path):
    """An item table names an item once; which of two copies stays is not for a merge to say."""
    write(tmp_path / "a", [1, 2])
    write(tmp_path / "b", [2, 3], first=1)
    with pytest.raises(ArtifactError, match="that share an item"):
        merge(tmp_path / "c", [tmp_path / "a", tmp_path / "b"])


def test_observed_inputs_are_joined_unless_they_differ(tmp_path):
    """The union, each once; an input seen with two digests keeps the artifacts apart."""

    def seen(*digests: str) -> list[dict[str, Any]]:
        return [{"kind": "file", "name": f"/f{n}", "digest": text} for n, text in enumerate(digests)]

    write(tmp_path / "a", [1], observed=seen("aa"))
    write(tmp_path / "b", [2], first=1, observed=seen("aa", "bb"))
    write(tmp_path / "c", [3], first=2, observed=seen("cc"))
    merge(tmp_path / "d", [tmp_path / "a", tmp_path / "b"])
    assert artifact.open(tmp_path / "d").header.inputs == seen("aa", "bb")
    with pytest.raises(ArtifactError, match="different digests"):
        merge(tmp_path / "e", [tmp_path / "a", tmp_path / "c"])


def test_copies_go_on_after_short_reads_and_writes(tmp_path, monkeypatch):
    paths = _write_parts(tmp_path, [[torch.arange(100), torch.arange(50)], [torch.arange(70)]])
    write(tmp_path / "whole", [torch.arange(100), torch.arange(50), torch.arange(70)])
    pread, preadv, writev = os.pread, os.preadv, os.writev
    monkeypatch.setattr(os, "pread", lambda fd, count, at: pread(fd, min(count, 99), at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:99]], at))
    monkeypatch.setattr(os, "writev", lambda fd, buffers: writev(fd, [buffers[0][:77]]))
    merge(tmp_path / "merged", paths)
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_part_that_shrinks_is_an_error(tmp_path, monkeypatch):
    paths = _write_parts(tmp_path, [[torch.arange(1000)], [torch.arange(1000)]])
    write_all = writer._write_all

    def cut_then_write(*pieces: Any) -> None:
        os.truncate(paths[1], 4096)
        write_all(*pieces)

    monkeypatch.setattr(writer, "_write_all", cut_then_write)
    with pytest.raises(ArtifactError, match="cut while it was read"):
        merge(tmp_path / "merged", paths)


def test_a_merge_needs_no_torch(tmp_path, monkeypatch):
    """Of what numpy cannot name either: a daemon may have none."""
    paths = _write_parts(tmp_path, [[torch.ones(3, dtype=torch.bfloat16)], [torch.zeros(3).bfloat16()]])
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        merge(tmp_path / "c", paths)
    assert [sample.tolist() for sample in samples_of(artifact.open(tmp_path / "c"))] == [[1] * 3, [0] * 3]


def test_memory_does_not_grow_with_the_columns(tmp_path):
    """Merging 64 MB takes a folio of 2 MiB, and next to nothing beside it."""
    for number in range(2):
        rows = [torch.full((1 << 20,), number, dtype=torch.uint8)] * 32
        write(tmp_path / f"p{number}", rows, first=number * 32)
    tracemalloc.start()
    merge(tmp_path / "c", [tmp_path / "p0", tmp_path / "p1"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20
