"""Adapters: what counts of objects that can't be copied, or whose copies say too much or too little.

    torch       modules (hooks by their order), scripts and scripted functions, generators, compiled modules
    tokenizers  a tokenizer in Rust, by its text
    albumentations  transforms, without the generators that each makes from entropy
    numba       a compiled function, by what is compiled, and whether it was
    polars      expressions; a lazy frame, or one that calls Python, is refused
    typing      forward references, by their text and not by what somebody has evaluated it to
    loggers     of any library, by their class alone; nothing comes from them into a sample

They are taught with `register_key`, as those of adapters.py. All else counts by its `__reduce_ex__`,
`__getstate__`, attributes and slots (code/object_parts.py), or is refused by name.
"""

from __future__ import annotations

import io
import random
import re
import sys
import types
import zipfile
from collections.abc import Callable
from types import MethodType
from typing import Any

from prepcache.errors import UnkeyableError

Parts = list[tuple[str, Any]]
Key = Callable[[Any], Any]
"""From an object to what counts of it, by name; NotImplemented where its copies say it."""

_LOGGER_METHODS = ("debug", "info", "warning", "error", "critical", "exception")
_GENERATORS = frozenset(
    {"random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"}
)
_SEED_BITS = 64
"""A seed that somebody chose has so many bits at most; entropy has twice as many."""
_CALLS_PYTHON = (b"PLPYFN", b"OpaquePython")
"""How an expression of polars says that it calls functions of Python, which it holds as pickles."""
_NOT_OF_A_SCRIPT = (".debug_pkl", "/.data/serialization_id")
"""Records of a saved script that say where its source was, and what the others sum up to."""


def is_generator(value: Any) -> bool:
    """Whether a value is a random generator of Python or numpy."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}" in _GENERATORS


def without_entropy(parts: Parts) -> Parts:
    """Attributes of a library's object, less generators made from entropy, as monai's transforms hold.

    What one was seeded with would be kept beside it. A global one counts by name: its draws are watched.
    """
    kept: Parts = []
    for name, part in parts:
        if not is_generator(part):
            kept.append((name, part))
        elif (place := _global_place(part)) is not None:
            kept.append((name, f"global generator {place}"))
        elif not _is_unseeded(part):
            kept.append((name, part))
    return kept


def _global_place(generator: Any) -> str | None:
    if generator is getattr(random.seed, "__self__", None):
        return "random"
    draw = getattr(sys.modules.get("numpy.random"), "random_sample", None)  # `seed` may be a plain function
    return "numpy.random" if draw is not None and generator is getattr(draw, "__self__", None) else None


def _is_unseeded(generator: Any) -> bool:
    """Whether a generator of numpy was made from entropy. Python's do not tell."""
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", None)
    entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
    return isinstance(entropy, int) and entropy.bit_length() > _SEED_BITS


def is_library_logger(cls: type) -> bool:
    """Whether a class is a logger by what it offers."""
    return all(isinstance(_member(cls, name), types.FunctionType) for name in _LOGGER_METHODS)


