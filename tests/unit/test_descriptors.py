"""A job may open any number of data sets: what they share is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

import prepcache
from prepcache.keys.files.stat_cache import StatCache
from support.leaks import Leaks


def make(item: Path) -> str:
    return item.name


def test_a_data_set_that_is_open_keeps_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of the stat cache keeps a descriptor."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PREPCACHE", "off")
    item = tmp_path / "a.txt"
    item.touch()
    memo = StatCache(window_ns=lambda _: 0)
    memo.add((1, 1, 1, 1, 1), bytes(32), 2)
    memo.flush()
    opened = [prepcache.CachedDataset([item], make, progress=False)]
    before = Leaks()
    opened += [prepcache.CachedDataset([item], make, progress=False) for _ in range(5)]
    assert not before.descriptors()
    assert [ds[0] for ds in opened] == ["a.txt"] * 6
