"""CachedDataset.wrap: an existing map-style dataset, cached item by item, or refused with what to do."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from prepcache import CachedDataset, Client
from prepcache.keys.observation import observer

CALLS: list[int] = []


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.factor


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """As people write them: `__getitem__(i)` reads file i and applies a transform."""

    def __init__(self, paths: list[Path], labels: list[int], transform: Callable[[Any], Any]) -> None:
        self.paths = paths
        self.labels = labels
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        CALLS.append(index)
        return self.transform(torch.tensor(int(self.paths[index].read_text()))), self.labels[index]

    def name(self, index: int) -> Any:
        return self.paths[index], self.labels[index]


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a job of its own: with `untracked=`, what other functions of its code read counts, too."""
    monkeypatch.setattr(observer, "_log", [])


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.txt" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_text(str(number + 1))
    return paths


def made(
    client: Client,
    old: Numbers,
    key: Callable[[int], Any] | None = None,
    untracked: tuple[str, ...] = ("paths", "labels"),
) -> set[int]:
    """The positions whose samples were made, having compared all samples with those of the dataset."""
    CALLS.clear()
    options: Any = {"client": client, "progress": False, "untracked": ("CALLS", *untracked)}
    ds = CachedDataset.wrap(old, key=key or old.name, **options)
    found = set(CALLS)
    assert list(ds) == [old[i] for i in range(len(old))]
    return found


def test_items_are_found_in_any_order_and_subset(client, paths):
    labels = [10, 11, 12, 13, 14]
    assert made(client, Numbers(paths, labels, Scale(2))) == {0, 1, 2, 3, 4}
    assert made(client, Numbers(paths, labels, Scale(2))) == set()
    assert made(client, Numbers(paths[::-1], labels[::-1], Scale(2))) == set()
    assert made(client, Numbers(paths[1:3], labels[1:3], Scale(2))) == set()


def test_only_what_changed_is_made_again(client, paths):
    labels = [10, 11, 12, 13, 14]
    made(client, Numbers(paths, labels, Scale(2)))
    paths[3].write_text("70")
    assert made(client, Numbers(paths, labels, Scale(2))) == {3}
    labels[1] = 99
    assert made(client, Numbers(paths, labels, Scale(2))) == {1}
    assert made(client, Numbers(paths, labels, Scale(3))) == {0, 1, 2, 3, 4}, "the transform counts"


def test_a_dataset_that_is_cached_in_part_makes_nothing_twice(client, paths):
    labels = list(range(5))
    made(client, Numbers(paths[:3], labels, Scale(2)))
    assert made(client, Numbers(paths, labels, Scale(2))) == {3, 4}
    assert sorted(CALLS[: CALLS.index(0)]) == [3, 4], "before they are compared"


def test_a_list_counts_whole_unless_it_is_left_out(client, paths):
    labels = [10, 11, 12, 13, 14]
    assert made(client, Numbers(paths, labels, Scale(2)), untracked=()) == {0, 1, 2, 3, 4}
    assert made(client, Numbers(paths, [*labels], Scale(2)), untracked=()) == set(), "equal lists count alike"
    other = Numbers(paths, [10, 11, 12, 13, 99], Scale(2))
    assert made(client, other, lambda i: other.paths[i], ()) == {0, 1, 2, 3, 4}, "never a stale label"


class Items(Dataset[str]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> str:
        return repr(self.items[index])


def test_keys_that_are_equal_and_differ_are_told_apart(client):
    items = [1, True, 1.0, 0.0, -0.0, (1, "a"), (True, "a"), (1.0, "a")]
    ds = CachedDataset.wrap(Items(items), key=lambda i: items[i], client=client, progress=False)
    assert list(ds) == [repr(item) for item in items]


DRAWS = """
import sys
import numpy as np
import torch
from prepcache import CachedDataset, UnkeyableError

class Compose:
    # As albumentations': what it holds is left out of the key.
    def __init__(self):
        self.random_generator = np.random.default_rng()
    def __getstate__(self):
        return {}
    def __call__(self, index):
        return index + self.random_generator.random()

class Global:
    def __call__(self, index):
        return index + np.random.rand()

class InVain(Compose):
    def __call__(self, index):  # as albumentations' does whether it applies what always applies
        return index if self.random_generator.random() < 1 else 0

class Seeded:
    def __init__(self):
        self.generator = torch.Generator()
    def __call__(self, index):
        return torch.rand(1, generator=self.generator.manual_seed(index))

class Flips:
    def __init__(self):
        self.transform = globals()[sys.argv[1]]()
    def __len__(self):
        return 5
    def __getitem__(self, index):
        return np.array([self.transform(index)])

try:
    CachedDataset.wrap(Flips(), key=lambda i: i, progress=False, lazy="lazy" in sys.argv)[0]
except UnkeyableError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["fill", "lazy"])
@pytest.mark.parametrize(
    ("of", "named"),
    [("Global", "numpy.random"), ("Compose", r"preprocess.__self__.transform.random_generator")],
)
def test_a_dataset_that_draws_is_refused_in_words(tmp_path, box, of, named, how):
    """In a process of its own: where other threads run, nobody can tell who drew."""
    script = tmp_path / "job.py"
    script.write_text(DRAWS)
    box.start_daemon()
    said = box.python(script, of, how).stdout
    assert re.search(rf"Flips draws random numbers \({re.escape(named)}\).* to transform=", said)


@pytest.mark.parametrize("of", ["InVain", "Seeded"])
def test_a_dataset_whose_draws_are_the_same_each_time_is_taken(tmp_path, box, of):
    script = tmp_path / "job.py"
    script.write_text(DRAWS)
    box.start_daemon()
    done = box.python(script, of)
    assert not done.stdout and "random" not in done.stderr, done


def test_a_transform_runs_after_the_cache(client, paths):
    old, factors = Numbers(paths, [0] * 5, Scale(1)), [1, 10]
    options: Any = {"untracked": ("CALLS",), "client": client, "progress": False}
    ds = CachedDataset.wrap(old, key=old.name, transform=lambda sample: sample[0] * factors[-1], **options)
    assert int(ds[4]) == int(ds.__getitems__([4])[0]) == 50
    factors.pop()
    assert int(ds[4]) == 5


def test_what_cannot_be_wrapped_is_refused(paths):
    old = Numbers(paths, [0] * 5, Scale(1))
    with pytest.raises(TypeError, match=r"map-style dataset.*CachedIterableDataset"):
        CachedDataset.wrap(iter(paths), key=old.name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        CachedDataset.wrap(old, key=lambda i: [paths[i]])
    with pytest.raises(ValueError, match="takes no read="):
        CachedDataset.wrap(old, key=old.name, read="bytes")
