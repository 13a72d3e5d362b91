"""Shares of workers and ranks: together each item once, and whoever else splits is not split again."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
from torch.utils.data import DataLoader, IterableDataset

from prepcache import streaming
from prepcache.errors import ConfigError
from prepcache.streaming import Ranks, Split, ranks_here, split_here, unsplit


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_ranks_come_from_torchrun_or_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ranks_here() == Ranks(0, 1) and split_here() == Split(0, 1, 0, 1)
    monkeypatch.setenv("RANK", "2")
    assert ranks_here() == Ranks(0, 1), "alone it says nothing"
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert ranks_here() == Ranks(2, 5)
    assert ranks_here(Ranks(1, 3)) == Ranks(1, 3)
    group: Any = types.ModuleType("torch.distributed")
    group.is_available = group.is_initialized = lambda: True
    group.get_rank, group.get_world_size = (lambda: 7), (lambda: 8)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert ranks_here(Ranks(1, 3)) == Ranks(7, 8)


@pytest.mark.parametrize(("rank", "ranks"), [("x", "2"), ("2", "2"), ("-1", "2"), ("0", "0"), ("", "1")])
def test_a_rank_that_cannot_be_is_an_error_and_no_other_share(
    monkeypatch: pytest.MonkeyPatch, rank: str, ranks: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(ConfigError, match=r"RANK=.*are not valid"):
        ranks_here()


def test_who_deals_out_batches_to_the_ranks_gets_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dealer: Any = types.ModuleType("accelerate.data_loader")
    exec("def asks(ask):\n    return (lambda: ask())()", dealer.__dict__)
    assert dealer.asks(ranks_here) == Ranks(1, 2), "it is looked for where it is loaded"
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", dealer)
    assert dealer.asks(ranks_here) == Ranks(0, 1)
    assert ranks_here() == Ranks(1, 2)


class Numbers(IterableDataset[int]):
    """Splits itself over workers, as data sets that stream shards do."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        yield from range(20) if info is None else range(info.id, 20, info.num_workers)


class Read(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        with unsplit():
            numbers = list(Numbers())
        one = split_here()
        yield from numbers[one.first :: one.step]


def test_items_that_split_themselves_over_workers_are_read_whole() -> None:
    assert sorted(DataLoader(Read(), batch_size=None, num_workers=2)) == list(range(20))
    with unsplit():
        assert streaming._workers() is None
