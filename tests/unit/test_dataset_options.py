"""What a data set says at its opening: options that cannot work, and that there is no daemon."""

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prepcache
from prepcache import CachedDataset
from prepcache.daemon.waits import WaitBudget


def whole(item: int) -> int:
    return item


class Cluster:
    """As a cluster's client, which is no executor."""

    def submit(self, function: Any, *args: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"verify_fraction": 1.5}, ValueError, "between 0 and 1"),
        ({"verify_fraction": np.float32(1.5)}, ValueError, "between 0 and 1"),
        ({"num_workers": -1}, ValueError, "a number of workers, not -1"),
        *(
            ({name: 1j}, TypeError, f"{name} must be .*, not complex")
            for name in ("name", "untracked", "environment", "root", "num_workers", "verify_fraction")
        ),
        ({"num_workers": 2, "executor": ThreadPoolExecutor(1)}, ValueError, "give one of them"),
        ({"lazy": True, "expand": True}, ValueError, "lazy=True and expand=True exclude each other"),
        ({"lazy": "yes"}, TypeError, "lazy must be True or False, not str"),
        ({"expand": 2}, TypeError, "expand must be True or False, not int"),
        ({"transform": "flip"}, TypeError, r"transform must be callable as transform\(sample\), not str"),
        ({"client": "unix:///s"}, TypeError, "client must be a prepcache.Client, not str"),
        ({"executor": Cluster()}, TypeError, r"must be a concurrent\.futures\.Executor, not Cluster"),
    ],
)
def test_impossible_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        CachedDataset([1], str, **options)


@pytest.mark.parametrize("items", ["abc", Path("a"), {"a": 1}, Counter("ab"), {"a"}, 5, len], ids=repr)
def test_items_without_positions_are_refused(items):
    way = "the items come first" if items is len else "pass a list"
    with pytest.raises(TypeError, match=f"^items must be a sequence, not {type(items).__name__}: {way}"):
        CachedDataset(items, str)


class Labelled:
    """A shuffled or filtered pandas series: `[]` goes by label, `iloc` and iteration by position."""

    def __init__(self, rows: dict[int, str], ndim: int = 1) -> None:
        self.rows = rows
        self.ndim = ndim
        self.iloc = list(rows.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self.iloc)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, label: int) -> str:
        return self.rows[label]


@pytest.mark.parametrize("labels", [(2, 0, 1), (5, 7, 9)], ids=["shuffled", "filtered"])
def test_items_with_labels_are_taken_by_position(labels, monkeypatch):
    monkeypatch.setenv("PREPCACHE", "off")
    series: Any = Labelled(dict(zip(labels, "abc", strict=True)))
    ds = CachedDataset(series, str, progress=False)
    assert list(ds) == ds.__getitems__(range(3)) == ["a", "b", "c"]


def test_a_table_is_refused_with_what_has_its_rows():
    frame: Any = Labelled({0: "a"}, ndim=2)
    with pytest.raises(TypeError, match=r"df.to_dict\('records'\)"):
        CachedDataset(frame, str)


def test_an_absent_daemon_is_explained_once(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    client = prepcache.Client(f"unix://{tmp_path}/none.sock", budget=WaitBudget())
    with caplog.at_level(logging.INFO, "prepcache"):
        made = [CachedDataset([1, 2], whole, client=client) for _ in range(2)]
    lines = [record.getMessage() for record in caplog.records]
    assert sum("no such file or directory" in line for line in lines) == 1
    assert sum(": without the cache; 2 items, 0 hit, 2 to preprocess" in line for line in lines) == 2
    assert all("no such file or directory" in ds.report().why[0] for ds in made)
    client.close()
