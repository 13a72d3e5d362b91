"""Audio read by soundfile (libsndfile): random cuts run on every access, decoding is cached.

The path is in the item, so the file counts although a C library reads it.
"""

from pathlib import Path

import soundfile
import torch
from torch.utils.data import DataLoader

import prepcache


def decode(path: Path) -> torch.Tensor:
    samples, _ = soundfile.read(path, dtype="float32")
    return torch.from_numpy(samples)


def cut(samples: torch.Tensor) -> torch.Tensor:
    start = int(torch.randint(0, len(samples) - 1000, ()))
    return samples[start : start + 1000]


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    torch.manual_seed(0)
    ds = prepcache.CachedDataset(sorted(Path("clips").glob("*.wav")), decode, transform=cut)
    return [ds], [batch.clone() for _ in range(2) for batch in DataLoader(ds, batch_size=4, shuffle=True)]


if __name__ == "__main__":
    print(main()[0][0].report())
