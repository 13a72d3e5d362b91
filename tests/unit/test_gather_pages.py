"""Pages: batches of rows that are whole pages, mapped: as good as copies, whoever writes or closes."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import prepcache
from prepcache import artifact
from prepcache.batching import pages
from prepcache.batching.gather import Rows
from support.artifacts import same, write
from support.paging import (  # noqa: F401
    COUNT,
    PICKS,
    batch_of,
    every_page_counts_fixture,
    images,
    is_mapped,
    maps_of,
    stored,
)
from support.rows import Stored

pytestmark = pytest.mark.skipif(pages._calls() is None, reason="pages need Linux 5.14")


@pytest.mark.parametrize("parts", [1, 3, 40])
@pytest.mark.parametrize(
    "picks",
    [PICKS, np.arange(COUNT), np.arange(COUNT)[::-1], np.zeros(5, int), np.array([COUNT - 1])],
    ids=["shuffled", "in order", "backwards", "one again and again", "the last"],
)
def test_a_mapped_batch_holds_the_rows_that_were_asked_for(
    tmp_path: Path, parts: int, picks: np.ndarray[Any, Any]
) -> None:
    rows, _ = stored(tmp_path, parts)
    batch = batch_of(rows, picks)
    assert is_mapped(batch)
    assert batch.flags.c_contiguous
    assert batch.dtype == np.uint8
    assert (batch == images()[picks]).all()


def test_the_next_place_of_another_file_is_no_neighbour(tmp_path: Path) -> None:
    """Row 2 of the first file and row 3 of the second lie end to end only by their numbers."""
    rows, _ = stored(tmp_path, 2)
    picks = np.array([2, 23, 4, 25])
    batch = batch_of(rows, picks)
    assert is_mapped(batch)
    assert (batch == images()[picks]).all()


def resident_bytes(batch: Any) -> int:
    """What of a batch the page table has."""
    return sum(size for _, size in maps_of(batch, "Rss:"))


def test_pages_are_mapped_by_the_reader_or_ahead(tmp_path: Path) -> None:
    """Ahead it costs nobody; else it takes longer than to find out as one looks."""
    rows, _ = stored(tmp_path)
    batch = batch_of(rows)
    assert is_mapped(batch) and resident_bytes(batch) == 0
    assert (batch == images()[PICKS]).all() and resident_bytes(batch) == batch.nbytes
    (ahead,) = (images_ for images_, _ in prepcache.Loader(Stored(rows), batch_size=COUNT))
    assert is_mapped(ahead) and resident_bytes(ahead) == ahead.nbytes


def test_neighbours_share_a_map(tmp_path: Path) -> None:
    """What is read in order takes a map for each file, not for each row."""
    rows, _ = stored(tmp_path, 2)
    assert len(maps_of(batch_of(rows, np.arange(COUNT)))) == 2
    assert len(maps_of(batch_of(rows))) == 7  # 7 30 7-9 39 0 21-22 3


def test_a_write_reaches_neither_the_file_nor_another_batch(tmp_path: Path) -> None:
    rows, paths = stored(tmp_path)
    before = [path.read_bytes() for path in paths]
    first, second = batch_of(rows), batch_of(rows)
    torch.from_numpy(first).zero_()
    assert not first.any()
    assert (second == images()[PICKS]).all()
    assert (first[0] == 0).all()
    assert (batch_of(rows) == images()[PICKS]).all()
    assert [path.read_bytes() for path in paths] == before


def test_equal_rows_of_a_batch_are_written_apart(tmp_path: Path) -> None:
    """Row 7 is there twice: a write into one leaves the other, as copies would."""
    rows, _ = stored(tmp_path)
    batch = batch_of(rows)
    batch[0] += 1
    assert (batch[2] == images()[7]).all()


def test_no_file_is_opened_for_a_batch(tmp_path: Path) -> None:
    """Opening takes longer than mapping, and a process may have no descriptor left."""
    rows, _ = stored(tmp_path, parts=10)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        batch = batch_of(rows)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert is_mapped(batch) and (batch == images()[PICKS]).all()


def test_rows_are_of_the_file_that_was_opened(tmp_path: Path) -> None:
    write(tmp_path / "part-0", [torch.from_numpy(image) for image in images()])
    found = artifact.open(tmp_path / "part-0")
    write(tmp_path / "part-1", [torch.from_numpy(image) for image in images()[::-1].copy()])
    (tmp_path / "part-1").replace(tmp_path / "part-0")
    rows = Rows([found], np.zeros(COUNT, int), np.arange(COUNT))
    for _ in range(3):
        batch = batch_of(rows)
        assert is_mapped(batch) and (batch == images()[PICKS]).all()
        batch[0, 0, 0] += 1  # in its own page


def test_a_row_that_is_moved_to_a_batch_stays_where_it_was(tmp_path: Path) -> None:
    """Also where a debugger, or a core dump, has looked at what nobody may look at."""
    rows, _ = stored(tmp_path, 1)
    assert rows._artifacts[0].unread.max()
    for _ in range(3):
        batch = batch_of(rows)
        assert is_mapped(batch) and (batch == images()[PICKS]).all()
        batch[0, 0, 0] += 1  # in its own page
    assert rows._artifacts[0].unread.max()


def test_files_are_those_that_batches_look_into(tmp_path: Path) -> None:
    rows, _ = stored(tmp_path)
    assert not pages.files()
    first, all_of_them = batch_of(rows, np.array([1, 2])), batch_of(rows)
    kept = first[:1]
    del first
    assert pages.files() == {"part-0", "part-1", "part-2"}
    del all_of_them
    assert pages.files() == {"part-0"}
    del kept, rows  # of which one more was kept, to be looked at
    gc.collect()
    assert not pages.files()


def test_a_batch_outlives_the_files_and_all_that_made_it(tmp_path: Path) -> None:
    rows, paths = stored(tmp_path)
    batch = batch_of(rows)
    one = torch.from_numpy(batch)[3]
    for path in paths:
        path.unlink()
    assert (batch_of(rows) == images()[PICKS]).all(), "copied from the maps that are left"
    del rows, batch
    gc.collect()
    assert (one.numpy() == images()[PICKS[3]]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int64], ids=str)
def test_values_of_every_kind_are_mapped(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.from_numpy(images()).remainder(2).to(dtype)
    write(tmp_path / "part-0", list(values))
    rows = Rows([artifact.open(tmp_path / "part-0")], np.zeros(COUNT, int), np.arange(COUNT))
    (batch,) = DataLoader(Stored(rows), batch_sampler=[PICKS.tolist()])
    assert dtype is torch.complex64 or is_mapped(batch)  # those are torch's own to stack
    assert torch.equal(batch, values[PICKS])


def test_batches_of_loaders_are_mapped(tmp_path: Path) -> None:
    """Through torch's collation, one of the job's own that asks for samples, and the `Loader`."""
    rows, _ = stored(tmp_path)
    data = Stored(rows)
    for batch, numbers in DataLoader(data, batch_size=8):
        assert is_mapped(batch)
        assert (
            numbers.tolist() == [i for i in range(COUNT) if (images()[i] == batch[i % 8].numpy()).all()][:8]
        )
        break
    (samples,) = DataLoader(data, batch_sampler=[PICKS.tolist()], collate_fn=list)
    assert all(is_mapped(image) for image, _ in samples)
    assert same(samples, [rows.sample(int(i)) for i in PICKS])
    for at, (batch, _) in enumerate(prepcache.Loader(data, 8)):
        assert is_mapped(batch)
        assert (batch.numpy() == images()[8 * at : 8 * at + 8]).all()


def test_threads_that_gather_and_write_are_in_nobodys_way(tmp_path: Path) -> None:
    rows, _ = stored(tmp_path)
    wrong: list[Any] = []

    def gather(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(60):
            picks = random.integers(0, COUNT, 9)
            batch = batch_of(rows, picks)
            if not (batch == images()[picks]).all():
                wrong.append(picks)
            if seed == 0:
                batch[0, 0, 0] = 1

    threads = [threading.Thread(target=gather, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_process_that_ends_with_batches_says_nothing(tmp_path: Path) -> None:
    """One is in a module that is taken down late."""
    write(tmp_path / "part-0", [torch.from_numpy(image) for image in images()])
    script = f"""
