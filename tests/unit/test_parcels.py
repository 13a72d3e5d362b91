"""What comes from a worker is what it sent, wherever it lay on the way, however long it is kept."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
import torch

from prepcache.fill import worker_results
from prepcache.fill.call import Job, Part
from prepcache.fill.worker_results import Inbox
from prepcache.fill.workers import Forked

ITEMS = 60


def made(item: int) -> dict[str, Any]:
    """Arrays of all sizes around that of a slot, below."""
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


def seen_slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where parcels lay."""
    slots: list[int] = []
    view = worker_results.Slots.view

    def note(self: worker_results.Slots, slot: int) -> Any:
        slots.append(slot)
        return view(self, slot)

    monkeypatch.setattr(worker_results.Slots, "view", note)
    return slots


@pytest.mark.parametrize("slot_bytes", [4096, 12288, 1 << 20])
def test_samples_that_are_kept_stay_as_they_were(monkeypatch: pytest.MonkeyPatch, slot_bytes: int) -> None:
    monkeypatch.setattr(worker_results, "SLOT_BYTES", slot_bytes)
    monkeypatch.setattr(worker_results, "SLOTS", 3)
    slots = seen_slots(monkeypatch)
    parts = parts_of(Forked(2, Job(made, {}), lambda index: index))
    assert sorted(part.index for part in parts) == list(range(ITEMS))
    for part in parts:
        (sample,) = part.samples
        wanted = made(part.index)
        assert sample.keys() == wanted.keys()
        assert all(is_equal(sample[name], wanted[name]) for name in wanted)
    assert len(slots) == 2 * 3  # each was filled once: what lay in it was kept


def test_a_slot_is_used_again_when_nothing_refers_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_results, "SLOTS", 1)
    slots = seen_slots(monkeypatch)
    crew = Forked(1, Job(lambda item: np.full(1000, item), {}), lambda index: index)
    for item in range(20):
        crew.submit([item])
        assert (crew.take().samples[0] == item).all()
    crew.close()
    assert len(slots) == 20


def test_a_slot_is_not_reused_while_a_view_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_results, "SLOTS", 1)
    slots = seen_slots(monkeypatch)
    crew = Forked(1, Job(lambda item: {"x": torch.full((1000,), item)}, {}), lambda index: index)
    crew.submit([0])
    kept = crew.take().samples[0]["x"][3:5].numpy()
    for item in range(1, 5):
        crew.submit([item])
        assert (crew.take().samples[0]["x"] == item).all()
    crew.close()
    assert kept.tolist() == [0, 0]
    assert slots == [0]


@pytest.mark.parametrize("slots", [0, 2])
def test_a_function_may_reuse_its_memory(monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    monkeypatch.setattr(worker_results, "SLOT_BYTES", 4096)
    monkeypatch.setattr(worker_results, "SLOTS", max(slots, 1))
    if not slots:
        monkeypatch.setattr(worker_results.Slots, "numbers", range(0))
    memory = np.zeros(200)

    def refill(item: int) -> Any:
        memory[:] = item
        return memory

    crew = Forked(1, Job(refill, {}), lambda index: index)
    crew.submit(list(range(20)))
    parts = [crew.take() for _ in range(20)]
    crew.close()
    assert [set(part.samples[0].tolist()) for part in parts] == [{float(item)} for item in range(20)]


def test_where_no_memory_can_be_shared_all_goes_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    slots = seen_slots(monkeypatch)
    parts = parts_of(Forked(2, Job(made, {}), lambda index: index))
    assert all(is_equal(part.samples[0]["array"], made(part.index)["array"]) for part in parts)
    assert not slots


def test_a_worker_that_is_gone_is_told_nothing() -> None:
    from multiprocessing.connection import Pipe

    ours, theirs = Pipe()
    theirs.close()
    inbox = Inbox(ours, worker_results.Slots())
    inbox.submit([1])
    with pytest.raises((EOFError, ConnectionResetError)):
        inbox.receive()
    ours.close()
