"""Pages: when batches are copied after all: for who writes, for want of maps, for rows of odd sizes."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from prepcache import artifact
from prepcache.artifact import reader
from prepcache.batching import pages
from prepcache.batching.buffers import Pool
from prepcache.batching.gather import Rows
from support.artifacts import write
from support.paging import COUNT, PICKS, batch_of, every_page_counts_fixture, images, is_mapped, stored  # noqa: F401
from support.rows import Stored

pytestmark = pytest.mark.skipif(pages._calls() is None, reason="pages need Linux 5.14")


WRITES: dict[str, Callable[[Any], None]] = {
    "all": lambda batch: batch.fill(0),
    "every second row": lambda batch: batch[1::2].fill(0),
    "one channel of three": lambda batch: batch[:, 0].fill(0),
    "three of four rows": lambda batch: [batch[i].fill(0) for i in range(len(batch)) if i % 4],
    "a byte of every second page": lambda batch: batch.reshape(-1, 4096)[::2, 7].fill(0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_consumer_that_writes_into_batches_gets_copies(
    tmp_path: Path, write: Callable[[Any], None]
) -> None:
    """A page that is written to costs three times a copy."""
    rows, _ = stored(tmp_path)
    for _ in range(20):
        batch = batch_of(rows)
        write(batch)
    after = batch_of(rows)
    assert not is_mapped(after)
    assert (after == images()[PICKS]).all()


def test_a_consumer_that_keeps_written_batches_is_noticed(tmp_path: Path) -> None:
    rows, _ = stored(tmp_path)
    kept = []
    for _ in range(2 * pages.PATIENCE + 4):
        kept.append(batch_of(rows))
        kept[-1].fill(0)
    assert not is_mapped(kept[-1])


def test_one_that_reads_or_writes_little_goes_on(tmp_path: Path) -> None:
    """One page of thirty: to copy the others for it would cost more."""
    rows, _ = stored(tmp_path)
    for _ in range(60):
        batch = batch_of(rows)
        batch[4, 1, 5] = 7
        assert is_mapped(batch)


def test_it_is_still_known_when_the_catalogue_has_changed(tmp_path: Path) -> None:
    """A data set that grows is seen anew with each commit, its artifacts are not."""
    write(tmp_path / "part-0", [torch.from_numpy(image) for image in images()])
    found = artifact.open(tmp_path / "part-0")
    rows = [Rows([found], np.zeros(COUNT, int), np.arange(COUNT)) for _ in range(2)]
    for _ in range(20):
        batch_of(rows[0]).fill(0)
    assert not is_mapped(batch_of(rows[1]))


def test_that_nobody_may_look_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment without a descriptor to be had says nothing of the consumer."""
    rows, _ = stored(tmp_path)
    monkeypatch.setattr(pages, "_PAGEMAP", str(tmp_path / "none"))
    for _ in range(5):
        batch = batch_of(rows)
        assert is_mapped(batch)
        batch.fill(0)


