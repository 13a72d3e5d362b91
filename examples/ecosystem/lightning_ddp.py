"""PyTorch Lightning with DDP: two gloo processes train on one cached data set.

Lightning starts the second process itself, and gives each one a DistributedSampler. Both open the data set
at the same time, and divide the preprocessing between them.
"""

import os
import subprocess
import sys
from pathlib import Path

import lightning
import torch
from lightning_data_module import Model, TextData


def train() -> None:
    lightning.seed_everything(0, verbose=False)
    data, model = TextData(Path("corpus")), Model()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(model, datamodule=data)
    torch.save((model.seen, data.train.report().computed), f"lightning-rank-{trainer.global_rank}.pt")


def main() -> tuple[list[int], list[torch.Tensor]]:
    """Starts the ranks; returns how many samples each one preprocessed, and what they saw."""
    subprocess.run([sys.executable, __file__], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    ranks = [torch.load(f"lightning-rank-{rank}.pt") for rank in range(2)]
    return [computed for _, computed in ranks], [batch for seen, _ in ranks for batch in seen]


if __name__ == "__main__":
    train()
