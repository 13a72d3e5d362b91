"""Columns: what one leaf of a sample is, how its column lies in a safetensors file, and what collects one.

Invariants:
    1. A leaf comes back as what it was, to the bit; big-endian arrays come back native, equal in value.
    2. What no numpy dtype can name (bfloat16, float8) is held as integers of the same size; complex128, which
       no safetensors dtype can name, as `U8` with one more axis: the bytes of an element.
"""

from __future__ import annotations

from array import array
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
    Raises ValueError for a leaf that no column holds."""
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


# --- columns that are collected ---


class FilePart(NamedTuple):
    """A piece of a tensor that lies in another file."""

    fd: int
    begin: int
    end: int


def collected(leaf: Leaf) -> Collected:
    """A column of that leaf without rows."""
    if leaf.kind == "none":
        return Collected(leaf)
    if leaf.kind in BYTE_KINDS:
        return _Bytes(leaf)
    return _Numbers(leaf) if leaf.kind in FIXED_KINDS else _Arrays(leaf)


class Collected:
    """One leaf of rows that are collected: values end to end, and offsets or shapes. This one is always None.

    Attributes:
        shape: of every row, or None if they differ.
    """

    shape: tuple[int, ...] | None = ()

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self._dtype = storage(leaf)[1]
        self._values: Any = bytearray()
        self._table = array("q")
        self._elsewhere: list[FilePart] = []
        self._elsewhere_bytes = 0

    def append(self, value: Any) -> None:
        """Takes the value of the next row."""

    def add_part(self, part: FilePart, rows: int, shape: tuple[int, ...] | None, table: Array | None) -> None:
        """Takes rows whose values lie in a file: of one shape, or with the shapes or offsets in `table`."""
        self._refer(part)

    @property
    def nbytes(self) -> int:
        held = len(self._values) * getattr(self._values, "itemsize", 1)
        return self._elsewhere_bytes + held + 8 * len(self._table)

    @property
    def total(self) -> int:
        """How many values there are, if the column is ragged."""
        return (self._elsewhere_bytes + len(self._values)) // self._dtype.itemsize

    @property
    def held(self) -> memoryview:
        """The values that are in memory."""
        return memoryview(self._values).cast("B")

    def let_go(self, part: FilePart) -> None:
        """Drops the values in memory, which lie in a file now."""
        self._refer(part)
        del self._values[:]

    def _refer(self, part: FilePart) -> None:
        self._elsewhere.append(part)
        self._elsewhere_bytes += part.end - part.begin

    def pieces(self) -> list[Any]:
        """Those of each of its tensors."""
        return []


class _Numbers(Collected):
    """Python numbers of fixed size."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._values = array({"int": "q", "bool": "b", "float": "d"}[leaf.kind])
        self.append = self._values.append  # type: ignore[method-assign]

    def pieces(self) -> list[Any]:
        return [(*self._elsewhere, self._values)]


class _Bytes(Collected):
    """str and bytes, with their offsets."""

    shape = None

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._table.append(0)

    def append(self, value: Any) -> None:
        self._values += value.encode("utf-8", "surrogatepass") if self.leaf.kind == "str" else value
        self._table.append(self._elsewhere_bytes + len(self._values))

    def add_part(self, part: FilePart, rows: int, shape: Any, table: Any) -> None:
        self._table.frombytes((table[1:] + self._elsewhere_bytes).tobytes())
        self._refer(part)

    def pieces(self) -> list[Any]:
        return [(self._table,), (*self._elsewhere, self._values)]


class _Arrays(Collected):
    """Tensors, ndarrays and numpy scalars; dense as long as all shapes are one, and then with the shapes."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._is_tensor = leaf.kind == "tensor"
        self._has_word = self._is_tensor and self._dtype.name != leaf.dtype
        self._rows = 0

    def append(self, value: Any) -> None:
        shape = tuple(value.shape)
        if shape != self.shape:
            self._expect(shape)
        if self.shape is None:
            self._table.extend(shape)
        self._rows += 1
        if self._has_word:  # asked for here: a daemon merges without torch
            value = value.contiguous().view(torch_word(self.leaf)).numpy()
        elif self._is_tensor:  # by force: numpy knows no conjugate or negative views
            value = value.numpy(force=True)
        self._values += np.ascontiguousarray(value, self._dtype).reshape(-1).view("u1").data

    def add_part(self, part: FilePart, rows: int, shape: Any, table: Any) -> None:
        self._expect(shape)
        if self.shape is None:
            if shape is not None:
                table = np.tile(np.array(shape, "<i8"), rows)
            elif self.leaf.ndim == 1:
                table = np.diff(table)
            self._table.frombytes(table.tobytes())
        self._rows += rows
        self._refer(part)

    def _expect(self, shape: tuple[int, ...] | None) -> None:
        """Sets what all rows have in common, before rows of a shape, or of several, are taken."""
        if self._rows == 0:
            self.shape = shape
        elif self.shape is not None and shape != self.shape:
            self._table.extend(self.shape * self._rows)
            self.shape = None

    def pieces(self) -> list[Any]:
        values = *self._elsewhere, self._values
        if self.shape is not None:
            return [values]
        shapes = np.frombuffer(self._table, "<i8").reshape(self._rows, self.leaf.ndim)
        offsets = np.zeros(self._rows + 1, "<i8")
        np.prod(shapes, axis=1, out=offsets[1:])
        np.cumsum(offsets, out=offsets)
        tables = [(offsets,), (shapes,)] if self.leaf.ndim >= 2 else [(offsets,)]
        return [*tables, values]
