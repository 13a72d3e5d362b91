"""The state of objects that the canonical encoding does not know by value.

It is what the object would give to be copied (`__getstate__`, `__reduce_ex__`), in parts, and never the bytes
of a pickle, which differ from run to run. Parts that are no attributes are named in angle brackets. Adapters
say it for libraries' values that cannot be copied, or whose copies say too much or too little.

Invariants:
    1. No state is left out silently: an object with state in C that it does not give away is refused.
    2. No library is imported here: a value of a library's type means that it is loaded already.
    3. Arrays and tensors count by dtype, shape and bytes in C order, without strides and padding.
    4. An instance counts with all of its attributes and slots, too. Only an adapter that gives a dict says
       itself which attributes count.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import gc
import io
import re
import struct
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code.fingerprint import fingerprint, without_address
from prepcache.keys.encoding.builtins import attributes_of
from prepcache.keys.encoding.encoder import Parts, kind_of, length

_LOCK = re.compile(r"(_thread|threading|multiprocessing|asyncio)\.(\w+\.)?\w*([Ll]ock|Condition|Semaphore)")
EMPTY = object()  # what a cell holds that nothing was bound to
_REDUCED = ("<callable>", "<args>", "<state>", "<items>", "<pairs>", "<setter>")
_NAMING_FIELDS = ("dataclasses", "attr")  # whose `__getstate__` gives fields alone, not what subclasses add
_OBJECT: Any = object  # untyped: what it has is compared with what classes have, which are typed as bound
_GENERATORS = (
    "random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState",
    "numpy.random.bit_generator.BitGenerator", "torch._C.Generator",
)  # fmt: skip
_GLOBAL = (("random", "getstate"), ("numpy.random", "get_state"), ("torch", "default_generator"))
_SEED_BITS = 64  # at most, of a seed that somebody chose; numpy's entropy has twice as many


def is_lock(value: Any) -> bool:
    return _LOCK.fullmatch(kind_of(value)) is not None


def parts_of(value: Any, is_library: Callable[[type], bool]) -> Parts:
    """What an object is made of, besides its class. Raises if it does not give its state away."""
    is_theirs = is_library(type(value))
    parts = [] if is_lock(value) else _held(value)
    if parts is None:
        parts = _copied(value, is_theirs)
    if not is_theirs:
        return parts
    # A generator of a library's object, as monai's hold, counts if somebody chose its seed.
    return [(name, one) for name, one in parts if not (is_generator(type(one)) and is_entropy(one))]


def _kept_results(function: Any) -> list[Any]:
    """What a `functools.cache` holds, as the garbage collector sees it; of a bounded one no table."""
    seen = [part for part in gc.get_referents(function) if part is not vars(function)]
    tables = [part for part in seen if type(part) is dict]
    entries = [one for one in tables if "_lru_list_elem" in {type(part).__name__ for part in one.values()}]
    return [part for part in seen if not any(part is one for one in entries)]


_HELD: dict[type, Callable[[Any], dict[str, Any]]] = {
    staticmethod: lambda value: {"__func__": value.__func__},
    classmethod: lambda value: {"__func__": value.__func__},
    types.MethodType: lambda value: {"__self__": value.__self__, "__func__": value.__func__},
    property: lambda value: {"fget": value.fget, "fset": value.fset, "fdel": value.fdel},
    functools.cached_property: lambda value: {"func": value.func},
    functools.partial: lambda value: {"func": value.func, "args": value.args, "keywords": value.keywords},
    functools._lru_cache_wrapper: lambda value: {"cache": _kept_results(value)},
    struct.Struct: lambda value: {"format": value.format},
    weakref.ref: lambda value: {"<referent>": value()},
    types.MappingProxyType: lambda value: {"<items>": dict(value)},
    types.CodeType: lambda value: {"<code>": fingerprint(value)},
}
"""By objects that cannot be copied, besides attributes of their own."""


def _held(value: Any) -> Parts | None:
    if (home := global_generator(value)) is not None:
        return [("<generator>", home)]
    for name in ("stdout", "stderr"):
        if type(value) is io.TextIOWrapper and value in (getattr(sys, name), getattr(sys, f"__{name}__")):
            return [("<stream>", name)]
    read = next((read for base in type(value).__mro__ if (read := _HELD.get(base))), None)
    if read is None:
        return None
    own = {name: part for name, part in attributes_of(value).items() if name[:2] != "__"}
    return sorted((own | read(value)).items())


def _copied(value: Any, is_library: bool) -> Parts:
    cls = type(value)
    # Exceptions and `io.BytesIO` have an empty dict in their state once somebody has asked for it.
    getattr(value, "__dict__", None)
    if (reduce := copyreg.dispatch_table.get(cls)) is not None:
        return _reduced(value, reduce(value), is_library)
    if cls.__reduce_ex__ is not _OBJECT.__reduce_ex__ or cls.__reduce__ is not _OBJECT.__reduce__:
        return _reduced(value, value.__reduce_ex__(4), is_library)
    by = str(getattr(cls.__getstate__, "__module__", None)).partition(".")[0]
    if cls.__getstate__ is not _OBJECT.__getstate__ and by not in _NAMING_FIELDS:
        return _given_state(value.__getstate__())
    object.__reduce_ex__(value, 2)  # refuses state in C that it does not know of
    return sorted(attributes_of(value).items())


def _given_state(state: Any) -> Parts:
    if type(state) is dict and all(type(name) is str for name in state):
        return sorted(state.items())
    return [("<state>", state)]


def _reduced(value: Any, state: Any, is_library: bool) -> Parts:
    if isinstance(state, str):
        return _of_name(value, state)
    parts: Parts = []
    for name, part in zip(_REDUCED, state, strict=False):
        if name == "<state>" and part is not None:
            parts += _given_state(part)
        elif part is not None:
            parts.append((name, list(part) if name in ("<items>", "<pairs>") else part))
    # What the reduction does not say: functions, as `toolz.curry` holds; all that a class of the job's keeps
    # beside a base from another package that says how it is copied.
    cls, ways = type(value), ("__reduce_ex__", "__reduce__")
    owner = next(base for base in cls.__mro__ if any(way in vars(base) for way in ways))
    is_beside = not is_library and owner.__module__.partition(".")[0] != cls.__module__.partition(".")[0]
    names = {name for name, _ in parts}
    for name, part in sorted(attributes_of(value).items()):
        inner = part.func if isinstance(part, functools.partial) else part
        if name not in names and (is_beside or isinstance(inner, types.FunctionType)):
            parts.append((name, part))
    return parts


def _of_name(value: Any, name: str) -> Parts:
    if type(value).__module__ in ("typing", "typing_extensions"):
        parts: Parts = [("<name>", name)]
        for step in ("__supertype__", "__bound__", "__constraints__", "__value__"):
            with contextlib.suppress(AttributeError, NameError):  # a bound may name what is not there
                parts.append((step, getattr(value, step)))
        return parts

    def held(space: Any, step: str) -> Any:
        return getattr(space, "__dict__", {}).get(step)

    home = sys.modules.get(str(getattr(value, "__module__", None)))
    homes = list(sys.modules.values()) if home is None else [home]
    if not any(functools.reduce(held, name.split("."), module) is value for module in homes):
        raise ValueError(f"it pickles as global {name!r}, which no module has")
    return [("<name>", name), *sorted(attributes_of(value).items())]


def state_of(function: types.FunctionType) -> Parts:
    """What a function holds beside its code: what to put behind its label, and values."""
    code, defaults = function.__code__, function.__defaults__ or ()
    named = code.co_varnames[: code.co_argcount]
    # The job may have set more defaults than there are arguments.
    given = [*zip(named[::-1], defaults[::-1], strict=False)]
    given += sorted((function.__kwdefaults__ or {}).items())
    parts = [(f"({without_address(name, code)}=)", value) for name, value in given]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts.append((f"[{name}]", cell.cell_contents))
        except ValueError:
            parts.append((f"[{name}]", EMPTY))
    parts += [(f".{name}", value) for name, value in sorted(vars(function).items())]
    met: Counter[str] = Counter()  # without their addresses, names may be one
    for at, (name, value) in enumerate(parts):
        met[name] += 1
        parts[at] = (name if met[name] == 1 else f"{name}#{met[name]}", value)
    return parts


is_generator: Callable[[type], bool] = functools.lru_cache(maxsize=1024)(
    lambda kind: any(f"{base.__module__}.{base.__qualname__}" in _GENERATORS for base in kind.__mro__)
)


def global_generators() -> list[tuple[str, Any]]:
    found = [(module, getattr(sys.modules.get(module), name, None)) for module, name in _GLOBAL]
    return [(module, getattr(one, "__self__", one)) for module, one in found if one is not None]


def global_generator(value: Any) -> str | None:
    return next((module for module, one in global_generators() if one is value), None)


def bits_of(generator: Any) -> Any:
    return getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)


def seed_of(generator: Any) -> int | None:
    if any(base.__module__ == "torch._C" for base in type(generator).__mro__):
        return int(generator.initial_seed())
    entropy = getattr(getattr(bits_of(generator), "seed_seq", None), "entropy", None)
    return entropy if isinstance(entropy, int) else None


def is_entropy(generator: Any) -> bool:
    return (seed_of(generator) or 0).bit_length() > _SEED_BITS


def _dtype(dtype: Any) -> Any:
    """A plain dtype by its name, which says all; itself with fields, metadata or own types."""
    is_named = dtype.kind in "biufcmMSUO" and dtype.type.__module__ == "numpy"
    return dtype.str.encode() if is_named and dtype.metadata is None else dtype


def _array(value: Any) -> Any:
    plain = value.view(sys.modules["numpy"].ndarray)
    return _dtype(plain.dtype), b"".join(map(length, plain.shape)), _elements(plain)


def _memmap(value: Any) -> dict[str, Any]:
    """Less what numpy keeps of the file, whose bytes are the value."""
    of_file = ("_mmap", "filename", "offset", "mode")
    own = {name: part for name, part in attributes_of(value).items() if name not in of_file}
    return {"array": _array(value), **own}


def _elements(value: Any) -> Any:
    numpy = sys.modules["numpy"]
    dtype = value.dtype
    if dtype.fields is not None:
        return [_elements(value[name]) for name in dtype.names]
    if dtype.kind in "OTU" or dtype.char in "gG":  # long doubles have padding
        return (value.astype(str) if dtype.kind in "fc" else value).ravel().tolist()
    return memoryview(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8))


def _tensor(value: Any) -> Any:
    torch = sys.modules["torch"]
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
    parts = _ranked(attributes_of(value))
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
    import zipfile

    with zipfile.ZipFile(io.BytesIO(value.save_to_buffer())) as archive:
        paths = [p for p in archive.namelist() if not p.endswith((".debug_pkl", "/.data/serialization_id"))]
        parts: dict[str, Any] = {path.partition("/")[2]: archive.read(path) for path in paths}
    for path, module in value.named_modules() if hasattr(value, "named_modules") else ():
        for name, part in _ranked(vars(module)).items():
            if type(part).__name__ != "ScriptMethod" and ("hooks" in name or not name.startswith("_")):
                parts[f"{path}.{name}" if path else name] = part
    return parts


def _operator(value: Any) -> dict[str, Any]:
    name = str(value)
    if name.partition(".")[0] not in ("aten", "prim", "prims", "quantized"):
        raise UnkeyableError(f"only torch knows what {name} runs: call the function that it is made of")
    return {"name": name}


def _field(value: Any) -> dict[str, Any]:
    """Less its annotation: the class has it, too, and use resolves the names in it."""
    own = attributes_of(value).items()
    return {name: part for name, part in own if name[0] != "_" and name != "annotation"}


def _transform(value: Any) -> dict[str, Any]:
    """Less generators made from its seed or from entropy, and its table of own methods, in a set's order."""
    own = attributes_of(value)
    seed = seed_of(generator := own.get("random_generator"))
    if seed is not None and (seed == own.get("seed") or is_entropy(generator)):
        own = {name: part for name, part in own.items() if name not in ("random_generator", "py_random")}
    tables = [one for one in own.values() if type(one) is dict and one]
    methods = [one for one in tables if all(getattr(m, "__self__", None) is value for m in one.values())]
    return {name: part for name, part in own.items() if not any(part is one for one in methods)}


