"""Adapters: what values of numpy, torch, pydantic and other libraries count by.

They are taught with `register_key`, as a user teaches a class, once a value of such a class is met. What
users have registered stays.

Invariants:
    1. No library is imported here: a value of a library's type means that it is loaded already.
    2. Arrays and tensors count by dtype, shape and bytes in C order, whatever their strides. Bytes that
       carry no value (padding) are left out.
    3. An instance counts with all of its attributes and slots, too (`instances.with_state`). Only a function
       here that gives a dict says itself which attributes count.
    4. Where the function can see the order of a dict, the dict is nested, as there the order counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.encoding import object_adapters
from prepcache.keys.encoding.encoder import length, register_adapter, text_bytes
from prepcache.keys.encoding.instances import attributes_of
from prepcache.keys.observation.calls import is_library_file

Key = Callable[[Any], Any]


def teach(kind: type) -> None:
    """Register what values of a class count by, and of its bases, where adapters know them."""
    for base in kind.__mro__:
        name = base.__module__.partition(".")[0], base.__name__
        key = _KEYS.get(name) or object_adapters.KEYS.get(name)
        if key is not None and _is_of_library(base):
            register_adapter(base, key)


def _is_of_library(cls: type) -> bool:
    """Whether a class is the library's, and not one of a project that has a folder of the library's name."""
    names = (cls.__module__, cls.__module__.partition(".")[0])
    file = next((file for name in names if (file := getattr(sys.modules.get(name), "__file__", None))), None)
    if file is None or is_library_file(file):
        return True
    from prepcache.keys.code.project import Place, Places  # where a library is installed is hardly ever asked
    from prepcache.keys.environment import lately

    return Places(lately().installed).of(file) is not Place.PROJECT


# -- the standard library ---------------------------------------------------------------------------------


def _zone(value: Any) -> str:
    if value.key is None:
        raise UnkeyableError("a time zone that was read from a file has no name")
    return str(value.key)


# -- numpy ------------------------------------------------------------------------------------------------


_NUMPY_KINDS = "biufcmMSUO"
"""Kinds whose `str` says all: number type, width, byte order, unit of time."""


def _dtype(dtype: Any) -> bytes:
    """A dtype by its name, and what a name leaves open: fields, inner shapes, types of other libraries."""
    out = text_bytes(dtype.str)
    if dtype.kind not in _NUMPY_KINDS or dtype.type.__module__ != "numpy":
        out += text_bytes(f"{dtype.type.__module__}.{dtype.type.__qualname__}")
    if dtype.fields is not None:
        out += length(dtype.itemsize) + length(len(dtype.names))
        for name in dtype.names:
            field, offset, *title = dtype.fields[name]
            out += text_bytes(name) + length(offset) + _dtype(field)
            out += b"".join(text_bytes(f"title {t}") for t in title)
    elif dtype.subdtype is not None:
        base, shape = dtype.subdtype
        out += _dtype(base) + text_bytes(str(tuple(map(int, shape))))
    return out


def _scalar(value: Any) -> Any:
    # An element of an array of names may name a file, as any str.
    data = str(value) if isinstance(value, str) else _elements(sys.modules["numpy"].asarray(value))
    return _dtype(value.dtype), data


def _array(value: Any) -> Any:
    plain = value.view(sys.modules["numpy"].ndarray)
    return _dtype(plain.dtype) + b"".join(map(length, (plain.ndim, *plain.shape))), _elements(plain)


_NO_VALUES = frozenset(
    {"_mmap", "filename", "offset", "mode", "_sharedmask", "_isfield", "_baseclass", "_basedict"}
)
"""What numpy keeps in a map of a file, whose bytes are its value, and in a masked array, beside its mask."""


def _numpy_subclass(value: Any) -> dict[str, Any]:
    state = attributes_of(value)
    return {"array": _array(value), **{name: state[name] for name in state.keys() - _NO_VALUES}}


def _elements(value: Any) -> Any:
    numpy = sys.modules["numpy"]
    dtype = value.dtype
    if dtype.fields is not None:
        return [_elements(value[name]) for name in dtype.names]
    if dtype.kind in "OTU":
        return value.ravel().tolist()
    if dtype.type in (numpy.longdouble, numpy.clongdouble) and numpy.finfo(dtype).nmant == 63:
        return numpy.frombuffer(value.tobytes(), numpy.uint8).reshape(-1, 16)[:, :10].tobytes()
    if not value.size or not dtype.itemsize:
        return b""
    return memoryview(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8))


# -- torch ------------------------------------------------------------------------------------------------


_NOTED_BY_DYNAMO = frozenset({"_dynamo_static_input_type"})
"""What the first call of a compiled module leaves in its tensors: that they stay where they are."""


def _tensor(value: Any) -> dict[str, Any]:
    state = attributes_of(value)
    return {"tensor": _layout(value), **{name: state[name] for name in state.keys() - _NOTED_BY_DYNAMO}}


def _layout(value: Any) -> Any:
    torch = sys.modules["torch"]
    if type(value).__name__.startswith("Uninitialized"):
        raise UnkeyableError("a lazy parameter has no value until the module is called once")
    plain = value.detach()
    plain = plain if type(plain) is torch.Tensor else plain.as_subclass(torch.Tensor)
    said = f"{plain.dtype} {tuple(plain.shape)} {plain.device.type} {value.requires_grad} {plain.layout}"
    if plain.is_nested or plain.is_quantized or plain.device.type == "meta":
        kind = "meta" if plain.is_meta else "nested or quantized"
        raise UnkeyableError(f"a {kind} tensor has no comparable bytes")
    if plain.layout is torch.strided:
        return said, _tensor_data(plain)
    if plain.layout is torch.sparse_coo:
        plain = plain.coalesce()
        return said, (plain.indices(), plain.values())
    if plain.layout in (torch.sparse_csr, torch.sparse_bsr):
        return said, (plain.crow_indices(), plain.col_indices(), plain.values())
    if plain.layout in (torch.sparse_csc, torch.sparse_bsc):
        return said, (plain.ccol_indices(), plain.row_indices(), plain.values())
    raise UnkeyableError(f"a tensor of layout {plain.layout} has no comparable bytes")


def _tensor_data(value: Any) -> Any:
    torch = sys.modules["torch"]
    if not value.numel():
        return b""
    dense = value.resolve_conj().resolve_neg().cpu().contiguous()
    # Not reshape(-1): that leaves one element its stride, and what has another than 1 is no run of bytes.
    flat = dense.as_strided((dense.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy())


# -- others -----------------------------------------------------------------------------------------------


def _molecule(value: Any) -> Any:
    """A molecule with its properties, which pickling leaves out; those that rdkit computes follow from it."""
    options = sys.modules["rdkit.Chem.rdchem"].PropertyPickleOptions
    wanted = int(options.AllProps) & ~int(options.ComputedProps) | int(getattr(options, "CoordsAsDouble", 0))
    return value.ToBinary(wanted)


def _model(value: Any) -> dict[str, Any]:
    """A model of pydantic's by its fields, and by which of them were given: `exclude_unset=True` asks."""
    return {
        **attributes_of(value),
        "model_extra": getattr(value, "__pydantic_extra__", None),
        "private attributes": getattr(value, "__pydantic_private__", None),
        "fields that were given": sorted(getattr(value, "__pydantic_fields_set__", ())),
    }


