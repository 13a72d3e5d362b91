"""Hugging Face Accelerate: two processes, a loader that `prepare` shards, a saved state, a resumed epoch.

accelerate launch --cpu --num_processes 2 accelerate_loop.py
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import prepcache


def load(path: Path, length: int) -> torch.Tensor:
    codes = torch.tensor(list(path.read_bytes()[:length]), dtype=torch.float32)
    return torch.nn.functional.pad(codes, (0, length - len(codes)))


def train() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    ds = prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), load, config={"length": 32})
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(ds, batch_size=2, shuffle=True)
    )
    seen = []

    def step(batch: torch.Tensor) -> None:
        seen.append(batch.clone())
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    for batch in loader:
        step(batch)
    accelerator.save_state("state")
    accelerator.wait_for_everyone()
    accelerator.load_state("state")
    for batch in accelerator.skip_first_batches(loader, 1):  # an epoch that is resumed after its first batch
        step(batch)
    torch.save((seen, ds.report().computed), f"accelerate-rank-{accelerator.process_index}.pt")
    accelerator.end_training()


def main() -> tuple[list[int], list[torch.Tensor]]:
    """Starts the ranks; returns how many samples each one preprocessed, and what they saw."""
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
    ranks = [torch.load(f"accelerate-rank-{rank}.pt") for rank in range(2)]
    return [computed for _, computed in ranks], [batch for seen, _ in ranks for batch in seen]


if __name__ == "__main__":
    train()
