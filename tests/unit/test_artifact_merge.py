"""Merging: the same samples in one file, whatever the columns were, in bounded memory."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepcache import artifact
from prepcache.digests import RecipeDigest
from prepcache.errors import ArtifactError
from support.artifacts import merge, samples_of, write, write_items

PARTS: dict[str, list[list[Any]]] = {
    "dense of one shape": [[torch.zeros(2, 3)], [torch.ones(2, 3), torch.ones(2, 3)]],
    "dense of two shapes": [[torch.zeros(2, 3)] * 2, [torch.ones(4, 1)]],
    "ragged and dense": [[torch.zeros(2, 3), torch.zeros(1, 1)], [torch.ones(4, 1)] * 2, [torch.zeros(0, 9)]],
    "one axis": [[torch.arange(3)], [torch.arange(5), torch.arange(2)], [torch.arange(3)]],
    "text": [["a", ""], ["\udc80", "b" * 300]],
    "other trees": [[1, "a"], ["b", 2], [{"k": None}, "c"], [3]],
    "other dtypes": [[np.zeros(2, ">i4")], [np.zeros(2, "<i4")], [torch.zeros(2, dtype=torch.bfloat16)]],
    "bytes of an element": [[np.zeros(2, "M8[s]")], [np.ones(3, "M8[s]")], [np.zeros(2, "c16")] * 2],
    "nothing": [[None], [None, None]],
    "nested": [[{"a": (torch.zeros(2), [1.5, "x"])}], [{"a": (torch.zeros(7), [2.5, "y"])}]],
    "scalars": [[torch.tensor(1)], [torch.tensor(2)], [np.float32(1)], [True]],
}


def _write_parts(folder: Path, parts: list[list[Any]]) -> list[Path]:
    paths, first = [], 0
    for number, samples in enumerate(parts):
        paths.append(folder / f"part{number}")
        write(paths[-1], samples, first=first)
        first += len(samples)
    return paths


@pytest.mark.parametrize("name", PARTS)
def test_a_merge_is_what_one_writer_would_have_written(tmp_path: Path, name: str) -> None:
    """Byte for byte: so merging in any grouping, or again, gives the same file."""
    paths = _write_parts(tmp_path, PARTS[name])
    merge(tmp_path / "merged", paths)
    write(tmp_path / "whole", [sample for part in PARTS[name] for sample in part])
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()
    if len(paths) > 2:
        merge(tmp_path / "head", paths[:2])
        merge(tmp_path / "again", [tmp_path / "head", *paths[2:]])
        assert (tmp_path / "again").read_bytes() == (tmp_path / "whole").read_bytes()


def test_items_of_no_and_many_rows_keep_them(tmp_path: Path) -> None:
    """Expanded items keep their rows, and those that expand to nothing stay known."""
    write_items(tmp_path / "a", [[], [1, 2], []])
    write_items(tmp_path / "b", [[]], first=3)
    write_items(tmp_path / "c", [[3], ["x", 4]], first=4)
    merge(tmp_path / "d", [tmp_path / name for name in "abc"])
    found = artifact.open(tmp_path / "d")
    assert found.row_count.tolist() == [0, 2, 0, 0, 1, 2]
    assert samples_of(found) == [1, 2, 3, "x", 4]


def test_descriptors_are_read_and_stay_open(tmp_path: Path) -> None:
    """The daemon may merge what it has open, also under no name."""
    fds = []
    for number in range(2):
        write(tmp_path / "a", [torch.full((2,), number)], first=number)
        fds.append(os.open(tmp_path / "a", os.O_RDONLY))
        (tmp_path / "a").unlink()
    with open(tmp_path / "out", "wb") as out:
        artifact.merge(fds, out.fileno())
    for fd in fds:
        os.close(fd)
    assert [sample.tolist() for sample in samples_of(artifact.open(tmp_path / "out"))] == [[0, 0], [1, 1]]


def test_other_recipes_do_not_merge(tmp_path: Path) -> None:
    """Samples that were made differently stay apart."""
    write(tmp_path / "a", [1])
    write(tmp_path / "b", [2], first=1, recipe=RecipeDigest("00" * 32))
    with pytest.raises(ArtifactError, match="different recipes"):
        merge(tmp_path / "c", [tmp_path / "a", tmp_path / "b"])
    assert (tmp_path / "c").stat().st_size == 0


def test_an_item_in_two_files_does_not_merge(tmp_path: Path) -> None:
    """An item table names an item once; which of two copies stays is not for a merge to say."""
    write(tmp_path / "a", [1, 2])
    write(tmp_path / "b", [2, 3], first=1)
    with pytest.raises(ArtifactError, match="that share an item"):
        merge(tmp_path / "c", [tmp_path / "a", tmp_path / "b"])


def test_observed_inputs_are_joined_unless_they_differ(tmp_path: Path) -> None:
    """The union, each once; an input seen with two digests keeps the artifacts apart."""

    def seen(*digests: str) -> list[dict[str, Any]]:
        return [{"kind": "file", "name": f"/f{n}", "digest": text} for n, text in enumerate(digests)]

    write(tmp_path / "a", [1], observed=seen("aa"))
    write(tmp_path / "b", [2], first=1, observed=seen("aa", "bb"))
    write(tmp_path / "c", [3], first=2, observed=seen("cc"))
    merge(tmp_path / "d", [tmp_path / "a", tmp_path / "b"])
    assert artifact.open(tmp_path / "d").header.observed == seen("aa", "bb")
    with pytest.raises(ArtifactError, match="different digests"):
        merge(tmp_path / "e", [tmp_path / "a", tmp_path / "c"])


def test_a_bad_part_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A damaged part is found by its check, and the output stays empty."""
    write(tmp_path / "a", [torch.zeros(3)])
    write(tmp_path / "b", [torch.zeros(3)], first=1)
    (tmp_path / "b").write_bytes((tmp_path / "b").read_bytes()[:-1])
    with pytest.raises(ArtifactError):
        merge(tmp_path / "c", [tmp_path / "a", tmp_path / "b"])
    assert (tmp_path / "c").stat().st_size == 0


def test_copies_go_on_after_short_reads_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that reads and writes a few bytes at a time copies all of them."""
    paths = _write_parts(tmp_path, [[torch.arange(100), torch.arange(50)], [torch.arange(70)]])
    preadv, writev = os.preadv, os.writev
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:99]], at))
    monkeypatch.setattr(os, "writev", lambda fd, buffers: writev(fd, [buffers[0][:77]]))
    merge(tmp_path / "merged", paths)
    write(tmp_path / "whole", [torch.arange(100), torch.arange(50), torch.arange(70)])
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_part_that_shrinks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is cut while it is copied ends the merge, not in an endless loop."""
    paths = _write_parts(tmp_path, [[torch.arange(1000)], [torch.arange(1000)]])
    preadv = os.preadv

    def cut_then_read(fd: int, into: Any, at: int) -> int:
        os.truncate(paths[1], 4096)
        return preadv(fd, into, at)

    monkeypatch.setattr(os, "preadv", cut_then_read)
    with pytest.raises(ArtifactError, match="cut while it was read"):
        merge(tmp_path / "merged", paths)


def test_memory_does_not_grow_with_the_columns(tmp_path: Path) -> None:
    """Merging 64 MB takes a folio of 2 MiB, and next to nothing beside it."""
    for number in range(2):
        rows = [torch.full((1 << 20,), number, dtype=torch.uint8)] * 32
        write(tmp_path / f"p{number}", rows, first=number * 32)
    tracemalloc.start()
    merge(tmp_path / "c", [tmp_path / "p0", tmp_path / "p1"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20
