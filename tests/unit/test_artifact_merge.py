"""Merging: the same samples in one file, whatever the columns were, in bounded memory."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from prepcache import artifact
from prepcache.digests import RecipeDigest
from prepcache.errors import ArtifactError
from support.artifacts import merge, write


def _write_parts(folder: Path, parts: list[list[Any]]) -> list[Path]:
    paths, first = [], 0
    for number, samples in enumerate(parts):
        paths.append(folder / f"part{number}")
        write(paths[-1], samples, first=first)
        first += len(samples)
    return paths


def test_other_recipes_do_not_merge(tmp_path: Path) -> None:
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


def test_copies_go_on_after_short_reads_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = _write_parts(tmp_path, [[torch.arange(100), torch.arange(50)], [torch.arange(70)]])
    preadv, writev = os.preadv, os.writev
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:99]], at))
    monkeypatch.setattr(os, "writev", lambda fd, buffers: writev(fd, [buffers[0][:77]]))
    merge(tmp_path / "merged", paths)
    write(tmp_path / "whole", [torch.arange(100), torch.arange(50), torch.arange(70)])
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_part_that_shrinks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