def _member(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


# -- torch --------------------------------------------------------------------------------------------------


def module_attributes(parts: Parts) -> Parts:
    """Attributes of a module, with the hooks of each table in their order.

    torch keeps hooks under numbers that a counter of the process gave.
    """
    tables = {name: part for name, part in parts if "_hooks" in name and isinstance(part, dict)}
    numbers = sorted({number for table in tables.values() for number in table if type(number) is int})
    rank = {number: place for place, number in enumerate(numbers)}
    ranked = {name: [(rank.get(n, n), hook) for n, hook in part.items()] for name, part in tables.items()}
    return [(name, ranked.get(name, part)) for name, part in parts]


def _module(value: Any) -> Any:
    kind: Any = type(value)
    parts = dict(module_attributes(sorted(vars(value).items())))
    if kind.__module__ == "torch.nn.utils.parametrize":  # its `__getstate__` raises
        return {"of": kind.__bases__[0], **parts}
    base: Any = next(one for one in kind.__mro__ if one.__name__ == "Module")
    ways = ("__getstate__", "__reduce_ex__", "__reduce__")
    return parts if all(getattr(kind, way) is getattr(base, way) for way in ways) else NotImplemented


def _script(value: Any) -> dict[str, Any]:
    """What a script, or a scripted function, is saved as, and the hooks and attributes that Python keeps."""
    torch: Any = sys.modules["torch"]
    with zipfile.ZipFile(io.BytesIO(value.save_to_buffer())) as archive:
        paths = [path for path in archive.namelist() if not path.endswith(_NOT_OF_A_SCRIPT)]
        parts: dict[str, Any] = {path.partition("/")[2]: archive.read(path) for path in paths}
    if isinstance(value, torch.nn.Module):
        for path, module in value.named_modules():
            for name, part in module_attributes(sorted(vars(module).items())):
                if type(part).__name__ != "ScriptMethod" and ("hooks" in name or not name.startswith("_")):
                    parts[f"{path}.{name}" if path else name] = part
    return parts


# -- others -------------------------------------------------------------------------------------------------


def _seeded_transform(value: Any) -> dict[str, Any]:
    """What a transform was seeded with is an attribute beside its generators.

    Its table of its own methods is left out: the class says them, and it is made of a set, so that its order
    differs from process to process.
    """
    return {
        name: part
        for name, part in vars(value).items()
        if not (is_generator(part) or _holds_own_methods(value, part))
    }


def _holds_own_methods(value: Any, part: Any) -> bool:
    return type(part) is dict and bool(part) and all(_is_own(value, one) for one in part.values())


def _is_own(value: Any, method: Any) -> bool:
    return isinstance(method, MethodType) and method.__self__ is value


_REFERENCES = ("ref", "schema_ref")
_ADDRESS = re.compile(r":\d{6,}")


def without_addresses(part: Any, key: Any = None) -> Any:
    """A schema of pydantic's, which refers to each class by its name and its address."""
    if type(part) is dict:
        return {name: without_addresses(inner, name) for name, inner in part.items()}
    if type(part) in (list, tuple):
        return type(part)(without_addresses(inner) for inner in part)
    return _ADDRESS.sub("", part) if key in _REFERENCES and type(part) is str else part


def _validated(value: Any) -> dict[str, Any]:
    """The namespace that it looks the names of annotations up in is that of the function's module."""
    names = {*getattr(value, "__slots__", ()), *getattr(value, "__dict__", ())} - {"ns_resolver"}
    return {name: part for name in names if (part := getattr(value, name, None)) is not None}


def _jitted(value: Any) -> dict[str, Any]:
    """The globals of the time when it was compiled are in what was compiled."""
    return {
        "py_func": value.py_func,
        "targetoptions": dict(value.targetoptions),
        "signatures": [str(signature) for signature in value.signatures],
    }


def _expression(value: Any) -> dict[str, Any]:
    state = value.__getstate__()
    if any(word in state for word in _CALLS_PYTHON):
        raise UnkeyableError("it calls Python functions: create it inside the function that uses it")
    return {"expression": state}


def _lazy_frame(value: Any) -> Any:
    raise UnkeyableError("it may read files when it is collected: collect it first, or pass their paths")


KEYS: dict[tuple[str, str], Key] = {
    ("torch", "Module"): _module,
    ("torch", "ScriptModule"): _script,
    ("torch", "ScriptFunction"): _script,
    ("torch", "OptimizedModule"): lambda value: {"compiled": value._modules["_orig_mod"]},
    ("torch", "Generator"): lambda value: (str(value.device), value.get_state()),
    ("typing", "ForwardRef"): lambda value: value.__forward_arg__,
    ("annotationlib", "ForwardRef"): lambda value: value.__forward_arg__,
    ("tokenizers", "Tokenizer"): lambda value: (value.to_str(), value.encode_special_tokens),
    ("albumentations", "BasicTransform"): _seeded_transform,
    ("albumentations", "BaseCompose"): _seeded_transform,
    ("albumentations", "Compose"): _seeded_transform,
    ("pydantic", "ValidateCallWrapper"): _validated,
    ("numba", "Dispatcher"): _jitted,
    ("polars", "Expr"): _expression,
    ("polars", "LazyFrame"): _lazy_frame,
}
"""By top package and name of a class."""
