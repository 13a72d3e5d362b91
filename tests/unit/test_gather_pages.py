"""Pages: batches of rows that are whole pages, mapped: as good as copies, whoever writes or closes."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import prepcache
from prepcache import artifact
from prepcache.data import pages
from prepcache.data.buffers import Pool
from prepcache.data.gather import Rows
from prepcache.data.tables import Dense
from support.artifacts import same, write
from support.remains import Remains
from support.rows import Stored

pytestmark = pytest.mark.skipif(pages._calls() is None, reason="pages need Linux 5.14")

COUNT, ROW = 40, (3, mmap.PAGESIZE)
PICKS = np.array([7, 30, 7, 8, 9, 39, 0, 21, 22, 3])


@pytest.fixture(autouse=True)
def every_page_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """However small batches are; and nothing of them is left, no map and no descriptor of their files."""
    gc.collect()
    monkeypatch.setattr(pages, "MIN_ROW_BYTES", mmap.PAGESIZE)
    monkeypatch.setattr(pages, "MIN_BATCH_BYTES", 0)
    before = Remains()
    yield
    gc.collect()
    assert not pages._live_maps()
    assert not [path for _, path in before.descriptors() if path.startswith(str(tmp_path))]
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]


def images() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 255, (COUNT, *ROW)).astype(np.uint8)


def stored(folder: Path, parts: int = 3) -> tuple[Rows, list[Path]]:
    paths, artifacts, art_of, row_of = [], [], [], []
    for part, numbers in enumerate(np.array_split(np.arange(COUNT), parts)):
        paths.append(folder / f"part-{part}")
        write(paths[-1], [(torch.from_numpy(images()[i]), int(i)) for i in numbers], first=int(numbers[0]))
        artifacts.append(artifact.open(paths[-1]))
        art_of += [part] * len(numbers)
        row_of += range(len(numbers))
    return Rows(artifacts, np.array(art_of), np.array(row_of)), paths


def batch_of(rows: Rows, picks: np.ndarray[Any, Any] = PICKS, pool: Pool | None = None) -> Any:
    """The images of a batch."""
    batch: Any = rows.take(picks)
    column = batch.table.columns[0]
    assert isinstance(column, Dense)
    return column.gather(batch.picked, pool or rows.pool)


def maps_of(batch: Any) -> list[tuple[str, int]]:
    """The file, or nothing, and the private bytes of each map that a batch lies in."""
    begin = batch.data_ptr() if isinstance(batch, torch.Tensor) else batch.ctypes.data
    found: list[tuple[str, int]] = []
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            low, _, high = words[0].partition("-")
            is_inside = int(low, 16) < begin + batch.nbytes and int(high, 16) > begin
            if is_inside:
                found.append((words[5] if len(words) > 5 else "", 0))
        elif is_inside and words[0] == "Anonymous:":
            found[-1] = (found[-1][0], int(words[1]) << 10)
    return found


def is_mapped(batch: Any) -> bool:
    return all("part-" in file for file, _ in maps_of(batch))


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


WRITES: dict[str, Callable[[Any], None]] = {
    "all": lambda batch: batch.fill(0),
    "every second row": lambda batch: batch[1::2].fill(0),
    "one channel of three": lambda batch: batch[:, 0].fill(0),
    "three of four rows": lambda batch: [batch[i].fill(0) for i in range(len(batch)) if i % 4],
    "a byte of every second page": lambda batch: batch.reshape(-1, 4096)[::2, 7].fill(0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_consumer_that_writes_into_its_batches_is_soon_given_copies(
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


def test_a_consumer_that_keeps_what_it_writes_into_is_found_out_too(tmp_path: Path) -> None:
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


def test_without_a_descriptor_for_the_moment_only_this_batch_is_copied(tmp_path: Path) -> None:
    rows, _ = stored(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        batch = batch_of(rows)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not is_mapped(batch) and (batch == images()[PICKS]).all()
    assert is_mapped(batch_of(rows))


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = stored(tmp_path, parts=10)
    monkeypatch.setattr(pages, "MAX_OPEN", 2)
    opened, before = [], Remains()
    descriptor = pages._Calls.descriptor

    def counted(calls: Any, artifact: Any) -> int | None:
        fd = descriptor(calls, artifact)
        opened.append(sum(path.startswith(str(tmp_path)) for _, path in before.descriptors()))
        return fd

    monkeypatch.setattr(pages._Calls, "descriptor", counted)
    batch = batch_of(rows)
    assert is_mapped(batch) and (batch == images()[PICKS]).all()
    assert len(opened) > 2 and max(opened) == 2


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


def test_what_was_never_a_file_in_a_folder_is_copied(tmp_path: Path) -> None:
    """What a job could not commit lies in a file without a name."""
    write(tmp_path / "part-0", [torch.from_numpy(image) for image in images()])
    fd = os.open(tmp_path / "part-0", os.O_RDONLY)
    found = artifact.open(fd)
    os.close(fd)
    batch = batch_of(Rows([found], np.zeros(COUNT, int), np.arange(COUNT)))
    assert not is_mapped(batch)
    assert (batch == images()[PICKS]).all()


def test_another_file_of_that_name_is_never_mapped(tmp_path: Path) -> None:
    write(tmp_path / "part-0", [torch.from_numpy(image) for image in images()])
    found = artifact.open(tmp_path / "part-0")
    write(tmp_path / "part-1", [torch.from_numpy(image) for image in images()[::-1].copy()])
    (tmp_path / "part-1").replace(tmp_path / "part-0")
    batch = batch_of(Rows([found], np.zeros(COUNT, int), np.arange(COUNT)))
    assert not is_mapped(batch)
    assert (batch == images()[PICKS]).all()


@pytest.mark.parametrize("refused", [1, 4], ids=["the first map", "a later one"])
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
        return calls.map(*args) if len(asked) != refused else 2**64 - 1

    monkeypatch.setattr(pages, "_calls", lambda: replace(calls, map=refusing))
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


@pytest.mark.parametrize("bound", ["MIN_ROW_BYTES", "MIN_BATCH_BYTES"])
def test_small_rows_and_small_batches_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(pages, bound, 1 + images()[PICKS].nbytes // (1 if "BATCH" in bound else len(PICKS)))
    assert not is_mapped(batch_of(stored(tmp_path)[0]))


@pytest.mark.parametrize("row_bytes", [mmap.PAGESIZE - 1, 3 * mmap.PAGESIZE // 2])
def test_rows_of_parts_of_pages_are_copied(tmp_path: Path, row_bytes: int) -> None:
    values = torch.arange(COUNT, dtype=torch.uint8)[:, None].expand(COUNT, row_bytes)
    write(tmp_path / "part-0", [(value.clone(), 1) for value in values])
    rows = Rows([artifact.open(tmp_path / "part-0")], np.zeros(COUNT, int), np.arange(COUNT))
    batch = batch_of(rows)
    assert not is_mapped(batch)
    assert (batch == values[PICKS].numpy()).all()


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


def test_batches_of_workers_are_copied_into_what_they_share(tmp_path: Path) -> None:
    rows, _ = stored(tmp_path)
    for at, (batch, _) in enumerate(DataLoader(Stored(rows), batch_size=8, num_workers=2)):
        assert batch.is_shared()
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
from prepcache.data import pages
from prepcache.data.gather import Rows
pages.MIN_ROW_BYTES = pages.MIN_BATCH_BYTES = 0
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
