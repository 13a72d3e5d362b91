"""CachedFirstSampler: epochs are permutations in which cached samples come first."""

import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from prepcache import CachedDataset, CachedFirstSampler
from prepcache import sampler as sampling

COUNT = 50

pytestmark = pytest.mark.usefixtures("no_daemon")


@pytest.fixture(name="ds")
def ds_fixture(no_daemon: None) -> CachedDataset[int]:
    return CachedDataset(range(COUNT), abs, lazy=True, progress=False)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def there(ds: Any, cached: set[int]) -> None:
    """These positions are cached, from now on."""
    ds._samples.catalogue.places.artifact[[*cached]] = 0


def test_each_epoch_is_another_permutation_of_all_positions(ds):
    sampler = CachedFirstSampler(ds, generator=seeded(1))
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(COUNT)) and len(sampler) == COUNT
    assert first != second and first != sorted(first)
    assert list(CachedFirstSampler(ds, generator=seeded(1))) == first
    assert list(CachedFirstSampler(ds, generator=seeded(2))) != first


def test_cached_samples_come_first_and_in_random_order(ds, monkeypatch):
    """What is missing costs no look each: that walks over all that are left."""
    looked = Mock(wraps=ds.are_cached)
    monkeypatch.setattr(ds, "are_cached", looked)
    monkeypatch.setattr(sampling, "LOOK_S", math.inf)
    there(ds, set(range(20)))
    order = list(CachedFirstSampler(ds, generator=seeded(1)))
    looked.assert_called_once()
    assert set(order[:20]) == set(range(20)) and sorted(order) == list(range(COUNT))
    assert order[:20] != sorted(order[:20]) and order[20:] != sorted(order[20:])


def test_what_others_make_meanwhile_comes_next(ds, monkeypatch):
    monkeypatch.setattr(sampling, "LOOK_S", 0.0)
    positions = iter(CachedFirstSampler(ds, generator=seeded(1)))
    given = [next(positions)]
    made = {position for position in range(COUNT) if position not in given and position % 3 == 0}
    there(ds, made)
    given += [next(positions) for _ in made]
    assert set(given[1:]) == made
    assert sorted([*given, *positions]) == list(range(COUNT))


@pytest.mark.parametrize("asked", [0, 17, COUNT])
@pytest.mark.parametrize("ahead", [0, 5])
def test_an_epoch_is_resumed_where_it_stood(ds, asked, ahead):
    """Whatever a DataLoader had asked for ahead; later epochs are those of the run that went on."""
    whole = CachedFirstSampler(ds, generator=seeded(1))
    positions = iter(whole)
    given = [next(positions) for _ in range(asked)]
    state = whole.state_dict(max(0, asked - ahead))
    resumed = CachedFirstSampler(ds, generator=seeded(9))
    resumed.load_state_dict(state)
    trained = given[: max(0, asked - ahead)]
    assert sorted([*trained, *resumed]) == list(range(COUNT))
    assert list(resumed) == list(whole)


def test_ranks_share_an_epoch_in_parts_of_one_length(ds):
    for generator in (lambda: None, lambda: seeded(4)):
        ranks = [
            CachedFirstSampler(ds, generator=generator(), num_replicas=3, rank=rank) for rank in range(3)
        ]
        for _ in range(2):
            parts = [list(sampler) for sampler in ranks]
            assert [len(part) for part in parts] == [17] * 3 == [len(sampler) for sampler in ranks]
            assert {position for part in parts for position in part} == set(range(COUNT))


def test_what_cannot_be_sampled_is_refused_by_name(ds):
    with pytest.raises(TypeError, match="takes a CachedDataset, not list"):
        CachedFirstSampler([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_replicas - 1 = 1, not 2"):
        CachedFirstSampler(ds, num_replicas=2, rank=2)
    sampler = CachedFirstSampler(ds)
    state = sampler.state_dict()
    wrong_states: list[Any] = [{**state, "given": given} for given in (None, ["a"])]
    for wrong in (None, {}, {**state, "seed": None}, {**state, "epoch": "1"}, *wrong_states):
        with pytest.raises(TypeError, match="not a CachedFirstSampler's state"):
            sampler.load_state_dict(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has samples=7, but this sampler has 50"):
        sampler.load_state_dict({**state, "samples": 7})
    with pytest.raises(ValueError, match="has yielded only 0 samples"):
        sampler.state_dict(1)


def test_an_empty_data_set_has_empty_epochs():
    empty = CachedDataset([], abs, lazy=True, progress=False)
    assert list(CachedFirstSampler(empty)) == [] == list(CachedFirstSampler(empty, num_replicas=2))
