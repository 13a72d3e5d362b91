"""The table "Coming from another cache": each of its rows runs, with the library that it names."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prepcache
from prepcache import CachedDataset, CachedIterableDataset
from support.pages import REPO

PAGE = REPO / "docs" / "how-to" / "existing-dataset.md"
RUNS: dict[str, Callable[[Path], None]] = {}


def row(begin: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Says of which row, by its beginning, a function is the test."""

    def note(run: Callable[[Path], None]) -> Callable[[Path], None]:
        RUNS[begin] = run
        return run

    return note


@pytest.fixture(autouse=True)
def _without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPCACHE", "off")


@row("MONAI's `CacheDataset")
def monai(folder: Path) -> None:
    transforms = pytest.importorskip("monai.transforms", reason="monai is not installed: make nightly does")
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: make nightly does")
    nibabel.save(nibabel.Nifti1Image(np.ones((4, 4, 4)), np.eye(4)), folder / "1.nii")
    data = [{"image": folder / "1.nii"}]
    steps = [transforms.LoadImaged(["image"]), transforms.EnsureTyped(["image"], track_meta=False)]
    flip = transforms.Compose([transforms.RandFlipd(["image"], prob=1.0)])
    ds: Any = CachedDataset(data, transforms.Compose(steps), transform=flip)
    assert ds[0]["image"].shape == (4, 4, 4)


@row("Hugging Face's `dataset.map")
def hugging_face(folder: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: make nightly does")
    rows = datasets.Dataset.from_dict({"text": ["a b", "c"]})
    assert [one["n"] for one in CachedDataset(list(rows), words)] == [2, 1]
    assert list(CachedDataset(list(rows), each_word, expand=True)) == ["a", "b", "c"]


def words(item: dict[str, str]) -> dict[str, int]:
    return {"n": len(item["text"].split())}


def each_word(item: dict[str, str]) -> Iterator[str]:
    yield from item["text"].split()


@row("a WebDataset or a streaming dataset")
def web_dataset(folder: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(folder / "0.tar")) as tar:
        tar.write({"__key__": "1", "txt": "a b"})
    with open(folder / "0.tar", "rb") as file:  # a `WebDataset` leaves its files to the garbage collector
        stream = webdataset.tariterators.tar_file_iterator(file)
        taken = ({"text": one["data"].decode()} for one in stream)
        assert list(CachedIterableDataset(taken, words)) == [{"n": 2}]


@row("a pandas table")
def pandas_table(folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: make nightly does")
    table = pandas.DataFrame({"text": ["a b", "c"]})
    assert list(CachedDataset(table.to_dict("records"), words)) == [{"n": 2}, {"n": 1}]


@row("a hydra or omegaconf config")
def hydra_config(folder: Path) -> None:
    omegaconf = pytest.importorskip("omegaconf", reason="omegaconf is not installed: make nightly does")
    cfg = omegaconf.OmegaConf.create({"data": {"size": 3}})
    assert CachedDataset([1], zeros, config={"size": cfg.data.size})[0].shape == (3,)


def zeros(item: int, size: int) -> torch.Tensor:
    return torch.zeros(size)


@row("joblib's `Memory.cache`")
def joblib_memory(folder: Path) -> None:
    assert prepcache.cached(words, {"text": "a b c"}) == {"n": 3}


@pytest.mark.parametrize("begin", RUNS)
def test_a_row_of_the_table_runs(begin, tmp_path):
    RUNS[begin](tmp_path)


def test_every_row_of_the_table_has_its_test():
    rows = re.findall(
        r"^\| (.*?) \|", PAGE.read_text().split("## Coming from another cache")[1], re.MULTILINE
    )
    found = [one for one in rows if one != "you have"]
    assert len(found) == len(RUNS)
    for one, begin in zip(found, RUNS, strict=True):
        assert one.startswith(begin)
