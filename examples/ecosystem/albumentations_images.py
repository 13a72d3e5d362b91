"""Albumentations: resizing is cached, random crops and flips run on every access."""

from pathlib import Path

import albumentations
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

import prepcache

RESIZE = albumentations.Compose([albumentations.Resize(48, 48), albumentations.Normalize()])


def decode(path: Path) -> np.ndarray:
    return RESIZE(image=np.asarray(Image.open(path).convert("RGB")))["image"]


class Augment:
    """Random crops and flips with a generator of their own."""

    def __init__(self, seed: int) -> None:
        self.pipeline = albumentations.Compose(
            [albumentations.RandomCrop(32, 32), albumentations.HorizontalFlip()], seed=seed
        )

    def __call__(self, image: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self.pipeline(image=image)["image"].transpose(2, 0, 1).copy())


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    ds = prepcache.CachedDataset(sorted(Path("images").glob("*.png")), decode, transform=Augment(seed=0))
    return [ds], [batch.clone() for _ in range(2) for batch in DataLoader(ds, batch_size=4)]


if __name__ == "__main__":
    print(main()[0][0].report())
