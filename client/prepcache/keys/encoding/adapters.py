"""Adapters: what counts of libraries' values that cannot be copied, or whose copies say too much or little.

What a user has registered for such a class goes first.

Invariants:
    1. No library is imported here: a value of a library's type means that it is loaded already.
    2. Arrays and tensors count by dtype, shape and bytes in C order, without strides and padding.
    3. An instance counts with all of its attributes and slots, too. Only a function here that gives a dict
       says itself which attributes count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn
from weakref import WeakSet

from prepcache.errors import UnkeyableError
from prepcache.keys.encoding.builtins import attributes_of
from prepcache.keys.encoding.encoder import length
from prepcache.keys.encoding.objects import global_generator, is_entropy, seed_of

Key = Callable[[Any], Any]
"""From a value to what counts of it; NotImplemented where its copies say it."""


# -- numpy


_NUMPY_KINDS = "biufcmMSUO"
"""Kinds whose `str` says all: number type, width, byte order, unit of time."""


def _dtype(dtype: Any) -> Any:
    """A plain dtype by its name; itself, which counts by its copies, with fields, metadata or own types."""
    is_named = dtype.kind in _NUMPY_KINDS and dtype.type.__module__ == "numpy"
    return dtype.str.encode() if is_named and dtype.metadata is None else dtype


def _array(value: Any) -> Any:
    plain = value.view(sys.modules["numpy"].ndarray)
    return _dtype(plain.dtype), b"".join(map(length, plain.shape)), _elements(plain)


_NO_VALUES = frozenset(
    {"_mmap", "filename", "offset", "mode", "_sharedmask", "_isfield", "_baseclass", "_basedict"}
)
"""What numpy keeps in a map of a file, whose bytes are its value, and in a masked array."""


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
    if dtype.char in "gG" and numpy.finfo(dtype).nmant == 63:  # 10 of the 16 bytes of each number
        return numpy.frombuffer(value.tobytes(), numpy.uint8).reshape(-1, 16)[:, :10].tobytes()
    return memoryview(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8))


# -- torch


_OF_TORCH = ("aten", "prim", "prims", "quantized")
_NOT_OF_A_SCRIPT = (".debug_pkl", "/.data/serialization_id")
"""They say where the source was, and what the other records sum up to."""


def _tensor(value: Any) -> Any:
    torch = sys.modules["torch"]
    if type(value).__name__.startswith("Uninitialized"):
        raise UnkeyableError("a lazy parameter has no value until the module is called once")
    plain = value.detach()
    plain = plain if type(plain) is torch.Tensor else plain.as_subclass(torch.Tensor)
    said = f"{plain.dtype} {tuple(plain.shape)} {plain.device.type} {value.requires_grad} {plain.layout}"
    if plain.is_nested or plain.is_quantized or plain.is_meta or plain.layout is not torch.strided:
        raise UnkeyableError(f"this tensor has no comparable bytes: {said}")
    grad = value.grad if value.is_leaf else None
    if not plain.numel():
        return said, b"", grad
    dense = plain.resolve_conj().resolve_neg().cpu().contiguous()
    # Not reshape(-1): that leaves one element its stride, and what has another than 1 is no run of bytes.
    flat = dense.as_strided((dense.numel(),), (1,))
    return said, memoryview(flat.view(torch.uint8).numpy()), grad


def _module(value: Any) -> Any:
    """By its attributes, with hooks in their order: their numbers are of a counter of the process."""
    kind: Any = type(value)
    parts = _ranked(vars(value))
    if kind.__module__ == "torch.nn.utils.parametrize":  # its `__getstate__` raises
        return {"of": kind.__bases__[0], **parts}
    base: Any = next(one for one in kind.__mro__ if one.__name__ == "Module")
    ways = ("__getstate__", "__reduce_ex__", "__reduce__")
    return parts if all(getattr(kind, way) is getattr(base, way) for way in ways) else NotImplemented


def _ranked(parts: dict[str, Any]) -> dict[str, Any]:
    tables = {name: part for name, part in parts.items() if "_hooks" in name and isinstance(part, dict)}
    numbers = sorted({number for table in tables.values() for number in table if type(number) is int})
    rank = {number: place for place, number in enumerate(numbers)}
    return parts | {n: [(rank.get(key, key), hook) for key, hook in t.items()] for n, t in tables.items()}


def _script(value: Any) -> dict[str, Any]:
    """What a script is saved as, and the hooks and attributes that Python keeps."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(value.save_to_buffer())) as archive:
        paths = [path for path in archive.namelist() if not path.endswith(_NOT_OF_A_SCRIPT)]
        parts: dict[str, Any] = {path.partition("/")[2]: archive.read(path) for path in paths}
    for path, module in value.named_modules() if hasattr(value, "named_modules") else ():
        for name, part in _ranked(vars(module)).items():
            if type(part).__name__ != "ScriptMethod" and ("hooks" in name or not name.startswith("_")):
                parts[f"{path}.{name}" if path else name] = part
    return parts


