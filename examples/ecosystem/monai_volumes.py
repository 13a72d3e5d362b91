"""MONAI: a `Compose` is split. What is deterministic is cached; what is random runs on every access.

A `MetaTensor` has metadata that no column keeps, so the last cached transform turns it into a tensor.
"""

from pathlib import Path

import nibabel
import numpy as np
import torch
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    EnsureTyped,
    LoadImaged,
    RandFlipd,
    ScaleIntensityd,
)
from torch.utils.data import DataLoader

import prepcache


def write_volumes(folder: Path) -> list[Path]:
    """A few NIfTI volumes, written once."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.nii" for number in range(4)]
    for number, path in enumerate(paths):
        if not path.exists():
            voxels = np.arange(512, dtype=np.float32).reshape(8, 8, 8) * (number + 1)
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), path)
    return paths


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    items = [{"image": path} for path in write_volumes(Path("volumes"))]
    deterministic = Compose([
        LoadImaged(keys=["image"]),
        EnsureChannelFirstd(keys=["image"]),
        ScaleIntensityd(keys=["image"]),
        EnsureTyped(keys=["image"], track_meta=False),
    ])  # fmt: skip
    random = Compose([RandFlipd(keys=["image"], prob=0.5, spatial_axis=0)]).set_random_state(seed=0)
    train = prepcache.CachedDataset(items[:3], deterministic, transform=random)
    validation = prepcache.CachedDataset(items[3:], deterministic)
    seen = [batch["image"].clone() for _ in range(2) for batch in DataLoader(train, batch_size=2)]
    return [train, validation], [*seen, validation[0]["image"]]


if __name__ == "__main__":
    print(main()[0][0].report())
