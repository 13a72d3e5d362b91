"""A folder of PNGs, decoded and resized once: python examples/images.py FOLDER [--size 64]

Each image becomes a uint8[3, size, size] tensor. A second run, in this process or another, finds them all;
an edited image is decoded again, and only that one.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import prepcache
from show import summary


def decode(path: Path, size: int) -> torch.Tensor:
    """One image file as uint8[3, size, size]."""
    with Image.open(path) as image:
        small = image.convert("RGBA").convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(small)
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()

    files = sorted(args.folder.glob("*.png"))
    images = prepcache.CachedDataset(files, decode, config={"size": args.size}, root=args.folder)
    loader = torch.utils.data.DataLoader(images, batch_size=4, shuffle=True)
    mean = sum(batch.float().mean().item() for batch in loader) / len(loader)
    print(f"mean pixel {mean:.2f}")
    print(summary(images))


if __name__ == "__main__":
    main()
