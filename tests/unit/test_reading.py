"""Where a stream's items come from: read once or again, in stretches, as they are when they are read."""

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from torch.utils.data import DataLoader, IterableDataset

from prepcache import iterable
from prepcache.errors import ConfigError
from prepcache.iterable import Reading, Source, Split, ranks_here, split_here, unsplit

ALL = Split(0, 1, 0, 1)


def read_all(items: Any, split: Split = ALL, count: int = 7) -> list[Any]:
    reading, found, numbers = Reading(Source(items), split), [], []
    while not reading.is_at_end:
        some, at, error = reading.read(count)
        assert error is None and len(some) <= count
        found += some
        numbers += at
    assert numbers == [split.first + n * split.step for n in range(len(found))]
    return found


class Shards(torch.utils.data.IterableDataset[int]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class ByIndex:
    def __getitem__(self, index: int) -> int:
        return range(3)[index]


def numbers() -> Iterator[int]:
    yield from range(3)


STREAMS = [iter(range(3)), numbers(), numbers, lambda: [0, 1, 2], dict.fromkeys(range(3)).keys(), Shards()]


@pytest.mark.parametrize("items", [*STREAMS, ByIndex(), range(3), [0, 1, 2]])
def test_what_is_iterated_over_is_read(items):
    assert read_all(items) == [0, 1, 2]


@pytest.mark.parametrize("items", ["text", b"", {}, {1}, frozenset(), 3])
def test_items_without_an_order_are_refused(items):
    with pytest.raises(TypeError, match=r"items must be a sequence, not .*: pass a list"):
        Source(items)


def test_shares_have_their_numbers_in_the_stream():
    assert read_all(range(100), Split(1, 2, 1, 3)) == list(range(3, 100, 6))


def test_a_function_that_returns_no_items_is_refused():
    with pytest.raises(TypeError, match=r"items\(\) must return an iterable, not NoneType"):
        Source(lambda: None).begin()  # type: ignore[arg-type, return-value]


def test_slow_items_and_large_ones_end_a_stretch_early(monkeypatch):
    now = [0.0]

    def slow() -> Iterator[int]:
        for number in range(10):
            now[0] += 0.1
            yield number

    reading = Reading(Source(slow), ALL, clock=lambda: now[0])
    assert [reading.read(8)[0] for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    monkeypatch.setattr(iterable, "READ_BYTES", 1000)
    reading = Reading(Source([b"x" * 400] * 4 + [np.zeros(10)] * 40), ALL, clock=lambda: 0.0)  # type: ignore[list-item]
    assert [len(reading.read(100)[0]) for _ in range(4)] == [3, 8, 13, 13]


def test_an_object_given_again_with_other_contents_is_another():
    def reused() -> Iterator[Any]:
        row, buffer = {"n": [0]}, np.zeros(1, int)
        for number in range(3):
            row["n"][0], buffer[0] = number, number
            yield row, buffer

    assert [(row["n"], buffer.tolist()) for row, buffer in read_all(reused)] == [([n], [n]) for n in range(3)]


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_ranks_come_from_torchrun_or_a_process_group(monkeypatch):
    assert ranks_here() == Split(0, 1) and split_here() == Split(0, 1, 0, 1)
    monkeypatch.setenv("RANK", "2")
    assert ranks_here() == Split(0, 1), "alone it says nothing"
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert ranks_here() == Split(2, 5)
    assert ranks_here(Split(1, 3)) == Split(1, 3)
    group: Any = types.ModuleType("torch.distributed")
    group.is_available = group.is_initialized = lambda: True
    group.get_rank, group.get_world_size = (lambda: 7), (lambda: 8)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert ranks_here(Split(1, 3)) == Split(7, 8)


@pytest.mark.parametrize(("rank", "ranks"), [("2", "2"), ("-1", "2"), ("0", "0"), ("", "2"), ("0", "x")])
def test_a_rank_that_cannot_be_is_an_error_and_no_other_share(monkeypatch, rank, ranks):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(ConfigError, match=r"RANK=.*are not valid"):
        ranks_here()


def test_who_deals_out_batches_to_the_ranks_gets_all_items(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dealer: Any = types.ModuleType("accelerate.data_loader")
    exec("def asks(ask):\n    return (lambda: ask())()", dealer.__dict__)
    assert dealer.asks(ranks_here) == Split(1, 2), "it is looked for where it is loaded"
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", dealer)
    assert dealer.asks(ranks_here) == Split(0, 1)
    assert ranks_here() == Split(1, 2)


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


def test_items_that_split_themselves_over_workers_are_read_whole():
    assert sorted(DataLoader(Read(), batch_size=None, num_workers=2)) == list(range(20))
    with unsplit():
        assert split_here().workers == 1
