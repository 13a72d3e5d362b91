"""WebDataset: tar shards as a stream. Keep the shard's name out of the samples, and let prepcache shard."""

import io
import tarfile
from pathlib import Path
from typing import Any

import torch
import webdataset
from torch.utils.data import DataLoader

import prepcache

SHARD = Path("shard-000.tar")


def write_shard() -> None:
    with tarfile.open(SHARD, "w") as shard:
        for path in sorted(Path("corpus").glob("*.txt")):
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            shard.addfile(member, io.BytesIO(path.read_bytes()))


def text_only(sample: dict[str, Any]) -> bytes:
    """Drops `__url__` and `__local_path__`, which are other texts on each machine."""
    return sample["txt"]


def rows() -> webdataset.WebDataset:
    stream = webdataset.WebDataset(str(SHARD), shardshuffle=False, nodesplitter=None, workersplitter=None)
    return stream.map(text_only)


def encode(text: bytes) -> torch.Tensor:
    return torch.tensor(list(text))


def main() -> tuple[list[prepcache.CachedIterableDataset], list[torch.Tensor]]:
    if not SHARD.exists():
        write_shard()
    ds = prepcache.CachedIterableDataset(rows, encode)
    loader = DataLoader(ds, batch_size=4, collate_fn=prepcache.pad_collate())
    return [ds], [batch.clone() for _ in range(2) for batch in loader]


if __name__ == "__main__":
    print(main()[0][0].report())
