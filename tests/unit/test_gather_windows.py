"""Windows: columns of many files as one array, without a copy, for as long as somebody holds it."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache.artifact.header import MAPPED_BYTES
from prepcache.batching.table import MAX_RANGE_BYTES, first_numbers, side_by_side

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="windows need Linux")


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


@pytest.mark.parametrize("row", [(1,), (3,), (64,), (3, 33), (1024,), (3, 1024), (7, 1111)])
@pytest.mark.parametrize("dtype", ["u1", "f4"])
@pytest.mark.parametrize("scale", [1, 20_000])
def test_rows_are_found_where_the_window_says(
    tmp_path: Path, row: tuple[int, ...], dtype: str, scale: int
) -> None:
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


@pytest.mark.parametrize("row", [(3, 1024), (4096,), (3, 60, 68), (1000,), (101,)])
def test_large_parts_lie_where_their_large_folios_stay_whole(tmp_path: Path, row: tuple[int, ...]) -> None:
    """Address and place in the file agree modulo 2 MiB, so that a folio needs one entry in the tables."""
    counts = [(5 << 20) // int(np.prod(row)), 300, (9 << 20) // int(np.prod(row))]
    wholes = [np.full((count, *row), number, np.uint8) for number, count in enumerate(counts)]
    parts = [column(tmp_path, str(i), whole, 0) for i, whole in enumerate(wholes)]
    window, first = window_of(parts)
    assert window is not None
    for whole, at in zip(wholes, first, strict=False):
        assert (window[at : at + len(whole)] == whole).all()
        assert window[at:].ctypes.data % (2 << 20) == 0


def test_rows_of_any_size_have_addresses_for_thousands_of_files() -> None:
    """Where folios would take too many, pages are enough; else rows are numbered without gaps."""
    for row_bytes in (1, 100, 12_240, 12_288, 100_001, 1_000_001, 50_000_001):
        numbers = first_numbers([130_000_000 // row_bytes + 1] * 4000, [8, row_bytes])
        assert (np.diff(numbers) > 130_000_000 // row_bytes).all()
        assert int(numbers[-1]) * row_bytes <= MAX_RANGE_BYTES


def test_a_window_outlives_its_maps_until_its_last_view(
    tmp_path: Path,
) -> None:
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


@pytest.mark.parametrize("case", ["off a page", "no shared map", "no rows", "no bytes"])
def test_what_cannot_be_mapped_again_has_no_window(tmp_path: Path, case: str) -> None:
    wholes = [np.zeros((8, 4096), np.uint8) for _ in range(2)]
    parts = {
        "off a page": [column(tmp_path, str(i), whole, 64 * i) for i, whole in enumerate(wholes)],
        "no shared map": [np.zeros((4096, 4096), np.uint8) for _ in range(2)],
        "no rows": [np.zeros((0, 8), np.uint8)] * 2,
        "no bytes": [np.zeros((3, 0), np.uint8)] * 2,
    }
    assert window_of(parts[case])[0] is None
