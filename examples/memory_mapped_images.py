"""A memory-mapped data set class of one's own, beside prepcache: 350 JPEGs, each 30 times.

    python examples/memory_mapped_images.py [--images 350] [--times 30]

The class decodes every item into one `numpy.memmap`, which later runs open. prepcache keys items by the bytes
of their files, so an image that occurs 30 times is decoded and stored once.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

import prepcache

SIZE = 64


def decode(path: Path) -> torch.Tensor:
    """One image, uint8[3, 64, 64]."""
    image = Image.open(path).convert("RGB").resize((SIZE, SIZE))
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


class MemoryMapped(Dataset):
    """All samples in one memory-mapped file, which is rebuilt only if it is missing."""

    def __init__(self, paths: list[Path], file: Path) -> None:
        shape = (len(paths), 3, SIZE, SIZE)
        self.made = 0
        if not file.exists():
            rows = np.memmap(file, np.uint8, "w+", shape=shape)
            for at, path in enumerate(paths):
                rows[at] = decode(path)
                self.made += 1
            rows.flush()
        self.rows = np.memmap(file, np.uint8, "r", shape=shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[at].copy())


def write_images(folder: Path, count: int) -> list[Path]:
    random = np.random.default_rng(0)
    paths = [folder / f"{number:03}.jpg" for number in range(count)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (160, 200, 3), np.uint8)).save(path, quality=80)
    return paths


def epoch(ds: Dataset) -> float:
    started = time.perf_counter()
    for _ in DataLoader(ds, batch_size=64, shuffle=True):
        pass
    return time.perf_counter() - started


def main(images: int, times: int) -> dict[str, dict[str, float]]:
    """For each: seconds to open cold and warm, seconds of an epoch, calls of `decode`, bytes stored."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_images(folder, images) * times
        file = folder / "samples.bin"
        theirs = measure(lambda: MemoryMapped(paths, file), lambda ds: (ds.made, file.stat().st_size))
        ours = measure(
            lambda: prepcache.CachedDataset(paths, decode, progress=False),
            lambda ds: (ds.report().computed, ds.report().bytes),
        )
        same = prepcache.CachedDataset(paths, decode, progress=False)
        mapped = MemoryMapped(paths, file)
        assert all(torch.equal(same[at], mapped[at]) for at in range(0, len(paths), 7))
    return {"memory-mapped class": theirs, "prepcache": ours}


def measure(opened: Callable[[], Dataset], counted: Callable[[Dataset], tuple[int, int]]) -> dict[str, float]:
    started = time.perf_counter()
    cold = opened()
    then = time.perf_counter()
    warm = opened()
    warm_s = time.perf_counter() - then
    made, stored = counted(cold)
    return {"cold": then - started, "warm": warm_s, "epoch": epoch(warm), "made": made, "bytes": stored}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--images", type=int, default=350)
    parser.add_argument("--times", type=int, default=30)
    asked = parser.parse_args()
    shown = Table("", "opened cold", "opened warm", "an epoch", "decoded", "stored")
    for who, found in main(asked.images, asked.times).items():
        shown.add_row(
            who,
            *(f"{found[name]:.2f} s" for name in ("cold", "warm", "epoch")),
            f"{found['made']:.0f} images",
            f"{found['bytes'] / 1e6:.1f} MB",
        )
    Console().print(shown)
