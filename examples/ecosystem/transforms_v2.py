"""Transforms like those of torchvision.transforms.v2: a cached Compose, and a random one at every access."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import prepcache


class Compose(nn.Module):
    """One transform after the other, as v2's."""

    def __init__(self, transforms: list[nn.Module]) -> None:
        super().__init__()
        self.transforms = transforms

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            image = transform(image)
        return image


class Resize(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        resized = nn.functional.interpolate(image[None], (self.size, self.size), mode="bilinear")
        return resized[0]


class RandomHorizontalFlip(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.flip(-1) if torch.rand(()) < 0.5 else image


CACHED = Compose([Resize(48)])
RANDOM = Compose([RandomHorizontalFlip()])


def decode(path: Path) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB")))
    return CACHED(pixels.permute(2, 0, 1).float() / 255)


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    ds = prepcache.CachedDataset(sorted(Path("images").glob("*.png")), decode, transform=RANDOM)
    torch.manual_seed(0)
    return [ds], [batch.clone() for _ in range(2) for batch in DataLoader(ds, batch_size=4)]


if __name__ == "__main__":
    print(main()[0][0].report())
