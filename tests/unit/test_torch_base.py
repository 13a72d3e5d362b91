"""A data set is a `Dataset` of torch's, for frameworks that ask; and torch is not loaded for that."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset

import prepcache
from prepcache import CachedDataset, Loader

THEIRS = {
    "torch/__init__.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": """
from .dataset import Dataset, IterableDataset, get_worker_info
from . import sampler
""",
    "torch/utils/data/dataset.py": """
from typing import Generic, Iterable, TypeVar
T_co = TypeVar("T_co", covariant=True)
class Dataset(Generic[T_co]):
    def __getitem__(self, index) -> T_co:
        raise NotImplementedError
    def __add__(self, other):
        return [*self, *other]
class IterableDataset(Dataset[T_co], Iterable):
    pass
def get_worker_info():
    pass
""",
    "torch/utils/data/sampler.py": "",
}
"""As much of torch as this is about: importing the real one takes seconds."""

JOB = """
import pickle, sys
from prepcache import CachedDataset, CachedIterableDataset

class Mine(CachedDataset):
    pass

made = CachedDataset(["a", "b"], str.upper, progress=False, version=1, code=None)
mine = Mine(["c"], str.upper, progress=False, version=1, code=None)
read = CachedIterableDataset(["a", "b"], str.upper, progress=False, version=1, code=None)
sent = pickle.dumps(made)
assert "torch" not in sys.modules
was = CachedDataset

import torch.utils.data

from prepcache import CachedDataset
assert CachedDataset is was is type(made) is type(pickle.loads(sent))
for one in (made, mine, pickle.loads(sent)):
    assert isinstance(one, torch.utils.data.Dataset), type(one).__mro__
assert isinstance(read, torch.utils.data.IterableDataset) and list(read) == ["A", "B"]
assert not isinstance(made, torch.utils.data.IterableDataset)
assert made + mine == ["A", "B", "C"]
assert isinstance(Mine(["d"], str.upper, progress=False, version=1, code=None), torch.utils.data.Dataset)
"""


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PREPCACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_it_is_one_of_torchs_where_torch_is_loaded() -> None:
    ds = CachedDataset([1, 2], str, progress=False)
    assert isinstance(ds, Dataset)
    both = ds + CachedDataset([3], str, progress=False)
    assert isinstance(both, ConcatDataset) and list(both) == ["1", "2", "3"]
    sent = pickle.loads(pickle.dumps(ds))
    assert type(sent) is prepcache.CachedDataset and isinstance(sent, Dataset) and list(sent) == ["1", "2"]


def test_it_becomes_one_when_torch_is_imported_later(tmp_path: Path) -> None:
    for name, text in THEIRS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_class_whose_bases_python_does_not_change_stays_as_it_is() -> None:
    from prepcache.data.torch_base import follow

    class Slotted:
        __slots__ = ("only",)

    assert follow(Slotted) is Slotted
    assert not issubclass(Slotted, Dataset)


class Augmented(CachedDataset):
    """Does to a sample what `transform=` would, as data sets of torch's do."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + "!"


class Again(Augmented):
    """Nothing of its own."""


class Batched(Augmented):
    """Has both, and knows that its samples are not in the batches that it asks for."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [sample + "?" for sample in CachedDataset.__getitems__(self, indices)]


class Last(Batched):
    """Of what it is made of, its samples come last."""

    def __getitem__(self, index: int) -> Any:
        return CachedDataset.__getitem__(self, index) + "."


@pytest.mark.parametrize(("cls", "mark"), [(Augmented, "!"), (Again, "!"), (Batched, "?"), (Last, ".")])
@pytest.mark.parametrize("load", [DataLoader, Loader])
def test_what_a_subclass_makes_of_its_samples_is_in_its_batches(load: Any, cls: Any, mark: str) -> None:
    ds = cls(["a", "b", "c"], str.upper, progress=False, version=1, code=None)
    assert list(load(ds, 2)) == [["A" + mark, "B" + mark], ["C" + mark]]