import sys, numpy as np
from prepcache import artifact
from prepcache.artifact import reader
from prepcache.batching import pages
from prepcache.batching.gather import Rows
reader.LARGE_ROW_BYTES = pages.MIN_BATCH_BYTES = 0
found = artifact.open({str(tmp_path / "part-0")!r})
rows = Rows([found], np.zeros({COUNT}, int), np.arange({COUNT}))
np.kept = sys.kept = [rows.take(range(9)).leaf(0) for _ in range(3)]
print(pages._live_maps())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_a_forked_child_has_its_batches(tmp_path: Path) -> None:
    """It reads and drops what its parent made, and makes batches of its own; the parent's stay."""
    rows, _ = stored(tmp_path)
    batch = batch_of(rows)
    child = os.fork()
    if child == 0:
        is_right = bool((batch == images()[PICKS]).all())
        batch[:] = 1
        del batch
        is_right = is_right and not pages.files()  # what its parent kept, to look at it
        is_right = is_right and bool((batch_of(rows) == images()[PICKS]).all())
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (batch == images()[PICKS]).all()
    del batch
    assert is_mapped(batch_of(rows)), "the child's write is not the parent's"


def test_a_batch_has_no_memory_of_its_own(tmp_path: Path) -> None:
    """Four jobs that look at one data set share its pages."""
    rows, _ = stored(tmp_path)
    batch = batch_of(rows)
    assert batch.sum()
    assert not sum(own for _, own in maps_of(batch))
    batch[3] = 0
    assert sum(own for _, own in maps_of(batch)) == batch[3].nbytes
