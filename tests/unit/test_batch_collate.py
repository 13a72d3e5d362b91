"""Batches and torch's collation: columns go through as they are, and whoever looks sees samples."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._utils import ExceptionWrapper
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, StackDataset, Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from prepcache.batching import collation
from prepcache.batching.gather import Rows
from prepcache.collate import pack_collate, pad_collate
from prepcache.loader import Loader
from support.artifacts import same
from support.rows import Stored, rows_of


def sample(i: int) -> tuple[torch.Tensor, int]:
    return torch.full((3, 4), i, dtype=torch.uint8), i


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return rows_of(tmp_path, [sample(i) for i in range(10)], 2)


PICKS = [4, 0, 9]


class Forwards(torch.utils.data.Dataset[Any]):
    """A data set of somebody's, around ours."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitems__(self, indices: Any) -> Any:
        return self.inner.__getitems__(indices)


def as_it_came(samples: Any) -> Any:
    return samples


class Kind:
    """Tells what it is given."""

    def __call__(self, samples: Any) -> str:
        return type(samples).__name__


collation.TAKES_BATCHES[id(Kind)] = Kind


class Shown:
    """A wrapper that shows the class of what it wraps, as wrapt's do, and looks at what it passes on."""

    __class__ = Kind  # type: ignore[assignment]

    def __call__(self, samples: Any) -> str:
        return Kind()(samples)


def test_whoever_looks_is_given_a_list_of_samples(rows):
    """Code of others may change, join and compare it as it likes."""
    ds, expected = Stored(rows), [sample(i) for i in PICKS]
    loaders = (DataLoader(one, 3, sampler=PICKS, collate_fn=as_it_came) for one in (ds, Forwards(ds)))  # type: ignore[arg-type]
    subset = DataLoader(Subset(ds, PICKS), 3, collate_fn=as_it_came)
    ours = Loader(Subset(ds, PICKS), 3, collate_fn=as_it_came)
    for given in (ds.__getitems__(PICKS), *(next(iter(one)) for one in (*loaders, subset, ours))):
        assert type(given) is list and same(given, expected)
    stacked = DataLoader(StackDataset(ds, ds), 3, sampler=PICKS)
    assert next(iter(stacked))[1][1].tolist() == PICKS
    assert next(iter(DataLoader(Forwards(ds), 3, collate_fn=Kind()))) == "list"
    assert next(iter(DataLoader(ds, 3, collate_fn=Shown()))) == "list"


def test_what_collates_columns_is_given_a_batch(rows):
    ds = Stored(rows)
    for one in (ds, Subset(ds, range(5)), Subset(Subset(ds, range(9)), range(5))):
        assert next(iter(DataLoader(one, 3, collate_fn=Kind()))) == "Batch"
        assert next(iter(Loader(one, 3, collate_fn=Kind()))) == "Batch"
    for function in (None, default_collate, pad_collate, pack_collate, pad_collate(leaves=["0"])):
        made = next(iter(DataLoader(ds, 3, collate_fn=function)))
        assert same(made, (function or default_collate)([sample(i) for i in range(3)]))


def doubled_ints(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return [2 * value for value in batch]


def test_a_function_registered_with_torch_is_obeyed(rows, monkeypatch):
    default_collate(rows.take(PICKS))
    monkeypatch.setitem(default_collate_fn_map, int, doubled_ints)
    assert default_collate(rows.take(PICKS))[1] == [8, 0, 18]
    monkeypatch.undo()
    assert default_collate(rows.take(PICKS))[1].tolist() == PICKS


class Noted(TorchDispatchMode):
    """Notes what torch is asked to do."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(function.name())
        return function(*args, **(kwargs or {}))


CALLED: list[str] = []


def test_what_a_worker_makes_is_copied_once_into_lent_memory(monkeypatch):
    monkeypatch.setattr(collation, "_BLOCKS", [])
    samples = [torch.full((3, 100, 100), i) for i in range(6)]
    for at in range(0, 6, 2):
        with Noted():
            raw = pickle.dumps(default_collate(collation.Made(samples[at : at + 2])))  # type: ignore[arg-type]
            got = pickle.loads(raw)
        assert len(raw) < 1000 and same(got, torch.stack(samples[at : at + 2]))
        maps = Path("/proc/self/maps").read_text().splitlines()
        assert sum("memfd:prepcache" in one for one in maps) == 2, "one block, of its worker and its job"
        del got
    views = {"aten::view", "aten::view.dtype", "aten::lift_fresh", "aten::detach"}
    assert [name for name in CALLED if name not in views] == ["aten::stack.out"] * 3
    monkeypatch.setattr(collation, "_BLOCKS", [])
    monkeypatch.setattr(collation, "memory_file", open)  # fails, as where it is forbidden
    assert same(default_collate(collation.Made(samples)), torch.stack(samples))  # type: ignore[arg-type]


@pytest.mark.parametrize("begun", [[], [0]])
def test_what_is_let_go_of_while_a_fork_is_under_way_stays_lent(monkeypatch, begun):
    blocks: list[Any] = []
    monkeypatch.setattr(collation, "_BLOCKS", blocks)
    got = pickle.loads(pickle.dumps(default_collate(collation.Made([torch.zeros(10_000)] * 2))))  # type: ignore[arg-type]
    monkeypatch.setattr(collation, "_BEGUN", [*collation._BEGUN, *begun])
    assert same(got, torch.zeros(2, 10_000))
    del got
    assert blocks[0].memory[0] == (collation._HELD if begun else collation._FREE)


class Copy:
    """A data set of some samples, as the worker's batches name it."""

    __hash__ = None  # type: ignore[assignment]  # as of a dataclass

    def __init__(self, token: str, count: int) -> None:
        self.token, self.count = token, count
        collation.receives(self)

    def __len__(self) -> int:
        return self.count

    def gathered(self, positions: Any) -> list[Any]:
        return [(self.count, int(at)) for at in positions]


def arrive(token: str, count: int) -> Any:
    raw = np.array([2, 0], np.uint8).tobytes()
    return collation.arrived(token, count, "B", raw, list, 0)


@pytest.mark.parametrize("counts", [(3, 4), (4, 3)])
def test_a_batch_is_of_the_copy_of_its_length(counts):
    kept = [Copy("two copies", count) for count in counts]
    assert [arrive("two copies", one.count)[0][0] for one in kept] == list(counts)


def test_a_batch_of_no_copy_says_what_to_do():
    kept = Copy("one copy", 3)
    for token, count, advice in (("one copy", 5, "start a new epoch"), ("no copy", 3, "keep it until")):
        failed = arrive(token, count)
        assert isinstance(failed, ExceptionWrapper) and advice in str(failed.exc_msg)
    assert len(kept) == 3
