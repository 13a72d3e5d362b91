"""A data set is a `Dataset` of torch's, for frameworks that ask, where torch is installed."""

import pickle
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset

import prepcache
from prepcache import CachedDataset, Loader
from support.programs import python

WITHOUT = """
import sys
sys.modules["torch"] = None  # not installed
from prepcache import CachedDataset, CachedIterableDataset
ds = CachedDataset(["a", "b"], str.upper, progress=False, version=1, code=None)
assert list(ds) == ds.__getitems__([0, 1]) == ["A", "B"]
assert list(CachedIterableDataset(["a", "b"], str.upper, progress=False, version=1, code=None)) == ["A", "B"]
assert not [name for name in sys.modules if name.startswith("torch.")]
"""


pytestmark = pytest.mark.usefixtures("no_daemon")


def test_it_is_one_of_torchs_where_torch_is_loaded():
    ds = CachedDataset([1, 2], str, progress=False)
    assert isinstance(ds, Dataset)
    both = ds + CachedDataset([3], str, progress=False)
    assert isinstance(both, ConcatDataset) and list(both) == ["1", "2", "3"]
    sent = pickle.loads(pickle.dumps(ds))
    assert type(sent) is prepcache.CachedDataset and isinstance(sent, Dataset) and list(sent) == ["1", "2"]


def test_a_job_of_numpy_alone_has_data_sets_too():
    python("-c", WITHOUT)


class Augmented(CachedDataset[str]):
    """Does to a sample what `transform=` would, as data sets of torch's do."""

    def __getitem__(self, index: int) -> str:
        return super().__getitem__(index) + "!"


class Again(Augmented):
    """Nothing of its own."""


class Batched(Augmented):
    """Has both, and knows that its samples are not in the batches that it asks for."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [sample + "?" for sample in CachedDataset.__getitems__(self, indices)]


@pytest.mark.parametrize(("cls", "mark"), [(Augmented, "!"), (Again, "!"), (Batched, "?")])
@pytest.mark.parametrize("load", [DataLoader, Loader])
def test_what_a_subclass_makes_of_its_samples_is_in_its_batches(load, cls, mark):
    ds = cls(["a", "b", "c"], str.upper, progress=False, version=1, code=None)
    assert list(load(ds, 2)) == [["A" + mark, "B" + mark], ["C" + mark]]
