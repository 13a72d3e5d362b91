"""PyTorch Lightning: a LightningDataModule over a cached data set, trained, checkpointed and resumed.

`prepare_data` is not needed: opening the data set in `setup` prepares what is missing, and all ranks share
that work.
"""

import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

import prepcache


def load(path: Path, length: int) -> dict[str, torch.Tensor]:
    codes = torch.tensor(list(path.read_bytes()[:length]), dtype=torch.float32)
    return {"x": torch.nn.functional.pad(codes, (0, length - len(codes))), "y": codes.mean()}


class TextData(lightning.LightningDataModule):
    """Batches of the texts of a folder."""

    def __init__(self, folder: Path, length: int = 32) -> None:
        super().__init__()
        self.folder = folder
        self.length = length
        self.train: prepcache.CachedDataset | None = None

    def setup(self, stage: str) -> None:
        if self.train is None:  # Lightning calls this for every fit
            paths = sorted(self.folder.glob("*.txt"))
            self.train = prepcache.CachedDataset(paths, load, config={"length": self.length})

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=4, shuffle=True)


class Model(lightning.LightningModule):
    """One linear layer; keeps what it saw, for the comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 1)
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.seen.append(batch["x"].clone())
        return torch.nn.functional.mse_loss(self.layer(batch["x"]).squeeze(1), batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def fit(model: Model, data: TextData, epochs: int, resume: str | None = None) -> lightning.Trainer:
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[ModelCheckpoint(dirpath=f"checkpoints-{os.getpid()}", save_top_k=-1)],
        logger=False,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=False)
    return trainer


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    lightning.seed_everything(0, verbose=False)
    data = TextData(Path("corpus"))
    first = Model()
    trainer = fit(first, data, epochs=2)
    resumed = Model()
    fit(resumed, data, epochs=3, resume=trainer.checkpoint_callback.best_model_path)
    return [data.train], [*first.seen, *resumed.seen]


if __name__ == "__main__":
    print(main()[0][0].report())
