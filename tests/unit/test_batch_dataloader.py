"""A plain DataLoader: every way to make batches gives what the single samples give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    SequentialSampler,
    StackDataset,
    Subset,
    random_split,
)

from support.artifacts import same
from support.rows import Stored, rows_of

COUNT = 23


def sample(i: int) -> Any:
    image = torch.from_numpy(np.random.default_rng(i).integers(0, 255, (3, 64, 64)).astype(np.uint8))
    return {"image": image, "pair": (np.float32(i), [i, i / 2]), "name": f"n{i}", "flag": i % 2 == 0}


class Singles(Dataset[Any]):
    """The slow path: the same samples, one at a time."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, i: int) -> Any:
        return self.stored[i]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Images are of three pages each."""
    return Stored(rows_of(tmp_path_factory.mktemp("stored"), [sample(i) for i in range(COUNT)], 3))


def as_list(batch: Any) -> Any:
    return list(batch)


def first_images(batch: Any) -> Any:
    return torch.stack([one["image"] for one in batch]), batch[0]["name"]


def loaders(dataset: Any) -> Iterator[tuple[str, Any]]:
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    yield "batches", DataLoader(dataset, batch_size=4)
    yield "shuffled", DataLoader(dataset, batch_size=4, shuffle=True, generator=seeded())
    yield "dropping the last", DataLoader(dataset, batch_size=4, drop_last=True)
    yield "subset", DataLoader(Subset(dataset, [5, 3, 3, 22, 0]), batch_size=2)
    yield "subset of a subset", DataLoader(Subset(Subset(dataset, range(5, 20)), [1, 9, 2]), batch_size=2)
    yield "split", DataLoader(random_split(dataset, [15, 8], seeded())[1], batch_size=3)
    weights = torch.utils.data.WeightedRandomSampler([1.0] * COUNT, 11, generator=seeded())
    yield "sampler", DataLoader(dataset, batch_size=4, sampler=weights)
    yield (
        "batch sampler",
        DataLoader(dataset, batch_sampler=BatchSampler(SequentialSampler(dataset), 5, False)),
    )
    yield "no batches", DataLoader(dataset, batch_size=None)
    yield "batch of one", DataLoader(dataset, batch_size=1)
    yield "one batch", DataLoader(dataset, batch_size=COUNT + 5)
    yield "lists", DataLoader(dataset, batch_size=4, collate_fn=as_list)
    yield "stacked", DataLoader(StackDataset(dataset, dataset), batch_size=4)
    yield "joined", DataLoader(ConcatDataset([dataset, dataset]), batch_size=4)
    yield "own collation", DataLoader(dataset, batch_size=4, collate_fn=first_images)


@pytest.mark.parametrize("number", range(15))
def test_batches_equal_those_of_the_single_samples(stored: Stored, number: int) -> None:
    (name, fast), (_, slow) = (list(loaders(dataset))[number] for dataset in (stored, Singles(stored)))
    assert same(list(fast), list(slow)), name


def test_a_worker_gathers_into_shared_memory(stored: Stored) -> None:
    for batch in DataLoader(stored, batch_size=8, num_workers=1, collate_fn=shared_in_worker):
        assert batch


def shared_in_worker(batch: Any) -> bool:
    return bool(torch.utils.data.default_collate(batch)["image"].is_shared())
