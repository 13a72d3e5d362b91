"""torchrun and DDP: two processes, one cache.

    torchrun --nproc-per-node 2 torchrun_ddp.py

The two ranks divide the preprocessing of a cold data set between them, and share the tensors of a warm one.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import prepcache


def load(path: Path, length: int) -> torch.Tensor:
    codes = torch.tensor(list(path.read_bytes()[:length]), dtype=torch.float32)
    return torch.nn.functional.pad(codes, (0, length - len(codes)))


def train() -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    ds = prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), load, config={"length": 32})
    model = DistributedDataParallel(torch.nn.Linear(32, 1))
    sampler = DistributedSampler(ds, seed=0)
    loader = DataLoader(ds, batch_size=2, sampler=sampler)
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            seen.append(batch.clone())
            model(batch).square().mean().backward()
    torch.save((seen, ds.report().computed), f"rank-{rank}.pt")
    torch.distributed.destroy_process_group()


def main() -> tuple[list[int], list[torch.Tensor]]:
    """Starts both ranks; returns how many samples each one preprocessed, and what they saw."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        __file__,
    ]
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    ranks = [torch.load(f"rank-{rank}.pt") for rank in range(2)]
    return [computed for _, computed in ranks], [batch for seen, _ in ranks for batch in seen]


if __name__ == "__main__":
    train() if "RANK" in os.environ else print(main()[0])
