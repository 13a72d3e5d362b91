"""The writer: what it refuses, what it keeps to, and how it writes, whatever the disk does."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from prepcache import artifact
from prepcache.artifact.header import MAX_INPUTS
from prepcache.errors import ArtifactError, SampleError
from support.artifacts import RECIPE, digest, samples_of, write


def test_a_refused_item_leaves_nothing(tmp_path: Path) -> None:
    writer = artifact.Writer(RECIPE)
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


def test_too_many_trees_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that vary with the sample would make a group each: refused with the remedy, not written slowly."""
    monkeypatch.setattr("prepcache.artifact.writer.MAX_GROUPS", 3)
    writer = artifact.Writer(RECIPE)
    for number in range(3):
        writer.add(digest(number), [{str(number): 1}], 0.0)
    with pytest.raises(SampleError, match="return them as values"):
        writer.add(digest(4), [{"x": 1}], 0.0)
    assert writer.items == 3


def test_trees_too_large_for_a_header_are_refused(tmp_path: Path) -> None:
    """Wide trees that differ are refused one by one, and what was added before can still be written."""
    writer = artifact.Writer(RECIPE)
    with pytest.raises(SampleError, match="return them as values"):
        for number in range(100):
            wide = {f"{number}/{key}" * 20: torch.zeros(key, 2) for key in range(300)}
            writer.add(digest(number), [wide], 0.0)
    assert writer.items > 3
    with open(tmp_path / "a", "wb") as file:
        assert writer.write(file, producer={}).items == writer.items
    assert artifact.open(tmp_path / "a").rows == writer.items


def test_a_header_over_the_bound_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepcache.artifact.header.MAX_HEADER_BYTES", 8192)
    with pytest.raises(ArtifactError, match="put their paths in the items"):
        names = [str(random.random()) for _ in range(999)]
        write(tmp_path / "a", [1], observed=[{"kind": "file", "name": name, "digest": "0"} for name in names])
    assert (tmp_path / "a").stat().st_size == 0


def test_too_many_observed_inputs_are_not_written(tmp_path: Path) -> None:
    """They may be alike, so that their text packs well."""
    for row, count in (
        ({"name": "x", "digest": "absent"}, MAX_INPUTS + 1),
        ({"name": "x" * 1000, "digest": ""}, 40_000),
    ):
        with pytest.raises(ArtifactError, match="put their paths in the items"):
            write(tmp_path / "a", [1], observed=[{"kind": "file", **row}] * count)
        assert (tmp_path / "a").stat().st_size == 0


def test_writes_go_on_after_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [torch.arange(n) for n in range(30)]
    write(tmp_path / "whole", samples)
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: writev(fd, [views[0][:1000]]))
    write(tmp_path / "short", samples)
    assert (tmp_path / "short").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    """No room is the kernel's error, unchanged: the store decides what it means."""
    writer = artifact.Writer(RECIPE)
    writer.add(digest(0), [torch.zeros(1000)], 0.0)
    with pytest.raises(OSError) as caught, open("/dev/full", "wb", buffering=0) as file:
        writer.write(file, producer={})
    assert caught.value.errno == 28
