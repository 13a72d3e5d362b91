"""Rows that are whole pages, batches of them, and which maps a batch lies in."""

from __future__ import annotations

import gc
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
from prepcache.batching.buffers import Pool
from prepcache.batching.gather import Rows
from prepcache.batching.tables import Dense
from support.artifacts import write
from support.leaks import Leaks

COUNT, ROW = 40, (3, mmap.PAGESIZE)
PICKS = np.array([7, 30, 7, 8, 9, 39, 0, 21, 22, 3])


@pytest.fixture(name="every_page_counts", autouse=True)
def every_page_counts_fixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """However small batches are; and nothing of them is left, no map and no descriptor of their files."""
    gc.collect()
    monkeypatch.setattr(reader, "LARGE_ROW_BYTES", mmap.PAGESIZE)
    monkeypatch.setattr(pages, "MIN_BATCH_BYTES", 0)
    before = Leaks()
    yield
    gc.collect()
    assert not pages._live_maps()
    assert not [path for _, path in before.descriptors() if path.startswith(str(tmp_path))]
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]


def images() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 255, (COUNT, *ROW)).astype(np.uint8)


def stored(folder: Path, parts: int = 3) -> tuple[Rows, list[Path]]:
    paths, artifacts, art_of, row_of = [], [], [], []
    for part, numbers in enumerate(np.array_split(np.arange(COUNT), parts)):
        paths.append(folder / f"part-{part}")
        write(paths[-1], [(torch.from_numpy(images()[i]), int(i)) for i in numbers], first=int(numbers[0]))
        artifacts.append(artifact.open(paths[-1]))
        art_of += [part] * len(numbers)
        row_of += range(len(numbers))
    return Rows(artifacts, np.array(art_of), np.array(row_of)), paths


def batch_of(rows: Rows, picks: np.ndarray[Any, Any] = PICKS, pool: Pool | None = None) -> Any:
    """The images of a batch."""
    batch: Any = rows.take(picks)
    column = batch.table.columns[0]
    assert isinstance(column, Dense)
    return column.gather(batch.picked, pool or rows.pool)


def maps_of(batch: Any, what: str = "Anonymous:") -> list[tuple[str, int]]:
    """The file, or nothing, of each map that a batch lies in, and the bytes of it that `what` counts."""
    begin = batch.data_ptr() if isinstance(batch, torch.Tensor) else batch.ctypes.data
    found: list[tuple[str, int]] = []
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            low, _, high = words[0].partition("-")
            is_inside = int(low, 16) < begin + batch.nbytes and int(high, 16) > begin
            if is_inside:
                found.append((words[5] if len(words) > 5 else "", 0))
        elif is_inside and words[0] == what:
            found[-1] = (found[-1][0], int(words[1]) << 10)
    return found


def is_mapped(batch: Any) -> bool:
    return all("part-" in file for file, _ in maps_of(batch))
