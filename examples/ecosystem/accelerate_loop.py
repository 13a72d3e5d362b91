"""Hugging Face Accelerate: `prepare` a loader over a cached data set, save the state, and resume an epoch."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import prepcache


def load(path: Path, length: int) -> torch.Tensor:
    codes = torch.tensor(list(path.read_bytes()[:length]), dtype=torch.float32)
    return torch.nn.functional.pad(codes, (0, length - len(codes)))


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    ds = prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), load, config={"length": 32})
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(ds, batch_size=4, shuffle=True)
    )
    seen = []

    def step(batch: torch.Tensor) -> None:
        seen.append(batch.clone())
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    for batch in loader:
        step(batch)
    state = f"state-{os.getpid()}"
    accelerator.save_state(state)
    accelerator.load_state(state)
    for batch in accelerator.skip_first_batches(loader, 1):  # an epoch that is resumed after its first batch
        step(batch)
    return [ds], seen


if __name__ == "__main__":
    print(main()[0][0].report())