def _operator(value: Any) -> dict[str, Any]:
    name = str(value)
    if name.partition(".")[0] not in _OF_TORCH:
        raise UnkeyableError(f"only torch knows what {name} runs: call the function that it is made of")
    return {"name": name}


# -- others


def _refused(why: str) -> Callable[[Any], NoReturn]:
    def refuse(value: Any) -> NoReturn:
        raise UnkeyableError(why)

    return refuse


def _model(value: Any) -> dict[str, Any]:
    """By its fields, and by which of them were given: `exclude_unset=True` asks."""
    return {
        **attributes_of(value),
        "model_extra": getattr(value, "__pydantic_extra__", None),
        "private attributes": getattr(value, "__pydantic_private__", None),
        "fields that were given": sorted(getattr(value, "__pydantic_fields_set__", ())),
    }


def _field(value: Any) -> dict[str, Any]:
    """Less its annotation: the class has it, too, and use resolves the names in it."""
    own = attributes_of(value).items()
    return {name: part for name, part in own if name[0] != "_" and name != "annotation"}


def _transform(value: Any) -> dict[str, Any]:
    """Less generators made from its seed or from entropy, and its table of own methods, in a set's order."""
    own = dict(vars(value))
    seed = seed_of(generator := own.get("random_generator"))
    if seed is not None and (seed == own.get("seed") or is_entropy(generator)):
        own = {name: part for name, part in own.items() if name not in ("random_generator", "py_random")}
    tables = [one for one in own.values() if type(one) is dict and one]
    methods = [one for one in tables if all(getattr(m, "__self__", None) is value for m in one.values())]
    return {name: part for name, part in own.items() if not any(part is one for one in methods)}


KEYS: dict[tuple[str, str], Key] = {
    ("_weakrefset", "WeakSet"): lambda value: (
        {"set": set(value)} if type(value) is WeakSet else NotImplemented
    ),
    ("typing", "ForwardRef"): lambda value: value.__forward_arg__,  # not what somebody has evaluated it to
    ("annotationlib", "ForwardRef"): lambda value: value.__forward_arg__,
    ("logging", "Logger"): lambda value: {"name": value.name},  # nothing comes from loggers into a sample
    ("logging", "Handler"): lambda value: {"name": value.name},
    ("loguru", "Logger"): lambda value: {},
    ("multiprocessing", "Event"): lambda value: {"is_set": value.is_set()},  # made of locks
    ("unittest", "NonCallableMock"): _refused("each look at a mock changes it"),
    ("ctypes", "CDLL"): _refused("load the library in the function, and pass its path in config"),
    ("numpy", "ndarray"): _array,
    ("numpy", "memmap"): _numpy_subclass,
    ("numpy", "MaskedArray"): _numpy_subclass,
    ("numpy", "generic"): lambda value: _array(sys.modules["numpy"].asarray(value)),
    ("numpy", "dtype"): _dtype,
    ("torch", "Tensor"): _tensor,
    ("torch", "layout"): str,
    ("torch", "Module"): _module,
    ("torch", "ScriptModule"): _script,
    ("torch", "ScriptFunction"): _script,
    ("torch", "OptimizedModule"): lambda value: {"compiled": value._modules["_orig_mod"]},
    ("torch", "Generator"): lambda value: global_generator(value) or (str(value.device), value.get_state()),
    ("torch", "OpOverloadPacket"): _operator,
    ("torch", "OpOverload"): _operator,
    ("torch", "CustomOpDef"): _refused("call the function that it is made of"),
    ("tokenizers", "Tokenizer"): lambda value: (value.to_str(), value.encode_special_tokens),
    ("albumentations", "BasicTransform"): _transform,
    ("albumentations", "BaseCompose"): _transform,
    ("albumentations", "Compose"): _transform,
    ("omegaconf", "Container"): lambda value: {
        "items": sys.modules["omegaconf"].OmegaConf.to_container(value, resolve=True, throw_on_missing=False)
    },
    ("msgspec", "StructConfig"): lambda value: {n: getattr(value, n) for n in dir(value) if n[0] != "_"},
    ("msgspec", "Factory"): lambda value: value.factory,
    ("pydantic", "BaseModel"): _model,
    ("pydantic", "FieldInfo"): _field,
    ("pydantic", "ModelPrivateAttr"): _field,
    ("pydantic", "Decorator"): lambda value: {"info": value.info},  # its others name the class's address
    ("pydantic", "ValidateCallWrapper"): lambda value: {
        "function": value.function,
        "validates_return": value.validate_return,
        "config": value.config_wrapper.config_dict,
    },
    ("pydantic", "TypeAdapter"): _refused("create it in the function"),
    ("numba", "Dispatcher"): lambda value: {
        "py_func": value.py_func,
        "options": dict(value.targetoptions),
        "signatures": [str(signature) for signature in value.signatures],
    },
    ("polars", "LazyFrame"): _refused("collect it first: it may read files when it is collected"),
}
"""By top package and name of a library's class: no library is imported for it."""
