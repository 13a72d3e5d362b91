"""Gathering: positions checked as lists are, tables over many artifacts, windows, and recycled memory."""

import gc
import mmap
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prepcache.artifact.header
import prepcache.batching.table
from prepcache.artifact.header import MAPPED_BYTES
from prepcache.batching.gather import Rows
from prepcache.batching.table import MAX_RANGE_BYTES, SMALL_BYTES, Pool, first_numbers, side_by_side
from support.artifacts import same
from support.programs import python
from support.rows import rows_of

COUNT = 12


def sample(i: int) -> dict[str, Any]:
    image = np.random.default_rng(i).integers(0, 255, (3, 32, 32)).astype(np.uint8)
    return {"image": torch.from_numpy(image), "words": np.arange(i % 4), "label": i, "name": f"n{i}"}


@pytest.fixture(params=[1, 5], ids=["one artifact", "five artifacts"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Rows:
    return rows_of(tmp_path, [sample(i) for i in range(COUNT)], request.param)


def labels(samples: Any) -> list[int]:
    return [sample["label"] for sample in samples]


@pytest.mark.parametrize(("indices", "expected"), [
    ([3, 1, 3], [3, 1, 3]), ([-1, 0, -COUNT], [COUNT - 1, 0, 0]), ((2, 5), [2, 5]), (range(3), [0, 1, 2]),
    ({5: 0, 2: 0}.keys(), [5, 2]), ({7}, [7]), ([np.int32(4), np.uint8(2)], [4, 2]),
    ([torch.tensor(4), torch.tensor(-1)], [4, COUNT - 1]), (np.array([1, -1], np.int16), [1, COUNT - 1]),
    (np.array([7, 2], np.uint64), [7, 2]), (torch.tensor([9, 2]), [9, 2]), ([], []), (np.empty(0), []),
])  # fmt: skip
def test_positions_may_be_any_integers(rows, indices, expected):
    assert labels(rows.take(indices)) == expected


@pytest.mark.parametrize(("indices", "error"), [
    ([COUNT], IndexError), ([0, -COUNT - 1], IndexError), ([2**70], OverflowError),
    (np.array([2**64 - 1], np.uint64), OverflowError), ([-(2**63)], IndexError),
    (np.ones(COUNT, bool), TypeError), ([1.0], TypeError), (["1"], TypeError), (np.array([0.5]), TypeError),
    ([None], TypeError),
])  # fmt: skip
def test_a_position_that_is_none_is_refused(rows, indices, error):
    with pytest.raises(error):
        rows.take(indices)


def test_the_message_names_the_position_and_the_size(rows):
    with pytest.raises(IndexError, match=f"index 99 is out of range for a data set of {COUNT} samples"):
        rows.take([1, 99, 2])


def test_a_write_into_a_batch_never_reaches_the_cache(rows):
    batch = rows.take(range(COUNT))
    for taken in batch:
        taken["image"].zero_()
        taken["words"][...] = -1
    torch.utils.data.default_collate([taken["image"] for taken in rows.take([1, 2])]).fill_(9)
    assert all(same(taken, sample(i)) for i, taken in enumerate(rows.take(range(COUNT))))


def test_an_empty_data_set_has_no_positions():
    rows = Rows([], np.empty(0, np.int32), np.empty(0, np.int64))
    assert len(rows) == 0
    assert rows.take([]) == []
    with pytest.raises(IndexError):
        rows.take([0])


@pytest.mark.parametrize(
    ("small", "mapped"),
    [(0, 1), (10**9, 10**9), (0, 10**9), (10**9, 1)],
    ids=["mapped", "copied together", "copied one by one", "mapped though small"],
)
@pytest.mark.parametrize("windows", [True, False])
def test_columns_of_many_artifacts_are_read_alike(tmp_path, monkeypatch, small, mapped, windows):
    monkeypatch.setattr(prepcache.batching.table, "SMALL_ROW_BYTES", small)
    for module in (prepcache.batching.table, prepcache.artifact.header):
        monkeypatch.setattr(module, "MAPPED_BYTES", mapped)
    if not windows:
        monkeypatch.setattr(prepcache.batching.table, "_CAN_MAP_AGAIN", False)
    samples = [sample(i) for i in range(COUNT)]
    rows = rows_of(tmp_path, samples, 5)
    order = np.random.default_rng(1).permutation(COUNT).tolist()
    assert same(list(rows.take(order)), [samples[i] for i in order])


def test_large_ragged_rows_are_copied_into_recycled_memory(tmp_path):
    samples = [np.arange(20_000 + i) for i in range(6)]
    rows = rows_of(tmp_path, samples, 2)
    seen = set()
    for _ in range(5):
        batch = rows.take([5, 0, 3])
        assert same(list(batch), [samples[5], samples[0], samples[3]])
        seen.add(batch.leaf(0)[0].__array_interface__["data"][0])
        del batch
    assert len(seen) <= 2


# --- windows: columns of many files as one array, without a copy, for as long as somebody holds it ---


by_maps = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="windows need Linux")


def column(folder: Path, name: str, values: np.ndarray[Any, Any], lead: int) -> np.ndarray[Any, Any]:
    """The values in a mapped file, from byte `lead` on."""
    path = folder / name
    path.write_bytes(b"\xee" * lead + values.tobytes())
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    path.unlink()
    return np.frombuffer(mapped, np.uint8)[lead:].view(values.dtype).reshape(values.shape)


def window_of(parts: list[np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any] | None, list[int]]:
    """A window, and where each part begins."""
    row_bytes = parts[0].dtype.itemsize * int(np.prod(parts[0].shape[1:]))
    first = first_numbers([len(part) for part in parts], [row_bytes])
    return side_by_side(parts, first), first.tolist()


@by_maps
@pytest.mark.parametrize("row", [(1,), (3,), (64,), (3, 33), (1024,), (3, 1024), (7, 1111)])
@pytest.mark.parametrize("dtype", ["u1", "f4"])
@pytest.mark.parametrize("scale", [1, 20_000])
def test_rows_are_found_where_the_window_says(tmp_path, row, dtype, scale):
    """Of parts that are mapped again, and of those that are copied since they are small."""
    random = np.random.default_rng(0)
    scale = max(1, scale // int(np.prod(row)))
    wholes = [random.integers(0, 255, (count * scale, *row)).astype(dtype) for count in (5, 1, 0, 30, 2)]
    leads = [0 if whole.nbytes >= MAPPED_BYTES else 64 for whole in wholes]  # as the writer lays them out
    parts = [column(tmp_path, str(i), *pair) for i, pair in enumerate(zip(wholes, leads, strict=True))]
    window, first = window_of(parts)
    assert window is not None and window.shape[1:] == row
    assert not window.flags.writeable and window.flags.c_contiguous
    for whole, at in zip(wholes, first, strict=False):
        assert (window[at : at + len(whole)] == whole).all()
        assert (window.take(np.arange(at, at + len(whole)), 0, mode="clip") == whole).all()


@by_maps
@pytest.mark.parametrize("row", [(3, 1024), (4096,), (3, 60, 68), (1000,), (101,)])
def test_large_parts_lie_where_their_large_folios_stay_whole(tmp_path, row):
    """Address and place in the file agree modulo 2 MiB, so that a folio needs one entry in the tables."""
    counts = [(5 << 20) // int(np.prod(row)), 300, (9 << 20) // int(np.prod(row))]
    wholes = [np.full((count, *row), number, np.uint8) for number, count in enumerate(counts)]
    parts = [column(tmp_path, str(i), whole, 0) for i, whole in enumerate(wholes)]
    window, first = window_of(parts)
    assert window is not None
    for whole, at in zip(wholes, first, strict=False):
        assert (window[at : at + len(whole)] == whole).all()
        assert window[at:].ctypes.data % (2 << 20) == 0


def test_rows_of_any_size_have_addresses_for_thousands_of_files():
    """Where folios would take too many, pages are enough; else rows are numbered without gaps."""
    for row_bytes in (1, 100, 12_240, 12_288, 100_001, 1_000_001, 50_000_001):
        numbers = first_numbers([130_000_000 // row_bytes + 1] * 4000, [8, row_bytes])
        assert (np.diff(numbers) > 130_000_000 // row_bytes).all()
        assert int(numbers[-1]) * row_bytes <= MAX_RANGE_BYTES


@by_maps
def test_a_window_outlives_its_maps_until_its_last_view(tmp_path):
    wholes = [np.arange(5000, dtype=np.int64).reshape(50, 100) + i for i in range(3)]
    parts = [column(tmp_path, str(i), whole, 0) for i, whole in enumerate(wholes)]
    window, first = window_of(parts)
    assert window is not None
    del parts
    gc.collect()
    view = window[first[2] :][:50]
    del window
    gc.collect()
    assert (view == wholes[2]).all()
    address = view.__array_interface__["data"][0]
    assert is_mapped(address)
    del view
    gc.collect()
    assert not is_mapped(address)


def is_mapped(address: int) -> bool:
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


@by_maps
@pytest.mark.parametrize("case", ["off a page", "no shared map", "no rows", "no bytes"])
def test_what_cannot_be_mapped_again_has_no_window(tmp_path, case):
    wholes = [np.zeros((8, 4096), np.uint8) for _ in range(2)]
    parts = {
        "off a page": [column(tmp_path, str(i), whole, 64 * i) for i, whole in enumerate(wholes)],
        "no shared map": [np.zeros((4096, 4096), np.uint8) for _ in range(2)],
        "no rows": [np.zeros((0, 8), np.uint8)] * 2,
        "no bytes": [np.zeros((3, 0), np.uint8)] * 2,
    }
    assert window_of(parts[case])[0] is None


# --- buffers: never handed out while anybody can still reach them, used again once nobody can ---


SIZE_BYTES = 1 << 20


def take(pool: Pool, size_bytes: int = SIZE_BYTES) -> np.ndarray[Any, Any]:
    return pool.empty((size_bytes // 4,), np.dtype(np.int32), size_bytes)


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


KEEPERS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "array": lambda a: a,
    "view of a view": lambda a: a[100:][::2].reshape(2, -1)[1, :3],
    "tensor": torch.from_numpy,
    "tensor of another dtype": lambda a: torch.from_numpy(a).view(torch.uint8)[:9],
    "storage": lambda a: torch.from_numpy(a).untyped_storage(),
    "one row of many": lambda a: torch.from_numpy(a.reshape(8, -1)).unbind(0)[4],
    "memoryview": lambda a: memoryview(a)[10:20],
    "dlpack": lambda a: torch.from_dlpack(a),
    "graph": lambda a: torch.from_numpy(a).view(torch.float32) * torch.ones(1, requires_grad=True),
    "cycle": lambda a: [c := [a], c.append(c)],
}


@pytest.mark.parametrize("keeper", KEEPERS.values(), ids=KEEPERS.keys())
def test_a_reachable_buffer_is_not_handed_out_again(keeper):
    pool = Pool()
    array = take(pool)
    array[:] = 7
    where = address(array)
    kept = keeper(array)
    del array
    for _ in range(5):
        other = take(pool)
        assert address(other) != where
        other[:] = 1
    del kept, other
    gc.collect()
    assert where in map(address, [take(pool) for _ in range(12)])


def test_a_buffer_taken_while_others_take_some_is_not_theirs():
    pool = Pool(1)
    taken = [take(pool)]

    def others_take(frame: Any, event: str, called: Any) -> None:  # as threads may beside a debugger
        if called is sys.getrefcount:
            taken.append(take(pool))

    sys.setprofile(others_take)
    taken.append(take(pool))
    sys.setprofile(None)
    assert len(taken) == len({*map(address, taken)}) > 2


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a tracer's f_locals holds nothing there")
def test_a_tracer_that_holds_blocks_ends_recycling():
    traced = "import sys; trace = lambda frame, *_: (frame.f_locals, trace)[1]; sys.settrace(trace)\n"
    table = "import prepcache.batching.table as table; sys.settrace(None); print(table._UNUSED)"
    assert python("-c", traced + table).stdout == "-1\n"


def test_threads_never_share_a_buffer():
    pool = Pool()

    def work(number: int) -> None:
        for _ in range(200):
            array = take(pool, SMALL_BYTES)
            array[:] = number
            assert (array == number).all()
            del array

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
