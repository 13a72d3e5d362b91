"""Which items of a data set were altered since they were digested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache.fill.input_guard import Originals
from prepcache.index.item_index import Distinct
from prepcache.keys.items import ItemHasher


def opened(items: list[Any]) -> Originals:
    digests, stamps = ItemHasher(stat_cache=None).digest_many(items)
    originals = Originals(items, Distinct(digests), stamps)
    originals.end_opening()
    return originals


def test_an_item_that_was_put_back_stays_altered() -> None:
    """One thread may be at a sample of the altered item while another finds it as it was."""
    items = [{"v": 1}, {"v": 2}]
    originals = opened(items)
    items[1]["v"] = 3
    assert originals.compared(1) == {"v": 3}
    items[1]["v"] = 2
    assert originals.compared(1) == {"v": 2}
    originals.compare(np.arange(2))
    assert originals.changed(0) == []
    assert originals.changed(1) == ["item 1"]


def test_text_that_comes_to_name_a_file_is_no_longer_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    originals = opened(["words.txt", "words", "a/b", "x" * 5000])
    assert [originals.changed(index) for index in range(4)] == [[], [], [], []]
    for name in ("words.txt", "words"):
        Path(name).write_text("1")
    changed = [originals.changed(index) for index in range(4)]
    assert changed == [["words.txt"], [], [], []], "a word is text, whatever it names"
