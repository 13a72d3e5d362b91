"""Hydra: pass the values that preprocessing needs, not the whole config, and a sweep shares the cache.

python hydra_multirun.py --multirun data.length=16,32 optimizer.lr=0.1,0.01
"""

from __future__ import annotations

from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf

import prepcache


def load(path: Path, length: int) -> torch.Tensor:
    codes = torch.tensor(list(path.read_bytes()[:length]), dtype=torch.float32)
    return torch.nn.functional.pad(codes, (0, length - len(codes)))


def train(cfg: DictConfig) -> prepcache.CachedDataset:
    paths = sorted(Path("corpus").glob("*.txt"))
    return prepcache.CachedDataset(paths, load, config={"length": cfg.data.length})


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    """The four runs of the sweep above, one after the other: two lengths, each preprocessed once."""
    sweep = [(length, lr) for length in (16, 32) for lr in (0.1, 0.01)]
    runs = [train(OmegaConf.create({"data": {"length": n}, "optimizer": {"lr": lr}})) for n, lr in sweep]
    return runs, [ds[at] for ds in runs for at in range(len(ds))]


@hydra.main(version_base=None, config_path=None)
def command(cfg: DictConfig) -> None:
    defaults = OmegaConf.create({"data": {"length": 16}, "optimizer": {"lr": 0.1}})
    print(train(OmegaConf.merge(defaults, cfg)).report())


if __name__ == "__main__":
    command()
