"""Leaves: every kind and dtype comes back to the bit, and any safetensors reader can read every column."""

import math

import numpy as np
import pytest
import safetensors
import torch

from prepcache import artifact
from support.artifacts import same, write

TORCH_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float4_e2m1fn_x2,
]  # fmt: skip

SHAPES = [(), (1,), (0,), (5,), (2, 3), (0, 3), (3, 0), (2, 1, 4), (2, 2, 2, 2)]


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    top = 2 if dtype is torch.bool else 256
    raw = np.random.default_rng(seed).integers(0, top, math.prod(shape) * size, "u1")
    return torch.from_numpy(raw).view(dtype).reshape(shape) if raw.size else torch.empty(shape, dtype=dtype)


def test_tensors_of_every_dtype_come_back_to_the_bit(tmp_path):
    for dtype in TORCH_DTYPES:
        dense = [_tensor(dtype, shape, seed) for shape in SHAPES for seed in (1, 2)]
        ragged = [{"r": _tensor(dtype, shape, 1)} for shape in ((2, 3), (0, 7), (1, 1), (2, 3))]
        write(tmp_path / str(dtype), [*dense, *ragged])
        found = artifact.open(tmp_path / str(dtype))
        for row, sample in enumerate([*dense, *ragged]):
            assert same(found.sample(row), sample), dtype


STRIDED = [
    torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
    torch.arange(10)[::3],
    torch.arange(4).expand(3, 4),
    torch.arange(10, dtype=torch.bfloat16)[1::2],
    torch.tensor([1 + 2j, 3 - 4j]).conj(),
    torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    torch.tensor([1 + 2j], dtype=torch.complex128).conj(),
    np.arange(24).reshape(2, 3, 4).T,
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(10, dtype=">i4")[::-2],
    np.broadcast_to(np.float32(3), (2, 2)),
]


@pytest.mark.parametrize("sample", STRIDED, ids=lambda value: f"{type(value).__name__}{tuple(value.shape)}")
def test_strided_values_come_back_contiguous(tmp_path, sample):
    write(tmp_path / "a", [sample])
    found = artifact.open(tmp_path / "a").sample(0)
    assert same(found, sample)
    assert found.is_contiguous() if isinstance(found, torch.Tensor) else found.flags.c_contiguous


def test_any_safetensors_reader_reads_every_column(tmp_path):
    samples = [{"x": _tensor(dtype, (2, 3), 1), "y": torch.arange(n)} for n, dtype in enumerate(TORCH_DTYPES)]
    samples += [(np.arange(3.0), "text", 2**60, True, None), (np.arange(4.0), "", 2**61, False, None)]
    write(tmp_path / "a", samples)
    found = artifact.open(tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "pt") as file:
        assert set(file.keys()) == set(found.header.spans)
        for name in file.keys():  # noqa: SIM118 - a handle, not a dict
            assert list(file.get_tensor(name).shape) == list(found.header.spans[name].shape)
        for row, dtype in enumerate(TORCH_DTYPES):
            column = found.groups[row].columns[0]
            stored = file.get_tensor(column.name)
            assert stored.dtype in (dtype, torch.uint8)
            assert same(
                stored.contiguous().view(torch.uint8).reshape(-1),
                samples[row]["x"].view(torch.uint8).reshape(-1),
            )


def test_columns_start_on_their_borders(tmp_path):
    """Data start on a page, and columns on 64 bytes; on a page from 32 KiB on, on 2 MiB from 16 MiB on."""
    sizes = *range(70), *range(4400, 4420), 32_767, 32_768, 40_000, 1 << 24
    write(tmp_path / "a", [{f"k{n}": torch.zeros(n, dtype=torch.uint8) for n in sizes}])
    found = artifact.open(tmp_path / "a")
    spans = [span for name, span in found.header.spans.items() if not name.startswith("_fill.")]
    assert min(span.begin for span in spans) % 4096 == 0
    end = min(span.begin for span in spans)
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        size = span.end - span.begin
        assert span.begin - end <= max(63, size // 8), "what fills the gap is small against the column"
        end = span.end
        assert span.begin % (64 if size < 32_768 else 4096 if size < 1 << 24 else 2 << 20) == 0
    assert all(column.values.ctypes.data % 64 == 0 for column in found.groups[0].columns)
