"""A sound artifact that attacks start from, and that what they make of it is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepcache import artifact
from prepcache.errors import ArtifactError
from support.artifacts import write

SAMPLES: list[Any] = [
    {"x": torch.zeros(2, 3), "n": 1, "t": "text"},
    {"x": torch.ones(4, 3), "n": 2, "t": "more"},
    (np.zeros(3, ">i4"), np.arange(2)),
    (np.zeros(3, ">i4"), np.arange(5)),
]


@pytest.fixture(name="path")
def path_fixture(tmp_path: Path) -> Path:
    """An artifact with two groups, dense and ragged columns, and the names x, x.offsets, x.shapes, n, t."""
    write(tmp_path / "a", SAMPLES)
    return tmp_path / "a"


def refused(path: Path, words: str | None = None) -> None:
    """Neither the reader nor the daemon's check takes the file."""
    with pytest.raises(ArtifactError, match=words):
        artifact.open(path)
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(ArtifactError, match=words):
            artifact.check(fd)
    finally:
        os.close(fd)
