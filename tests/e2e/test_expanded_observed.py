"""What a function reads beside an item counts, also where the item's samples span several artifacts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache import CachedDataset, Client


def test_what_a_large_expanded_item_read_is_checked(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prepcache.fill.batch.COMMIT_BYTES", 20_000)
    monkeypatch.setattr("prepcache.fill.call.PART_BYTES", 4_000)
    folder, vocabulary = str(tmp_path), tmp_path / "vocab.txt"

    def parts(item: int) -> Iterator[Any]:
        with open(folder + "/vocab.txt") as file:  # a path in the closure would count in the key
            offset = float(file.read())
        for number in range(100):
            yield np.full(125, offset + number)

    def first() -> float:
        ds = CachedDataset([1], parts, expand=True, progress=False, client=client)
        return float(ds[0][0])

    vocabulary.write_text("1")
    assert [first(), first()] == [1.0, 1.0]
    assert len(list(client.entries())) > 1, "the item lies in pieces"
    vocabulary.write_text("2000")
    assert first() == 2000.0