def _container(value: Any) -> dict[str, Any]:
    """A config of OmegaConf's by its items, resolved."""
    to_container = sys.modules["omegaconf"].OmegaConf.to_container
    return {"items": to_container(value, resolve=True, throw_on_missing=False)}


_KEYS: dict[tuple[str, str], Key] = {
    ("argparse", "Namespace"): attributes_of,
    ("decimal", "Decimal"): str,
    ("fractions", "Fraction"): attributes_of,
    ("types", "SimpleNamespace"): attributes_of,
    ("uuid", "UUID"): attributes_of,
    ("zoneinfo", "ZoneInfo"): _zone,
    ("numpy", "ndarray"): _array,
    ("numpy", "memmap"): _numpy_subclass,
    ("numpy", "MaskedArray"): _numpy_subclass,
    ("numpy", "generic"): _scalar,
    ("numpy", "dtype"): _dtype,
    ("torch", "Tensor"): _tensor,
    ("torch", "Size"): tuple,
    ("torch", "dtype"): str,
    ("torch", "layout"): str,
    ("torch", "memory_format"): str,
    ("torch", "device"): str,
    ("ml_collections", "ConfigDict"): lambda value: {"items": value.to_dict()},
    ("omegaconf", "Container"): _container,
    ("pydantic", "BaseModel"): _model,
    ("rdkit", "Mol"): _molecule,
}
"""By top package and name of a class: no library is imported for it."""
