"""Hydra: pass the values that preprocessing needs, not the whole config, and a sweep shares the cache.

python hydra_multirun.py --multirun data.length=16,32 optimizer.lr=0.1,0.01
"""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import hydra
import torch
from hydra.core.config_store import ConfigStore

import prepcache


@dataclass
class Data:
    length: int = 16


@dataclass
class Optimizer:
    lr: float = 0.1


@dataclass
class Config:
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)


ConfigStore.instance().store(name="config", node=Config)


def load(path: Path, length: int) -> torch.Tensor:
    codes = torch.tensor(list(path.read_bytes()[:length]), dtype=torch.float32)
    return torch.nn.functional.pad(codes, (0, length - len(codes)))


@hydra.main(version_base=None, config_path=None, config_name="config")
def train(cfg: Config) -> None:
    paths = sorted(Path("corpus").glob("*.txt"))
    ds = prepcache.CachedDataset(paths, load, config={"length": cfg.data.length})
    run = f"run-{cfg.data.length}-{cfg.optimizer.lr}.pt"
    torch.save(([ds[at] for at in range(len(ds))], ds.report().computed), run)


def main() -> tuple[list[int], list[torch.Tensor]]:
    """Starts the sweep; returns how many samples each of its four runs preprocessed, and all samples."""
    sweep = ["--multirun", "data.length=16,32", "optimizer.lr=0.1,0.01"]
    quiet = ["hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none"]
    subprocess.run([sys.executable, __file__, *sweep, *quiet], check=True)
    runs = [torch.load(f"run-{length}-{lr}.pt") for length in (16, 32) for lr in (0.1, 0.01)]
    return [computed for _, computed in runs], [sample for samples, _ in runs for sample in samples]


if __name__ == "__main__":
    train()