KEYS: dict[tuple[str, str], Callable[[Any], Any] | str] = {
    ("_weakrefset", "WeakSet"): lambda v: {"set": set(v)} if type(v) is weakref.WeakSet else NotImplemented,
    ("typing", "ForwardRef"): lambda value: value.__forward_arg__,  # not what somebody has evaluated it to
    ("annotationlib", "ForwardRef"): lambda value: value.__forward_arg__,
    ("logging", "Logger"): lambda value: {"name": value.name},  # nothing comes from loggers into a sample
    ("logging", "Handler"): lambda value: {"name": value.name},
    ("loguru", "Logger"): lambda value: {},
    ("multiprocessing", "Event"): lambda value: {"is_set": value.is_set()},  # made of locks
    ("unittest", "NonCallableMock"): "each look at a mock changes it",
    ("ctypes", "CDLL"): "load the library in the function, and pass its path in config",
    ("numpy", "ndarray"): _array,
    ("numpy", "memmap"): _memmap,
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
    ("torch", "CustomOpDef"): "call the function that it is made of",
    ("tokenizers", "Tokenizer"): lambda value: (value.to_str(), value.encode_special_tokens),
    ("albumentations", "BasicTransform"): _transform,
    ("albumentations", "BaseCompose"): _transform,
    ("albumentations", "Compose"): _transform,
    ("omegaconf", "Container"): lambda value: {
        "items": sys.modules["omegaconf"].OmegaConf.to_container(value, resolve=True, throw_on_missing=False)
    },
    ("msgspec", "StructConfig"): lambda value: {n: getattr(value, n) for n in dir(value) if n[0] != "_"},
    ("msgspec", "Factory"): lambda value: value.factory,
    ("pydantic", "BaseModel"): attributes_of,  # also which were given: `exclude_unset=True` asks
    ("pydantic", "FieldInfo"): _field,
    ("pydantic", "ModelPrivateAttr"): _field,
    ("pydantic", "Decorator"): lambda value: {"info": value.info},  # its others name the class's address
    ("pydantic", "ValidateCallWrapper"): lambda value: {
        "function": value.function,
        "validates_return": value.validate_return,
        "config": value.config_wrapper.config_dict,
    },
    ("pydantic", "TypeAdapter"): "create it in the function",
    ("numba", "Dispatcher"): lambda value: {
        "py_func": value.py_func,
        "options": dict(value.targetoptions),
        "signatures": [str(signature) for signature in value.signatures],
    },
    ("polars", "LazyFrame"): "collect it first: it may read files when it is collected",
}
"""By top package and name of a library's class, from a value to what counts of it, or why it is refused;
NotImplemented where its copies say it. What a user has registered goes first."""
