"""Rows for tests: samples stored over some artifacts, as the data set hands them to the gather."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prepcache import artifact
from prepcache.batching.collation import as_asked
from prepcache.batching.gather import Batch, Rows
from support.artifacts import write


def rows_of(folder: Path, samples: Sequence[Any], parts: int = 1) -> Rows:
    """The samples, in order, over `parts` artifacts of about equal size, in files of this folder."""
    artifacts, art_of, row_of = [], [], []
    for part, numbers in enumerate(np.array_split(np.arange(len(samples)), parts)):
        path = folder / f"part-{part}"
        write(path, [samples[i] for i in numbers], first=int(numbers[0]) if len(numbers) else 0)
        artifacts.append(artifact.open(path))
        art_of += [part] * len(numbers)
        row_of += range(len(numbers))
    return Rows(artifacts, np.array(art_of, np.int32), np.array(row_of, np.int64))


class Stored(torch.utils.data.Dataset[Any]):
    """A data set over rows, as small as can be."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows.sample(i)

    def __getitems__(self, indices: Any) -> Any:
        batch = self.rows.take(indices)
        return as_asked(batch, sys._getframe(1)) if isinstance(batch, Batch) else batch


def stored_images(folder: Path, count: int) -> Stored:
    """Images with their numbers, over three artifacts."""
    images = [np.random.default_rng(i).integers(0, 255, (3, 64, 64)).astype(np.uint8) for i in range(count)]
    return Stored(rows_of(folder, [(torch.from_numpy(image), i) for i, image in enumerate(images)], 3))
