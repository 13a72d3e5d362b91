"""What a batch looks into is held as long as the batch is there: the daemon counts what is on the disk."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from prepcache import CachedDataset, Client
from prepcache.artifact import reader
from prepcache.batching import pages
from prepcached.store.records import Filter
from support.serving import Serving, serving

pytestmark = pytest.mark.skipif(pages._calls() is None, reason="pages need Linux 5.14")

ROW_BYTES = 4 * mmap.PAGESIZE


def row(item: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.full(ROW_BYTES, item, np.uint8)


def held_bytes(box: Serving, ds: CachedDataset) -> int:
    """What is held once all was told that is to be told."""
    gc.collect()
    ds._samples.by.artifacts.drop([])
    session = ds._samples.by.artifacts.session
    session.heartbeat.tell(session, session.header)
    return box.store.stats().held_bytes


def unlinked_bytes(box: Serving) -> int:
    """What the daemon counts of files that are gone, and held."""
    return box.store._core.ledger.unlinked_bytes


@pytest.fixture(autouse=True)
def every_batch_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LARGE_ROW_BYTES", mmap.PAGESIZE)
    monkeypatch.setattr(pages, "MIN_BATCH_BYTES", 0)
    for name in ("PREPCACHE", "PREPCACHE_URL", "PREPCACHE_TOKEN", "PREPCACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(folder: Path) -> tuple[CachedDataset, CachedDataset]:
    """A data set that stays, and one of 40 rows."""
    kind = {"client": Client(f"unix://{folder}/s.sock"), "code": None, "progress": False}
    return CachedDataset([1], row, version="other", **kind), CachedDataset(
        range(40), row, version="1", **kind
    )


def test_holds_last_as_long_as_batches(tmp_path: Path) -> None:
    with serving(tmp_path) as box:
        other, ds = opened(tmp_path)
        batch = ds.__getitems__([3, 9, 30])
        kept = batch[1]
        del ds, batch
        assert held_bytes(box, other) >= 41 * ROW_BYTES
        assert (kept == 9).all()
        del kept
        assert held_bytes(box, other) < 40 * ROW_BYTES


def test_artifacts_purged_under_a_batch_are_let_go_later(tmp_path: Path) -> None:
    with serving(tmp_path) as box:
        other, ds = opened(tmp_path)
        session = other._samples.by.artifacts.session
        batch = ds.__getitems__([3, 9, 30])
        kept = batch[1]
        box.store.purge(Filter(recipe=ds._samples.by.artifacts.recipe.digest))
        del ds, batch
        for _ in range(2):
            gc.collect()
            session.heartbeat.tell(session, session.header)
        assert unlinked_bytes(box) >= 40 * ROW_BYTES
        del kept
        gc.collect()
        for _ in range(2):  # it hears of it, and tells
            session.heartbeat.tell(session, session.header)
        assert unlinked_bytes(box) == 0
