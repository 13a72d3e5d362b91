"""Round trips over generated samples: what is written comes back, alone, mixed, merged and viewed."""

from collections import namedtuple
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.extra.numpy as hnp
import numpy as np
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prepcache import artifact
from support.artifacts import merge, same, write, write_items

Point = namedtuple("Point", "x y")

NUMPY = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.floating_dtypes(sizes=(16, 32, 64), endianness="?"),
    hnp.complex_number_dtypes(sizes=(64, 128), endianness="?"),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.builds(lambda dtype, shape: (dtype, shape), NUMPY, SHAPES).flatmap(lambda pair: hnp.arrays(*pair))
TORCH = st.sampled_from([
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
])  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of random bits, some not contiguous."""
    dtype, shape = draw(TORCH), draw(SHAPES)
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    raw = draw(st.binary(min_size=count, max_size=count))
    made = (
        torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
        if raw
        else torch.empty(shape, dtype=dtype)
    )
    return made.movedim(0, -1) if made.dim() > 1 and draw(st.booleans()) else made


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
    st.floats(allow_nan=True),
    st.text(st.characters(), max_size=8),
    st.binary(max_size=8),
    ARRAYS,
    ARRAYS.filter(lambda array: array.size > 0 and array.dtype.kind not in "SU").map(
        lambda array: array.flat[0].copy()
    ),
    tensors(),
)
KEYS = st.one_of(
    st.text(st.characters(), max_size=4), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.none()
)
SAMPLES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


@given(st.lists(SAMPLES, max_size=6))
@settings(deadline=None, max_examples=150)
def test_samples_come_back(samples):
    """Any samples, in any mix, come back to the bit; safetensors reads every tensor."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        write(path, samples)
        found = artifact.open(path)
        for row, sample in enumerate(samples):
            assert same(found.sample(row), sample)
        with safetensors.safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - a handle, not a dict
                file.get_tensor(name)


@given(st.lists(st.lists(st.lists(SAMPLES, max_size=2), max_size=3), min_size=1, max_size=4))
@settings(deadline=None, max_examples=100)
def test_a_merge_equals_one_writer(parts):
    """Files of expanded items, merged, are byte for byte the file that one writer makes of all of them."""
    with TemporaryDirectory() as folder:
        paths, first = [], 0
        for number, items in enumerate(parts):
            paths.append(Path(folder) / str(number))
            write_items(paths[-1], items, first=first)
            first += len(items)
        merge(Path(folder) / "merged", paths)
        write_items(Path(folder) / "whole", [item for items in parts for item in items])
        assert (Path(folder) / "merged").read_bytes() == (Path(folder) / "whole").read_bytes()