def test_that_a_look_fails_is_no_error_of_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = stored(tmp_path)
    kept = batch_of(rows)

    def fail(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    del kept
    assert is_mapped(batch_of(rows))


def test_batches_that_are_kept_are_mapped_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever collects batches is given copies before the process runs out of maps; then maps again."""
    monkeypatch.setattr(pages, "MAX_MAPS", 30)
    rows, _ = stored(tmp_path)
    shuffled = np.arange(0, COUNT, 4)
    kept = [batch_of(rows, shuffled) for _ in range(5)]
    assert [is_mapped(batch) for batch in kept] == [True, True, True, False, False]
    for batch in kept:
        assert (batch == images()[shuffled]).all()
    del batch
    kept.clear()
    assert is_mapped(batch_of(rows, shuffled))


def test_rows_of_an_unmappable_file_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int, size_bytes: int, flags: int = mmap.MAP_SHARED) -> Any:
        if flags != mmap.MAP_SHARED:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return mapped(fd, size_bytes)

    mapped = reader._Map
    monkeypatch.setattr(reader, "_Map", fails)
    batch = batch_of(stored(tmp_path)[0])
    assert not is_mapped(batch)
    assert (batch == images()[PICKS]).all()


@pytest.mark.parametrize("refused", [1, 4, 0], ids=["the first map", "a later one", "to make them writable"])
def test_what_the_kernel_refuses_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """As where a process has too many maps; what was mapped by then is let go."""
    rows, _ = stored(tmp_path)
    calls = pages._calls()
    assert calls is not None
    asked: list[Any] = []

    def refusing(*args: Any) -> Any:
        asked.append(args)
        return calls.move(*args) if len(asked) != refused else 2**64 - 1

    changed = {"protect": lambda *_: -1} if not refused else {"move": refusing}
    monkeypatch.setattr(pages, "_calls", lambda: replace(calls, **changed))
    batch = batch_of(rows)
    assert len(asked) == refused
    assert not is_mapped(batch)
    assert not pages._live_maps()
    assert (batch == images()[PICKS]).all()


def test_without_addresses_the_error_is_that_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    rows, _ = stored(tmp_path)
    monkeypatch.setattr(pages.mmap, "mmap", none)
    assert not is_mapped(batch_of(rows))


@pytest.mark.parametrize("missing", ["no such kernel", "an old kernel", "no pagemap"])
def test_without_what_it_needs_batches_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    pages._calls.cache_clear()
    if missing == "no such kernel":
        monkeypatch.setattr("sys.platform", "darwin")
    elif missing == "an old kernel":
        monkeypatch.setattr(pages, "_POPULATE_READ", 99)
    else:
        monkeypatch.setattr(pages, "_PAGEMAP", str(tmp_path / "none"))
    try:
        rows, _ = stored(tmp_path)
        batch = batch_of(rows)
        assert not is_mapped(batch)
        assert (batch == images()[PICKS]).all()
    finally:
        pages._calls.cache_clear()


def test_a_pool_of_memory_of_its_own_kind_gets_copies_in_it(tmp_path: Path) -> None:
    """Pinned memory, which a GPU copies from."""
    rows, _ = stored(tmp_path)
    blocks: list[Any] = []

    def allocate(size_bytes: int) -> Any:
        blocks.append(np.empty(size_bytes, np.uint8))
        return blocks[-1]

    batch = batch_of(rows, pool=Pool(2, allocate, small_bytes=0))
    assert not is_mapped(batch)
    assert np.shares_memory(batch, blocks[0])


@pytest.mark.parametrize("bound", ["LARGE_ROW_BYTES", "MIN_BATCH_BYTES"])
def test_small_rows_and_small_batches_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(
        pages if "BATCH" in bound else reader,
        bound,
        1 + images()[PICKS].nbytes // (1 if "BATCH" in bound else len(PICKS)),
    )
    assert not is_mapped(batch_of(stored(tmp_path)[0]))


@pytest.mark.parametrize("row_bytes", [mmap.PAGESIZE - 1, 3 * mmap.PAGESIZE // 2])
def test_rows_of_parts_of_pages_are_copied(tmp_path: Path, row_bytes: int) -> None:
    values = torch.arange(COUNT, dtype=torch.uint8)[:, None].expand(COUNT, row_bytes)
    write(tmp_path / "part-0", [(value.clone(), 1) for value in values])
    rows = Rows([artifact.open(tmp_path / "part-0")], np.zeros(COUNT, int), np.arange(COUNT))
    batch = batch_of(rows)
    assert not is_mapped(batch)
    assert (batch == values[PICKS].numpy()).all()


def test_batches_of_workers_are_copied_into_what_they_share(tmp_path: Path) -> None:
    rows, _ = stored(tmp_path)
    for at, (batch, _) in enumerate(DataLoader(Stored(rows), batch_size=8, num_workers=2)):
        assert batch.is_shared()
        assert (batch.numpy() == images()[8 * at : 8 * at + 8]).all()
