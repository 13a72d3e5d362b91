"""Writers of the canonical encoding for numpy, torch, rdkit and pydantic values.

Invariants:
    1. No library is imported here: a value of a library's type means that it is loaded already.
    2. Arrays and tensors count by dtype, shape and bytes in C order, whatever their strides; bytes that
       carry no value (padding) are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from prepcache.keys.encoding.builtins import by_parts, put_list
from prepcache.keys.encoding.encoder import Encoder, Put, Writer, length, text_bytes
from prepcache.keys.encoding.instances import instance_state, put_state


def writer_for(kind: type) -> Writer | None:
    """The writer for a class of a library that is loaded, or None."""
    if (numpy := sys.modules.get("numpy")) is not None and hasattr(numpy, "ndarray"):
        if issubclass(kind, numpy.ndarray):
            return _array
        if issubclass(kind, numpy.generic):
            return _scalar
        if issubclass(kind, numpy.dtype):
            return _dtype
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "Tensor"):
        if issubclass(kind, torch.nn.Module):
            return None
        if issubclass(kind, torch.Tensor):
            return _tensor
        if kind in (torch.dtype, torch.layout, torch.memory_format, torch.device):
            return _torch_constant
        if kind is torch.Size:
            return by_parts("torch.Size", lambda v: [("elements", list(v))])
    chemistry = sys.modules.get("rdkit.Chem.rdchem")
    if chemistry is not None and hasattr(chemistry, "Mol") and issubclass(kind, chemistry.Mol):
        return _molecule
    model = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return _model if model is not None and issubclass(kind, model) else None


# -- numpy ------------------------------------------------------------------------------------------------


_NUMPY_KINDS = "biufcmMSUO"
"""Kinds whose `str` says all: number type, width, byte order, unit of time."""


def _dtype_bytes(dtype: Any) -> bytes:
    """A dtype by its name, and what a name leaves open: fields, inner shapes, types of other libraries."""
    out = text_bytes(dtype.str)
    if dtype.kind not in _NUMPY_KINDS or dtype.type.__module__ != "numpy":
        out += text_bytes(f"{dtype.type.__module__}.{dtype.type.__qualname__}")
    if dtype.fields is not None:
        out += length(dtype.itemsize) + length(len(dtype.names))
        for name in dtype.names:
            field, offset, *title = dtype.fields[name]
            out += text_bytes(name) + length(offset) + _dtype_bytes(field)
            out += b"".join(text_bytes(f"title {t}") for t in title)
    elif dtype.subdtype is not None:
        base, shape = dtype.subdtype
        out += _dtype_bytes(base) + text_bytes(str(tuple(map(int, shape))))
    return out


def _dtype(_: Encoder, value: Any, put: Put) -> None:
    put(b"y" + _dtype_bytes(value))


def _scalar(encoder: Encoder, value: Any, put: Put) -> None:
    put(b"u" + _dtype_bytes(value.dtype))
    if isinstance(value, str):  # an element of an array of names: it may name a file, as any str
        encoder.walk(str(value), put)
        return
    _data(encoder, sys.modules["numpy"].asarray(value), put)


def _array(encoder: Encoder, value: Any, put: Put) -> None:
    numpy = sys.modules["numpy"]
    plain = value.view(numpy.ndarray)
    if type(value) is numpy.ndarray:
        put(b"a")
    else:
        put(b"A")
        encoder.put_class_of(value, put)
        put_state(encoder, _array_state(value), value, put)
    put(_dtype_bytes(plain.dtype) + length(plain.ndim) + b"".join(map(length, plain.shape)))
    _data(encoder, plain, put)


def _array_state(value: Any) -> Iterable[str]:
    """The attributes of a subclass of ndarray that are values."""
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.memmap):  # the bytes are its value, not where they came from
        return ()
    if hasattr(numpy, "ma") and isinstance(value, numpy.ma.MaskedArray):
        return ("_mask", "_fill_value", "_hardmask")
    return instance_state(value)


def _data(encoder: Encoder, value: Any, put: Put) -> None:
    numpy = sys.modules["numpy"]
    dtype = value.dtype
    if dtype.fields is not None:
        for name in dtype.names:
            _data(encoder, value[name], put)
    elif dtype.kind in "OTU":
        encoder.enter(value)
        encoder.opaque_depth += 1
        put_list(encoder, value.ravel().tolist(), put)
        encoder.opaque_depth -= 1
        encoder.leave(value)
    elif dtype.type in (numpy.longdouble, numpy.clongdouble) and numpy.finfo(dtype).nmant == 63:
        raw = numpy.frombuffer(value.tobytes(), numpy.uint8).reshape(-1, 16)[:, :10]
        put(raw.tobytes())
    elif value.size:
        flat = numpy.ascontiguousarray(value).reshape(-1)
        put(memoryview(flat.view(numpy.uint8)) if flat.dtype.itemsize else b"")


# -- torch ------------------------------------------------------------------------------------------------


def _torch_constant(_: Encoder, value: Any, put: Put) -> None:
    put(b"h" + text_bytes(f"{type(value).__name__} {value}"))


_NOTED_BY_DYNAMO = frozenset({"_dynamo_static_input_type"})
"""What the first call of a compiled module leaves in its tensors: that they stay where they are."""


def _tensor(encoder: Encoder, value: Any, put: Put) -> None:
    torch = sys.modules["torch"]
    if type(value).__name__.startswith("Uninitialized"):
        raise encoder.refuse("a lazy parameter has no bytes until the module is called once")
    plain = value.detach()
    if type(value) is torch.Tensor and vars(value).keys() <= _NOTED_BY_DYNAMO:
        put(b"v")
    else:
        put(b"V")
        encoder.put_class_of(value, put)
        own = [name for name in instance_state(value) if name not in _NOTED_BY_DYNAMO]
        put_state(encoder, own, value, put)
        plain = plain.as_subclass(torch.Tensor)
    if plain.is_nested or plain.is_quantized or plain.device.type == "meta":
        raise encoder.refuse(
            f"a {'meta' if plain.is_meta else 'nested or quantized'} tensor has no bytes "
            f"that can be compared; {encoder.ways_out}"
        )
    put(
        text_bytes(
            f"{plain.dtype} {tuple(plain.shape)} {plain.device.type} {value.requires_grad} {plain.layout}"
        )
    )
    if plain.layout is torch.strided:
        _tensor_data(plain, put)
    elif plain.layout is torch.sparse_coo:
        plain = plain.coalesce()
        _parts(encoder, (plain.indices(), plain.values()), put)
    elif plain.layout in (torch.sparse_csr, torch.sparse_bsr):
        _parts(encoder, (plain.crow_indices(), plain.col_indices(), plain.values()), put)
    elif plain.layout in (torch.sparse_csc, torch.sparse_bsc):
        _parts(encoder, (plain.ccol_indices(), plain.row_indices(), plain.values()), put)
    else:
        raise encoder.refuse(
            f"a tensor of layout {plain.layout} has no bytes that can be compared; {encoder.ways_out}"
        )


def _parts(encoder: Encoder, parts: tuple[Any, ...], put: Put) -> None:
    for part in parts:
        _tensor(encoder, part, put)


def _tensor_data(value: Any, put: Put) -> None:
    torch = sys.modules["torch"]
    if value.numel():
        dense = value.resolve_conj().resolve_neg().cpu().contiguous()
        # Not reshape(-1): that leaves one element its stride, and what has another than 1 is no run of bytes.
        flat = dense.as_strided((dense.numel(),), (1,))
        put(memoryview(flat.view(torch.uint8).numpy()))


# -- rdkit ------------------------------------------------------------------------------------------------


def _molecule(encoder: Encoder, value: Any, put: Put) -> None:
    """A molecule with its properties, which pickling leaves out; those that rdkit computes follow from it."""
    options = sys.modules["rdkit.Chem.rdchem"].PropertyPickleOptions
    wanted = int(options.AllProps) & ~int(options.ComputedProps) | int(getattr(options, "CoordsAsDouble", 0))
    raw = value.ToBinary(wanted)
    put(b"x" + length(14) + b"rdkit molecule")
    encoder.put_class_of(value, put)
    put_state(encoder, instance_state(value), value, put)
    put(length(len(raw)))
    put(raw)


# -- pydantic ---------------------------------------------------------------------------------------------


def _model(encoder: Encoder, value: Any, put: Put) -> None:
    encoder.enter(value)
    put(b"M")
    encoder.put_class_of(value, put)
    put_state(encoder, instance_state(value), value, put)
    _put_given(value, put)
    encoder.opaque_depth += 1
    for step in ("__pydantic_extra__", "__pydantic_private__"):
        encoder.step(getattr(value, step, None), step, put)
    encoder.opaque_depth -= 1
    encoder.leave(value)


def _put_given(model: Any, put: Put) -> None:
    """Which fields were given: the others are the default, and `exclude_unset=True` leaves them out.

    Further fields (`extra="allow"`) are given wherever they are there, so that only others are told.
    """
    given: set[str] = getattr(model, "__pydantic_fields_set__", set())
    further: Any = getattr(model, "__pydantic_extra__", None) or {}
    if told := sorted(given ^ further.keys()):
        put(b"G" + length(len(told)) + b"".join(map(text_bytes, told)))
