"""What is not cached and drawn more than once in a batch is made once, and given as samples of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache import CachedDataset, Loader

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
