"""Groups of the loader's batches: made and handed over together, and otherwise as if each came alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import prepcache
from prepcache.data import loader as loader_module
from prepcache.data.loader import AHEAD, GROUP_BATCHES, Loader
from support.artifacts import same
from support.rows import Stored, rows_of


@pytest.fixture(autouse=True)
def large_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is."""
    monkeypatch.setattr(loader_module, "GROUP_S", 1e6)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PREPCACHE", "off")

    def make(number: int) -> Any:
        made[number] += 1
        if number in bad:
            raise ValueError(f"{number} is bad")
        return torch.full((3,), number), number

    made: Counter[int] = Counter()
    bad: set[int] = set()
    opened = prepcache.CachedDataset(
        range(40), make, untracked=("made", "bad"), lazy=True, progress=False, code=None, version="1"
    )
    return opened, made, bad


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kinds", [1, 2])
def test_rows_that_are_found_together_are_those_of_each_batch(tmp_path: Path, parts: int, kinds: int) -> None:
    samples = [(torch.full((4,), i), i) if i % kinds == 0 else [torch.arange(i)] for i in range(30)]
    rows = rows_of(tmp_path, samples, parts)
    batches = np.array_split(np.random.default_rng(1).permutation(30), 7)
    found = [list(batch) for batch in rows.take_each(batches)]
    assert same(found, [[samples[i] for i in batch] for batch in batches])


def test_a_position_that_is_none_is_refused_in_a_group_too(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, list(range(5)), 2)
    with pytest.raises(IndexError, match="index 9 is out of range for a data set of 5 samples"):
        list(rows.take_each([np.array([1, 2]), np.array([0, 9])]))


def test_batches_are_handed_over_in_groups_once_the_first_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(SimpleQueue[Any]):
        def put(self, item: Any, *args: Any) -> None:
            if isinstance(item, tuple):
                groups.append(len(item[0]))
            super().put(item, *args)

    groups: list[int] = []
    monkeypatch.setattr(loader_module, "SimpleQueue", Watched)
    assert len(list(Loader(Stored(rows_of(tmp_path, list(range(22)))), 2))) == 11
    assert groups == [1, GROUP_BATCHES, GROUP_BATCHES, 2]


def test_no_more_than_two_groups_are_made_ahead(tmp_path: Path) -> None:
    class Counting(Stored):
        def __getitems__(self, indices: Any) -> list[Any]:
            asked.append(indices)
            return super().__getitems__(indices)

    asked: list[Any] = []
    epoch = iter(Loader(Counting(rows_of(tmp_path, list(range(99)))), 2))
    next(epoch)
    epoch.close()  # type: ignore[attr-defined]
    assert len(asked) <= 1 + AHEAD * GROUP_BATCHES


def test_samples_that_are_made_on_access_are_made_once(dataset: Any) -> None:
    opened, made, _ = dataset
    batches = list(Loader(opened, 3, shuffle=True, generator=torch.Generator().manual_seed(5)))
    assert made == Counter(range(40))
    plain = DataLoader(opened, 3, shuffle=True, generator=torch.Generator().manual_seed(5))
    assert same(batches, list(plain))


@pytest.mark.parametrize("number", [0, 7, 39])
def test_the_batches_before_an_error_are_given(dataset: Any, number: int) -> None:
    opened, made, bad = dataset
    bad.add(number)
    given: list[int] = []
    with pytest.raises(prepcache.PreprocessError, match=f"item {number} "):
        for _, numbers in Loader(opened, 2):
            given += numbers.tolist()
    assert given == list(range(number // 2 * 2))
    assert all(times == 1 for times in made.values())


def test_a_transform_and_a_collation_see_each_batch(dataset: Any) -> None:
    opened, _, _ = dataset
    opened.transform = lambda sample: sample[1] * 10
    seen = list(Loader(opened, 16, collate_fn=lambda samples: list(samples)))
    assert seen == [[10 * i for i in range(at, min(at + 16, 40))] for at in (0, 16, 32)]


def test_a_data_set_with_batches_of_its_own_is_asked_for_them(dataset: Any) -> None:
    class Doubled(prepcache.CachedDataset):
        def __getitems__(self, indices: Any) -> list[Any]:
            return [2 * i for i in indices]

    own = Doubled(range(6), str, progress=False)
    assert [batch.tolist() for batch in Loader(own, 4)] == [[0, 2, 4, 6], [8, 10]]
