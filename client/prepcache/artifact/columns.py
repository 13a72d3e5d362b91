"""Leaves and columns: what one leaf of a sample is, and how its column lies in a safetensors file.

Invariants:
    1. A leaf comes back as what it was, to the bit; big-endian arrays come back native, equal in value.
    2. What no numpy dtype can name (bfloat16, float8) is held as integers of the same size; complex128, which
       no safetensors dtype can name, as `U8` with one more axis: the bytes of an element.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

Array = NDArray[Any]

VALUE_KINDS = ("tensor", "ndarray", "scalar")
"""Leaves that have a dtype of their own; a `scalar` is a numpy scalar."""
FIXED_KINDS = {"int": "<i8", "float": "<f8", "bool": "|b1"}
"""Python numbers of fixed size, and the numpy dtype of their column."""
BYTE_KINDS = ("str", "bytes")
"""Leaves of any length: UTF-8 (lone surrogates passed), and bytes."""
KINDS = (*VALUE_KINDS, *FIXED_KINDS, *BYTE_KINDS, "none")

MAX_NDIM = 32
"""Axes of one leaf; numpy allows 64 (32 before numpy 2) and a column adds one for the rows."""

_TORCH = {
    "float64": ("F64", "<f8"),
    "float32": ("F32", "<f4"),
    "float16": ("F16", "<f2"),
    "bfloat16": ("BF16", "<i2"),
    "int64": ("I64", "<i8"),
    "int32": ("I32", "<i4"),
    "int16": ("I16", "<i2"),
    "int8": ("I8", "|i1"),
    "uint64": ("U64", "<u8"),
    "uint32": ("U32", "<u4"),
    "uint16": ("U16", "<u2"),
    "uint8": ("U8", "|u1"),
    "bool": ("BOOL", "|b1"),
    "complex64": ("C64", "<c8"),
    "complex128": ("U8", "<c16"),
    "float8_e4m3fn": ("F8_E4M3", "|u1"),
    "float8_e5m2": ("F8_E5M2", "|u1"),
    "float8_e8m0fnu": ("F8_E8M0", "|u1"),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", "|u1"),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", "|u1"),
    "float4_e2m1fn_x2": ("U8", "|u1"),  # two numbers a byte: safetensors counts halves
}
"""torch dtype -> (safetensors dtype, numpy dtype that holds it)."""

_NUMPY = {text: tag for name, (tag, text) in _TORCH.items() if np.dtype(text).name == name}
"""numpy dtype -> safetensors dtype, of what both name alike."""

ITEM_BYTES = {tag: np.dtype(text).itemsize for tag, text in _TORCH.values() if tag != "U8"} | {"U8": 1}
"""Bytes of one element of each safetensors dtype that an artifact uses."""


class Leaf(NamedTuple):
    """What one leaf is: its kind, one of `KINDS`, and the axes of a tensor or ndarray.

    `dtype` is the torch name of a tensor's (`"bfloat16"`), the numpy string of an array's (`"<f4"`).
    """

    kind: str
    dtype: str = ""
    ndim: Annotated[int, Meta(ge=0, le=MAX_NDIM)] = 0


def describe_dtype(dtype: Any) -> str | None:
    """What a leaf names a dtype of torch's or numpy's, in native byte order; None if no column holds it."""
    if isinstance(dtype, np.dtype):
        text = dtype.newbyteorder("=").str
        return text if text in _NUMPY else None
    text = str(dtype).removeprefix("torch.")
    return text if text in _TORCH else None


@lru_cache(maxsize=512)
def storage(leaf: Leaf) -> tuple[str, np.dtype[Any], bool]:
    """The safetensors dtype, the numpy dtype of the mapped values, and whether there is an axis of bytes.

    Raises:
        ValueError: the leaf names no dtype that a column holds.
    """
    text = FIXED_KINDS.get(leaf.kind, leaf.dtype)
    if leaf.kind in BYTE_KINDS or leaf.kind == "none":
        tag, text = "U8", "|u1"
    elif leaf.kind == "tensor" and text in _TORCH:
        tag, text = _TORCH[text]
    elif leaf.kind != "tensor" and text in _NUMPY:
        tag = _NUMPY[text]
    else:
        raise ValueError(f"columns cannot hold dtype {text[:80]!r}")
    dtype = np.dtype(text)
    return tag, dtype, ITEM_BYTES[tag] != dtype.itemsize


def torch_word(leaf: Leaf) -> Any:
    """The torch dtype as which numpy takes the bytes of a tensor leaf, or None where it knows its own."""
    name = storage(leaf)[1].name
    if leaf.kind != "tensor" or name == leaf.dtype:
        return None
    import torch

    return getattr(torch, name)


@lru_cache(maxsize=512)
def leaf_maker(leaf: Leaf) -> Callable[[Array], Any]:
    """What turns arrays of a column's values, of one row or of many, into what the leaf is.

    No bytes are copied. Values must be writable where the leaf is a tensor: torch has no read-only tensors.
    """
    if leaf.kind != "tensor":
        return lambda values: values
    import torch

    if torch_word(leaf) is None:
        return torch.from_numpy
    dtype = getattr(torch, leaf.dtype)
    return lambda values: torch.from_numpy(values).view(dtype)


def decode_bytes(leaf: Leaf) -> Callable[[bytes], Any]:
    """What turns the stored bytes of a `str` or `bytes` leaf into its value."""
    return (lambda raw: raw.decode("utf-8", "surrogatepass")) if leaf.kind == "str" else bytes
