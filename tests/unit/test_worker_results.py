"""What comes from a worker is what it sent, whatever waited for it on its way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from prepcache.fill import workers
from prepcache.fill.call import Job, Part
from prepcache.fill.workers import Forked

ITEMS = 60


def made(item: int) -> dict[str, Any]:
    """Arrays and tensors of all sizes and layouts."""
    return {
        "array": np.full((item % 7, 100), item, np.int64),
        "tensor": torch.full((300 * (item % 5),), item, dtype=torch.bfloat16),
        "one": torch.arange(4.0).view(1, 4)[:, item % 4],  # contiguous, with a stride of 4
        "columns": np.asfortranarray(np.arange(600).reshape(20, 30) + item),
        "large": np.full(2000, item) if item % 9 == 0 else None,
        "name": f"item {item}",
    }


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other) and one.dtype == other.dtype
    return bool(one == other)


def parts_of(crew: Forked) -> list[Part]:
    try:
        for first in range(0, ITEMS, 4):
            crew.submit(list(range(first, first + 4)))
        parts = []
        while crew.pending:
            parts.append(crew.take())
        return parts
    finally:
        crew.close()


@pytest.mark.parametrize("waiting_bytes", [0, 12288])
def test_samples_arrive_as_they_were_made(monkeypatch: pytest.MonkeyPatch, waiting_bytes: int) -> None:
    monkeypatch.setattr(workers, "WAITING_BYTES", waiting_bytes)
    parts = parts_of(Forked(2, Job(made, {}), lambda index: index))
    assert sorted(part.index for part in parts) == list(range(ITEMS))
    for part in parts:
        (sample,) = part.samples
        wanted = made(part.index)
        assert sample.keys() == wanted.keys()
        assert all(is_equal(sample[name], wanted[name]) for name in wanted)
        sample["tensor"] += 1  # it may be written to
