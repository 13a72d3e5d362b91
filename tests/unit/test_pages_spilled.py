"""Pages: rows of unlinked files, that only this job has, are mapped as those of the store are."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepcache import artifact
from prepcache.artifact import reader
from prepcache.batching import pages
from prepcache.batching.gather import Rows
from prepcache.fill.overflow import Spilled
from support.artifacts import RECIPE, digest, write

pytestmark = pytest.mark.skipif(pages._calls() is None, reason="pages need Linux 5.14")

PICKS = np.array([3, 0, 7, 4, 4, 1])


@pytest.fixture(autouse=True)
def every_page_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reader, "LARGE_ROW_BYTES", mmap.PAGESIZE)
    monkeypatch.setattr(pages, "MIN_BATCH_BYTES", 0)
    yield


def images(first: int, count: int) -> list[torch.Tensor]:
    return [
        torch.full((3, mmap.PAGESIZE), number, dtype=torch.uint8) for number in range(first, first + count)
    ]


def spilled(first: int, count: int) -> Spilled:
    writer = artifact.Writer(RECIPE)
    for number, image in enumerate(images(first, count), first):
        writer.add(digest(number), [image], 0.0)
    return Spilled(writer, {})


def batch_of(first: artifact.Artifact, second: artifact.Artifact) -> tuple[Any, set[str]]:
    """The rows of two artifacts of four, and where they lie."""
    rows = Rows([first, second], np.repeat([0, 1], 4), np.tile(np.arange(4), 2))
    batch: Any = rows.take(PICKS)
    gathered = batch.table.columns[0].gather(batch.picked, rows.pool)
    begin, end = gathered.ctypes.data, gathered.ctypes.data + gathered.nbytes
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, *_, name = line.split(maxsplit=5) if line.count(" ") > 5 else (line.split()[0], "")
        if begin <= int(place.split("-")[0], 16) < end:
            found.add(name.strip())
    return gathered, found


def test_rows_of_unlinked_files_are_mapped_too(tmp_path: Path) -> None:
    write(tmp_path / "stored", images(4, 4), first=4)
    here = spilled(0, 4)
    gathered, files = batch_of(here.artifact, artifact.open(tmp_path / "stored"))
    assert gathered[:, 0, 0].tolist() == PICKS.tolist() and (gathered == gathered[:, :1, :1]).all()
    assert str(tmp_path / "stored") in files and any(name.endswith("(deleted)") for name in files)
    gathered.fill(0)
    again, _ = batch_of(here.artifact, artifact.open(tmp_path / "stored"))
    assert again[:, 0, 0].tolist() == PICKS.tolist()


def test_a_reused_inode_number_does_not_mix_rows(tmp_path: Path) -> None:
    write(tmp_path / "stored", images(4, 4), first=4)
    here = spilled(0, 4)
    lost, number = here.artifact, here.address[1]
    del here
    other = spilled(50, 4)
    assert other.address[1] == number
    gathered, files = batch_of(lost, artifact.open(tmp_path / "stored"))
    assert gathered[:, 0, 0].tolist() == PICKS.tolist()
    assert any(name.endswith("(deleted)") for name in files)
