"""Batches and torch's collation: columns go through as they are, and whoever looks sees samples."""

import os
import pickle
import sys
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, StackDataset, Subset
from torch.utils.data._utils import collate as _collate
from torch.utils.data._utils.collate import default_collate_fn_map

from prepcache import collate
from prepcache.batching import collation, lending
from prepcache.batching.collation import default_collate
from prepcache.batching.gather import Rows
from prepcache.collate import pack_collate, pad_collate
from prepcache.loader import Loader
from support.artifacts import same
from support.programs import python
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
    functions = [None, torch.utils.data.default_collate, pad_collate, pack_collate, pad_collate(leaves=["0"])]
    for function in functions:
        made = next(iter(DataLoader(ds, 3, collate_fn=function)))
        assert same(made, (function or default_collate)([sample(i) for i in range(3)]))
    of = default_collate_fn_map  # torch's table is as it was
    assert {one.__module__ for one in of.values()} == {of[int].__module__}


def doubled_ints(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return [2 * value for value in batch]


def test_what_others_change_of_torchs_collation_is_obeyed(rows, monkeypatch, own):
    table = {**default_collate_fn_map, int: doubled_ints}
    for change in (
        partial(monkeypatch.setitem, default_collate_fn_map, int, doubled_ints),
        partial(monkeypatch.setattr, "torch.utils.data._utils.collate.default_collate_fn_map", table),
        partial(
            monkeypatch.setattr,
            "torch.utils.data._utils.collate.collate",
            lambda batch, of_torch=_collate.collate, **_: of_torch(batch, collate_fn_map=table),
        ),
    ):
        assert default_collate(rows.take(PICKS))[1].tolist() == PICKS
        change()
        for made in (default_collate(rows.take(PICKS)), sent(list(rows.take(PICKS)))):
            assert made[1] == [8, 0, 18]
        monkeypatch.undo()


CHANGED_BEFORE = """
import functools, sys
from pathlib import Path
from torch.utils.data import DataLoader
from torch.utils.data._utils import collate, fetch
given = []
@functools.wraps(collate.default_collate)
def numbers(samples, of_torch=collate.default_collate):
    given.append(type(samples))
    return of_torch(samples).tolist()
def fetched(self, indices):
    made_of = self.collate_fn
    return made_of(self.dataset.__getitems__(indices))
if sys.argv[2] == "fetch":
    fetch._MapDatasetFetcher.fetch = fetched
else:
    collate.default_collate = numbers
from support.rows import Stored, rows_of
ds = Stored(rows_of(Path(sys.argv[1]), [*range(6)]))
made = [*DataLoader(ds, 3)]
if sys.argv[2] == "fetch":
    assert [one.tolist() for one in made] == [[0, 1, 2], [3, 4, 5]]
else:
    assert made == [[0, 1, 2], [3, 4, 5]] and given == [list] * 2
"""


@pytest.mark.parametrize("what", ["fetch", "default_collate"])
def test_what_others_changed_before_the_import_is_obeyed(tmp_path, what):
    python("-c", CHANGED_BEFORE, tmp_path, what, env=os.environ | {"PYTHONPATH": ":".join(sys.path)})


class Noted(TorchDispatchMode):
    """Notes what torch is asked to do."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(function.name())
        return function(*args, **(kwargs or {}))


CALLED: list[str] = []


@pytest.fixture
def own(monkeypatch):
    """That of a worker, which is its own job here."""
    made = lending.Lending()
    for module in (collation, collate, lending):
        monkeypatch.setattr(module, "LENDING", made)
    monkeypatch.setattr(lending, "_MAPS", {})
    return made


def sent(batch: Any, function: Any = default_collate) -> Any:
    raw = pickle.dumps(collation.Lends(function)(batch))
    assert len(raw) < 2000
    return pickle.loads(raw)


def blocks_of(own: Any) -> tuple[int, int]:
    """How many the worker has, and its job has mapped."""
    return len(own._all), len(lending._MAPS)


def test_what_a_worker_makes_is_copied_once_into_lent_memory(own, monkeypatch):
    CALLED.clear()
    samples = [torch.full((3, 100, 100), i) for i in range(6)]
    for at in range(0, 6, 2):
        with Noted():
            got = sent(samples[at : at + 2])
        assert same(got, torch.stack(samples[at : at + 2]))
        assert blocks_of(own) == (1, 1)
        del got
    views = {"aten::view", "aten::view.dtype", "aten::lift_fresh", "aten::detach"}
    assert [name for name in CALLED if name not in views] == ["aten::stack.out"] * 3
    for name in ("open", "memory_file"):  # fails, as where a kernel cannot, or it is forbidden
        own.after_fork()
        monkeypatch.setattr(lending, name, lambda *_: os.stat("nowhere"), raising=False)
        with pytest.raises(OSError, match="nowhere"):
            own.block(1)
        assert same(collation.Lends(default_collate)(samples), torch.stack(samples))


@pytest.mark.parametrize("function", [default_collate, pad_collate()], ids=["default", "padded"])
def test_what_a_worker_gathers_is_copied_once_into_lent_memory(tmp_path, own, function):
    size = 5 if function is not default_collate else 0
    samples = [
        (torch.full((20_000 + i * size,), i), torch.full((9, 5_000), i).half(), "words " * 10_000, i)
        for i in range(9)
    ]
    rows = rows_of(tmp_path, samples, 2)
    CALLED.clear()
    for picks in ([8, 0, 5], [1, 1], [4, 7, 2]):
        batch = rows.take(picks)
        batch.pool = own  # type: ignore[union-attr]
        with Noted():
            got = sent(batch, function)
        assert same(got, function(rows.take(picks)))
        assert blocks_of(own) == (3, 3), "a block for each large column"
        del got
    assert not any("copy_" in name or "stack" in name for name in CALLED)


def test_what_is_gathered_in_vain_is_lent_for_the_next_batch(tmp_path, own):
    rows = rows_of(tmp_path, [torch.full((20_000 + i,), i) for i in range(4)])
    for _ in range(3):
        batch = rows.take([0, 1])
        batch.pool = own  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="equal size"):
            sent(batch)
    assert blocks_of(own) == (1, 0)


class Held(dict[str, Any]):
    """A container of somebody's own, without attributes."""

    __getattr__ = dict.__getitem__


def test_what_own_collate_functions_make_is_lent_as_it_is(own):
    large, small = torch.arange(20_000), torch.arange(3).half()
    images = large.float().reshape(2, 4, 50, 50).contiguous(memory_format=torch.channels_last)

    def collate(samples: Any) -> Any:
        words = ["a", "b"]
        words.append(words)  # type: ignore[arg-type]
        return (
            Held(ids=large, labels=large.view(2, -1), part=large[1:], images=images),
            words,
            [(small, None)],
        )

    got, words, more = sent([0], collate)
    assert type(got) is Held and words[2] is words and same(more, [(small, None)])
    assert same(got, collate([0])[0]) and got["images"].stride() == images.stride()
    assert blocks_of(own) == (2, 2)
    got["ids"][1] = -1
    assert got["labels"][0, 1] == got["part"][0] == -1
    array = sent([0], lambda samples: [np.arange(20_000)] * 2)
    assert same(array[0], np.arange(20_000)) and array[0] is array[1] and blocks_of(own) == (3, 3)
    for given in ([0], Held()):  # a batch, or one sample
        assert same(pickle.loads(pickle.dumps(collation.Lends(lambda _: large[1:])(given))), large[1:])
    assert blocks_of(own) == (3, 3)
    assert same(sent([0], lambda _: large.clone().share_memory_()), large)


@pytest.mark.parametrize("function", [default_collate, list], ids=["default", "own"])
def test_a_default_device_is_not_that_of_batches(own, function):
    samples = [(torch.full((20_000,), i), torch.full((3,), i)) for i in range(4)]
    expected = function(samples)
    with torch.device("meta"):
        assert same(sent(samples, function), expected)


def test_blocks_of_many_columns_are_used_again(own):
    samples = [tuple(torch.full((20_000,), i) for i in range(30))] * 2
    kept: deque[Any] = deque(maxlen=3)
    for _ in range(8):
        kept.append(pickle.loads(pickle.dumps(collation.Lends(default_collate)(samples))))
    assert blocks_of(own) == (120, 120)


def test_whoever_collects_batches_has_each(own, monkeypatch):
    monkeypatch.setattr(lending, "_MOST_BLOCKS", 6)
    kept = [sent([torch.full((10_000,), i)] * 2) for i in range(20)]
    assert all((one == i).all() for i, one in enumerate(kept))
    del kept
    assert blocks_of(own) == (2, 2)


def test_blocks_that_are_not_used_any_more_are_given_up(own):
    kept = [sent([torch.full((10_000,), i)] * 2) for i in range(20)]
    assert blocks_of(own) == (20, 20)
    del kept
    for i in range(60):
        assert (sent([torch.full((10_000,), i)] * 2) == i).all()
    assert blocks_of(own) == (1, 1)


@pytest.mark.parametrize("function", [default_collate, lambda samples: [torch.ones(20_000), lambda: 0]])
def test_a_batch_that_fails_leaves_its_block_to_the_next(own, function):
    samples = [
        (torch.zeros(20_000), torch.zeros(i)) for i in (1, 2)
    ]  # of which only the first can be stacked
    for _ in range(3):
        with pytest.raises((RuntimeError, AttributeError, pickle.PicklingError)):
            collation.Lends(function)(samples)
    assert blocks_of(own) == (1, 0)


@pytest.mark.parametrize("begun", [[], [0]])
def test_what_is_let_go_of_while_a_fork_is_under_way_stays_lent(own, monkeypatch, begun):
    got = sent([torch.zeros(10_000)] * 2)
    monkeypatch.setattr(lending, "_BEGUN", [*lending._BEGUN, *begun])
    assert same(got, torch.zeros(2, 10_000))
    del got
    assert own._all[0].memory[0] == (lending._LOST if begun else lending._FREE)
    sent([torch.zeros(10_000)] * 2)
    assert blocks_of(own) == (1, 1)
