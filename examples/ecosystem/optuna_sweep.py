"""Optuna: trials that share a preprocessing config share its tensors."""

from pathlib import Path

import optuna
import torch

import prepcache


def load(path: Path, length: int) -> torch.Tensor:
    codes = torch.tensor(list(path.read_bytes()[:length]), dtype=torch.float32)
    return torch.nn.functional.pad(codes, (0, length - len(codes)))


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened = []

    def objective(trial: optuna.Trial) -> float:
        length = trial.suggest_categorical("length", [16, 32])
        scale = trial.suggest_float("scale", 0.1, 1.0)  # not preprocessing: not in the config
        ds = prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), load, config={"length": length})
        opened.append(ds)
        return float(sum(ds[at].mean() for at in range(len(ds)))) * scale

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=6)
    return opened, [ds[at] for ds in opened for at in range(len(ds))]


if __name__ == "__main__":
    print([ds.report().computed for ds in main()[0]])
