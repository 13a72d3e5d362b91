"""What is not cached and drawn more than once in a batch is made once, and given as samples of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache import CachedDataset, Loader, PreprocessError

called: list[str] = []


def make(item: str) -> dict[str, Any]:
    called.append(item)
    return {"x": np.array([len(item)]), "y": [item]}


@pytest.mark.parametrize("by", ["batch", "loader"])
def test_an_item_is_made_once_for_a_batch_and_given_in_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str
) -> None:
    monkeypatch.setenv("PREPCACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ds = CachedDataset(["a", "bb", "a", "a"], make, lazy=True, progress=False, untracked=("called",))
    called.clear()
    if by == "loader":
        (samples,) = Loader(ds, 4, collate_fn=list)
    else:
        samples = ds.__getitems__([0, 1, 2, -1, 1])
    assert called == ["a", "bb"]
    assert [sample["y"] for sample in samples[:4]] == [["a"], ["bb"], ["a"], ["a"]]
    samples[0]["x"][0] = 9
    samples[0]["y"].append("more")
    assert [(sample["x"].tolist(), len(sample["y"])) for sample in samples[1:4]] == [
        ([2], 1),
        ([1], 1),
        ([1], 1),
    ]


def test_a_function_that_reads_its_own_lazy_data_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREPCACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    held: list[Any] = []

    def total(item: int) -> int:
        return item + (held[0][item - 1] if item else 0)

    held.append(CachedDataset(range(4), total, lazy=True, progress=False, version="1", code=None))
    with pytest.raises(PreprocessError, match=r"item 3 .*reads from its own data set"):
        held[0].__getitems__([3, 1])
