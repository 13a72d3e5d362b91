"""Windows: columns of many files as one array, without a copy, for as long as somebody holds it."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prepcache.artifact.columns import Leaf
from prepcache.batching.buffers import Pool
from prepcache.batching.ragged import Ragged
from prepcache.batching.tables import Picked
from prepcache.batching.windows import side_by_side

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="windows need Linux")


def column(folder: Path, name: str, values: np.ndarray[Any, Any], lead: int) -> np.ndarray[Any, Any]:
    """The values in a mapped file, from byte `lead` on."""
    path = folder / name
    path.write_bytes(b"\xee" * lead + values.tobytes())
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    path.unlink()
    return np.frombuffer(mapped, np.uint8)[lead:].view(values.dtype).reshape(values.shape)


@pytest.mark.parametrize("row", [(1,), (3,), (64,), (3, 33), (1024,), (3, 1024), (7, 1111)])
@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_rows_are_found_where_the_window_says(tmp_path: Path, row: tuple[int, ...], dtype: str) -> None:
    random = np.random.default_rng(0)
    wholes = [random.integers(0, 255, (count, *row)).astype(dtype) for count in (5, 1, 0, 300, 2)]
    leads = [0, 64, 4096, 192, 64 * 70]
    if (np.dtype(dtype).itemsize * int(np.prod(row))) % 128 == 0:
        leads = [4096 * i for i in range(5)]  # as the writer lays out rows that divide a page in whole
    parts = [column(tmp_path, str(i), *pair) for i, pair in enumerate(zip(wholes, leads, strict=True))]
    found = side_by_side(parts)
    assert found is not None
    window, first = found
    assert window.shape[1:] == row
    assert not window.flags.writeable
    assert window.flags.c_contiguous
    for whole, at in zip(wholes, first, strict=True):
        assert (window[at : at + len(whole)] == whole).all()
        assert (window.take(np.arange(at, at + len(whole)), 0, mode="clip") == whole).all()


@pytest.mark.parametrize("row", [(3, 1024), (4096,), (3, 4096)])
def test_large_parts_lie_where_their_large_folios_stay_whole(tmp_path: Path, row: tuple[int, ...]) -> None:
    """Address and place in the file agree modulo 2 MiB, so that a folio needs one entry in the tables."""
    row_bytes = int(np.prod(row))
    counts = [(5 << 20) // row_bytes, 3, (9 << 20) // row_bytes]
    wholes = [np.full((count, *row), number, np.uint8) for number, count in enumerate(counts)]
    leads = [4096 * 7, 4096, 4096 * 3]
    parts = [column(tmp_path, str(i), *pair) for i, pair in enumerate(zip(wholes, leads, strict=True))]
    found = side_by_side(parts)
    assert found is not None
    window, first = found
    for whole, part, at in zip(wholes, parts, first.tolist(), strict=True):
        assert (window[at : at + len(whole)] == whole).all()
        if part.nbytes >= 2 << 20:
            assert (window[at:].ctypes.data - part.ctypes.data) % (2 << 20) == 0


def test_a_window_outlives_its_maps_until_its_last_view(
    tmp_path: Path,
) -> None:
    wholes = [np.arange(5000, dtype=np.int64).reshape(50, 100) + i for i in range(3)]
    parts = [column(tmp_path, str(i), whole, 64) for i, whole in enumerate(wholes)]
    found = side_by_side(parts)
    assert found is not None
    window, first = found
    del parts
    gc.collect()
    view = window[first[2] :][:50]
    del window, found
    gc.collect()
    assert (view == wholes[2]).all()
    address = view.__array_interface__["data"][0]
    assert is_mapped(address)
    del view
    gc.collect()
    assert not is_mapped(address)


@pytest.mark.parametrize("files", [1, 3])
def test_rows_at_the_ends_of_files_are_copied_like_any_other(tmp_path: Path, files: int) -> None:
    """Their values fill pages, so that nothing of the file lies around them."""
    offsets = np.array([0, 1, 500, 1024])
    wholes = [np.arange(1024, dtype=np.int32) + 1024 * i for i in range(files)]
    parts = [
        SimpleNamespace(values=column(tmp_path, str(i), whole, 0), offsets=offsets, shapes=None)
        for i, whole in enumerate(wholes)
    ]
    ragged = Ragged("", Leaf("ndarray", "int32", 1), parts)
    number = np.tile(np.arange(3 * files), 64)
    made = ragged.take(Picked(number // 3, number % 3, number), Pool())
    expected = [wholes[i // 3][offsets[i % 3] : offsets[i % 3 + 1]] for i in number.tolist()]
    assert (made.values == np.concatenate(expected)).all()


def is_mapped(address: int) -> bool:
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


def test_columns_off_multiples_of_their_rows_have_no_window(tmp_path: Path) -> None:
    wholes = [np.zeros((4, 4096), np.uint8) for _ in range(2)]
    parts = [column(tmp_path, str(i), whole, 64 * i) for i, whole in enumerate(wholes)]
    assert side_by_side(parts) is None


def test_memory_that_is_no_shared_map_has_no_window() -> None:
    big = [np.zeros((4096, 4096), np.uint8) for _ in range(2)]
    whole = [array[1 + -(array.ctypes.data // 4096) % 1 :] for array in big]
    assert side_by_side(whole) is None


def test_empty_columns_have_no_window(tmp_path: Path) -> None:
    assert side_by_side([np.zeros((0, 8), np.uint8), np.zeros((0, 8), np.uint8)]) is None
    assert side_by_side([np.zeros((3, 0), np.uint8), np.zeros((4, 0), np.uint8)]) is None
