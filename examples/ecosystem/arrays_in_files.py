"""h5py and zarr: many samples in one file. Each item names the file and the sample's position.

The whole file counts for every item, so an edit invalidates all of them.
"""

from pathlib import Path

import h5py
import numpy as np
import torch
import zarr
from torch.utils.data import DataLoader

import prepcache


def write(hdf5: Path, store: Path) -> None:
    values = np.arange(12 * 16, dtype=np.float32).reshape(12, 16)
    if not hdf5.exists():
        with h5py.File(hdf5, "w") as file:
            file["values"] = values
    if not store.exists():
        zarr.save(str(store), values)


def from_hdf5(item: tuple[Path, int]) -> torch.Tensor:
    path, at = item
    with h5py.File(path) as file:
        return torch.from_numpy(file["values"][at])


def from_zarr(item: tuple[Path, int]) -> torch.Tensor:
    """The item's path is a folder: it counts by its files."""
    path, at = item
    return torch.from_numpy(np.asarray(zarr.open_array(str(path), mode="r")[at]))


def main() -> tuple[list[prepcache.CachedDataset], list[torch.Tensor]]:
    hdf5, store = Path("values.h5"), Path("values.zarr")
    write(hdf5, store)
    by_hdf5 = prepcache.CachedDataset([(hdf5, at) for at in range(12)], from_hdf5)
    by_zarr = prepcache.CachedDataset([(store, at) for at in range(12)], from_zarr)
    seen = [
        batch.clone() for ds in (by_hdf5, by_zarr) for _ in range(2) for batch in DataLoader(ds, batch_size=4)
    ]
    return [by_hdf5, by_zarr], seen


if __name__ == "__main__":
    print(main()[0][0].report())
