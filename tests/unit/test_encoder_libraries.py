"""The canonical encoding of numpy, torch and pydantic values."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pydantic
import pytest
import torch

from prepcache.errors import UnkeyableError
from prepcache.keys.encoding.encoder import encode


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 1
    _secret: int = pydantic.PrivateAttr(default=0)


class OtherModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 1
    _secret: int = pydantic.PrivateAttr(default=0)


class Tagged(np.ndarray):
    pass


class OtherTagged(np.ndarray):
    pass


class Named(torch.Tensor):
    pass


class OtherNamed(torch.Tensor):
    pass


ARRAY = np.arange(12, dtype="<i4").reshape(3, 4)
TENSOR = torch.arange(12, dtype=torch.int32).reshape(3, 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ARRAY, np.asfortranarray(ARRAY)),
        (ARRAY[:, ::2], ARRAY[:, ::2].copy()),
        (ARRAY[::-1], ARRAY[::-1].copy()),
        (TENSOR.t(), TENSOR.t().contiguous()),
        (TENSOR[:, ::2], TENSOR[:, ::2].clone()),
        (TENSOR[:1, 0], TENSOR[:1, 0].clone(memory_format=torch.contiguous_format)),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (np.dtype("int32"), np.dtype("<i4")),
        (Model(a=1), Model(a=1)),
        (np.array(["a", "b"], dtype=object), np.array(["a", "b"], dtype=object)),
        (
            torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=False),
            torch.sparse_coo_tensor([[0]], [3.0], (3,), check_invariants=False),
        ),
    ],
    ids=str,
)
def test_equal_values_have_equal_bytes_whatever_their_strides(one: Any, other: Any) -> None:
    assert encode(one) == encode(other)


def sparse(row: int, column: int) -> torch.Tensor:
    return torch.sparse_coo_tensor([[row], [column]], [1.0], (2, 2), check_invariants=False)


def compressed(row: int, column: int, layout: torch.layout = torch.sparse_csr) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is in beta state
        return sparse(row, column).to_sparse(layout=layout)


DIFFERENT: list[Any] = [
    ARRAY,
    ARRAY.reshape(4, 3),
    ARRAY.astype("<i8"),
    ARRAY.astype(">i4"),
    ARRAY.astype("<u4"),
    ARRAY + 1,
    ARRAY.view(Tagged),
    np.ma.masked_array(ARRAY, ARRAY > 3),
    np.ma.masked_array(ARRAY, ARRAY > 4),
    ARRAY.tolist(),
    TENSOR,
    TENSOR.reshape(4, 3),
    TENSOR.to(torch.int64),
    TENSOR.to(torch.float32),
    TENSOR.to(torch.float32).requires_grad_(),
    torch.nn.Parameter(TENSOR.to(torch.float32)),
    TENSOR.to_sparse(),
    np.array(1),
    np.array([1]),
    np.int64(1),
    np.int32(1),
    np.float64(1),
    1.0,
    np.bool_(True),
    np.str_("1"),
    np.array("1"),
    np.array(["1"], dtype=object),
    np.array([1], dtype=object),
    np.array(["2020-01-01"], dtype="M8[D]"),
    np.array(["2020-01-01"], dtype="M8[s]"),
    np.zeros(0),
    np.zeros((0, 2)),
    np.zeros((2, 0)),
    torch.zeros(0),
    torch.zeros(1, dtype=torch.bfloat16),
    torch.zeros(1, dtype=torch.float16),
    torch.tensor(0.0),
    torch.float16,
    torch.bfloat16,
    torch.device("cpu"),
    torch.Size([1, 2]),
    (1, 2),
    np.dtype("i4"),
    np.dtype("i8"),
    np.dtype([("a", "i4")]),
    np.dtype([("b", "i4")]),
    np.dtype([("a", "i4"), ("b", "i4")]),
    np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [4]}),
    Model(),
    Model(a=2),
    Model(b=1),
    Model(b=2),
    Model(a=1),
    OtherModel(),
    np.dtype((np.record, [("a", "i4")])),
    np.dtype([("a", "f4")]),
    np.dtype(("i4", (2, 3))),
    np.dtype(("i4", (3, 2))),
    np.uint8(1),
    np.uint8(2),
    np.array([1], "u1"),
    np.array([True]),
    np.array([(1,)], [("a", "i4")]),
    np.array([(2,)], [("a", "i4")]),
    ARRAY.view(OtherTagged),
    torch.tensor([True]),
    torch.tensor([1], dtype=torch.uint8),
    TENSOR.as_subclass(Named),
    TENSOR.as_subclass(OtherNamed),
    sparse(0, 0),
    sparse(1, 0),
    compressed(0, 0),
    compressed(0, 1),
    compressed(1, 0),
    compressed(0, 0, torch.sparse_csc),
    torch.zeros(1),
    torch.zeros(1, requires_grad=True),
]


def test_values_that_differ_in_any_way_have_other_bytes() -> None:
    encoded = [encode(value) for value in DIFFERENT]
    assert len(set(encoded)) == len(DIFFERENT)


def test_private_state_of_a_model_counts() -> None:
    other = Model()
    other._secret = 5
    assert encode(Model()) != encode(other)


def test_padding_does_not_count() -> None:
    dtype = np.dtype([("a", "i1"), ("b", "i4")], align=True)
    one, other = (np.full(16, fill, np.uint8).view(dtype) for fill in (0, 255))
    for array in (one, other):
        array["a"], array["b"] = 1, 2
    assert one.tobytes() != other.tobytes()
    assert encode(one) == encode(other)


def test_extended_precision_counts_by_its_value_bytes() -> None:
    value = np.array([1, 2], dtype=np.longdouble) / 3
    dirty = value.copy()
    if value.itemsize == 16 and np.finfo(np.longdouble).nmant == 63:
        dirty.view(np.uint8).reshape(-1, 16)[:, 10:] = 255
    assert encode(value) == encode(dirty) != encode(value + 1)


def test_a_mapped_array_counts_by_its_bytes_not_by_its_file(tmp_path: Any) -> None:
    found = set()
    for name in ("a", "b"):
        mapped = np.memmap(tmp_path / name, dtype="<i4", mode="w+", shape=(4,))
        mapped[:] = 7
        found.add(encode(mapped))
    assert len(found) == 1


@pytest.mark.parametrize("tensor", [torch.zeros(1, device="meta")], ids=str)
def test_a_tensor_without_bytes_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(UnkeyableError, match="meta"):
        encode({"t": tensor})
