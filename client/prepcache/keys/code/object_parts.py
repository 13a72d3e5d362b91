"""The parts of objects that the canonical encoding does not know by value: their class and their state.

The state is what the object itself would give to be copied (`__getstate__`, `__reduce_ex__`), taken apart
and encoded by value: never the bytes of a pickle, which differ from run to run.

Invariants:
    1. No state is left out silently: an object with state in C that it does not give away is refused.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import functools
import gc
import io
import logging
import struct
import sys
import types
import warnings
import weakref
from typing import Any

from prepcache.keys.code.fingerprint import fingerprint
from prepcache.keys.code.torch_operators import parts_of_operator
from prepcache.keys.encoding.instances import slots_of
from prepcache.keys.encoding.object_adapters import (
    Parts,
    is_library_logger,
    without_addresses,
    without_entropy,
)

_LOGGERS = (logging.Logger, logging.Handler, logging.LoggerAdapter)
_DESCRIPTORS = (staticmethod, classmethod)
_LOCKS = frozenset(
    {"_thread.lock", "_thread.RLock", "threading._RLock"}
    | {
        f"{module}.{name}"
        for module in ("threading", "multiprocessing.synchronize", "asyncio.locks")
        for name in ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")
    }
)
"""They order what threads and processes do: their type stands for them, who holds one is the moment's."""


class Unstable(Exception):
    """The object keeps state to itself; the message says why."""


_OF_TYPES = ("__supertype__", "__bound__", "__constraints__")
"""What `NewType` and `TypeVar` are given beside their name."""
_OBJECT: Any = object
"""Untyped: its slots are compared with those of classes, which are typed as bound."""


def is_lock(value: Any) -> bool:
    """Whether a value only orders what threads or processes do."""
    return f"{type(value).__module__}.{type(value).__qualname__}" in _LOCKS


def parts_of(value: Any, *, is_library: bool = False) -> Parts:
    """What an object is made of, besides its class.

    Args:
        is_library: whether its class is a library's.

    Returns:
        (step, part) pairs, each part to be encoded in turn.

    Raises:
        Unstable: if the object does not give its state away.
    """
    if is_lock(value) or (is_library and is_library_logger(type(value))):
        return [("name", str(getattr(value, "name", "")) if isinstance(value, _LOGGERS) else "")]
    try:
        if (operator := parts_of_operator(value)) is not None:
            return operator
        if (special := _special(value)) is not None:
            is_whole = special[0][0] in ("path", "stream", "referent", "is_set")
            return special if is_whole else special + _more_state(value, special)
        parts = _copied_parts(value, is_library)
        parts = without_entropy(parts) if is_library else parts
        is_schema = is_library and type(value).__module__.partition(".")[0] in ("pydantic", "pydantic_core")
        return [(n, without_addresses(part)) for n, part in parts] if is_schema else parts
    except Exception as error:
        raise Unstable(str(error) or type(error).__name__) from error


def _copied_parts(value: Any, is_library: bool) -> Parts:
    """What an object would give to be copied."""
    cls = type(value)
    # Exceptions and `io.BytesIO` have an empty dict in their state once somebody has asked for it.
    getattr(value, "__dict__", None)
    reduce = copyreg.dispatch_table.get(cls)
    if reduce is not None:
        return _reduced(value, reduce(value), is_library)
    if cls.__reduce_ex__ is not _OBJECT.__reduce_ex__ or cls.__reduce__ is not _OBJECT.__reduce__:
        return _reduced(value, _reduce(value), is_library)
    if cls.__getstate__ is not _OBJECT.__getstate__:
        return _given_state(value.__getstate__())
    object.__reduce_ex__(value, 2)  # refuses state in C that it does not know of
    return _attributes(value)


def _reduce(value: Any) -> Any:
    if type(value).__module__ != "itertools":
        return value.__reduce_ex__(4)
    with warnings.catch_warnings():  # Python 3.12 and 3.13 say that 3.14 does not copy them any more
        warnings.simplefilter("ignore", DeprecationWarning)
        return value.__reduce_ex__(4)


def _given_state(state: Any) -> Parts:
    """What `__getstate__` gave: attributes, if that is a dict of them, whose order does not count."""
    if type(state) is dict and all(type(name) is str for name in state):
        return [(f"state.{name}", part) for name, part in sorted(state.items())]
    return [("state", state)]


def _more_state(value: Any, parts: Parts) -> Parts:
    """What a subclass of a descriptor (`property` and its like) keeps beside what it wraps."""
    if isinstance(value, _LOGGERS) or type(value).__module__ in ("builtins", "functools"):
        return []
    known = {id(part) for _, part in parts}
    found = [(n, part) for n, part in _attributes(value) if not n.startswith("__") and id(part) not in known]
    return sorted(found, key=lambda pair: pair[0])


def _special(value: Any) -> Parts | None:
    if f"{type(value).__module__}.{type(value).__qualname__}" == "multiprocessing.synchronize.Event":
        return [("is_set", value.is_set())]
    if type(value) in (weakref.ref, weakref.KeyedRef):
        return [("referent", value())]
    if type(value) is contextvars.ContextVar:  # its name says nothing
        try:
            return [("is_set", True), ("value", value.get())]
        except LookupError:
            return [("is_set", False)]
    if isinstance(value, _LOGGERS):
        return [("name", str(getattr(value, "name", "")))]
    for name in ("stdout", "stderr"):
        if type(value) is io.TextIOWrapper and value in (getattr(sys, name), getattr(sys, f"__{name}__")):
            return [("stream", name)]
    if isinstance(value, _DESCRIPTORS):
        return [("__func__", value.__func__)]
    if isinstance(value, types.MethodType):
        return [("__self__", value.__self__), ("__func__", value.__func__)]
    if isinstance(value, property):
        return [("fget", value.fget), ("fset", value.fset), ("fdel", value.fdel)]
    if isinstance(value, functools.cached_property):
        return [("func", value.func)]
    if isinstance(value, functools.partialmethod):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, functools.singledispatchmethod):
        return [("func", value.func), ("dispatcher", value.dispatcher)]
    if type(value) is functools._lru_cache_wrapper:
        return [("__wrapped__", value.__wrapped__), ("cache", _contents_of_cache(value))]
    if (ctypes := sys.modules.get("ctypes")) is not None and isinstance(value, ctypes.CDLL):
        return _c_library(value, ctypes)
    if (
        type(value).__name__ == "TypeAliasType"
    ):  # Python >= 3.12, and typing_extensions; it reduces to its name
        return [("__value__", value.__value__)]
    if type(value) is struct.Struct:
        return [("format", value.format)]
    if isinstance(value, types.CodeType):
        return [("code", fingerprint(value))]
    return None


def _contents_of_cache(cached: Any) -> list[tuple[Any, Any]]:
    """What a function under `functools.cache` has kept: arguments and results, in the order of its calls."""
    count = cached.cache_info().currsize
    if not count:
        return []
    held = gc.get_referents(cached)
    tables = [part for part in held if type(part) is dict and part is not vars(cached)]
    if len(tables) == 1 and len(tables[0]) == count:
        # `cache_parameters` may be that of another cache: `functools.wraps` copies it.
        if not any(type(entry).__qualname__ == "_lru_list_elem" for entry in tables[0].values()):
            return list(tables[0].items())
        # Of a cache that has a bound the function refers to keys, results and the type of entries, in turn.
        for first in (0, 1):
            results = {id(key): result for key, result, _ in zip(*[iter(held[first:])] * 3, strict=False)}
            if all(id(key) in results for key in tables[0]):
                return [(key, results[id(key)]) for key in tables[0]]
    raise ValueError("its contents are not accessible")


def _c_library(value: Any, ctypes: Any) -> Parts:
    """A C library: its file, and how functions of it are declared; not the addresses, nor which were used."""
    parts: Parts = [("path", value._name)]
    for name, function in sorted(vars(value).items()):
        if isinstance(function, ctypes._CFuncPtr):
            declared = (function.restype, function.argtypes)
            if declared != (ctypes.c_int, None):
                parts.append((name, declared))
    return parts


def _reduced(value: Any, state: Any, is_library: bool) -> Parts:
    if isinstance(state, str):
        return _of_name(value, state)
    if any(_is_pickle(argument) for argument in state[1]) and (own := _attributes(value)):
        return own
    parts: Parts = []
    for name, part in zip(("callable", "args", "state", "items", "pairs", "setter"), state, strict=False):
        if name == "state" and part is not None:
            parts += _given_state(part)
        elif part is not None:
            parts.append((name, list(part) if name in ("items", "pairs") else part))
    return parts + _held_beside(value, parts, is_library)


def _held_beside(value: Any, told: Parts, is_library: bool) -> Parts:
    """What a reduction does not say: functions, as `toolz.curry` holds; all of what the job's own class keeps
    beside a base that says how it is copied."""
    maker = dict(told).get("callable")
    is_of_base = not is_library and _is_reduced_by_library(type(value))
    if not is_of_base and (isinstance(maker, type) or getattr(maker, "__module__", None) == "copyreg"):
        return []
    ids = {id(part) for _, held in told for part in (held if isinstance(held, tuple | list) else (held,))}
    parts = [(name, part) for name, part in _attributes(value) if id(part) not in ids]
    return [(name, part) for name, part in parts if is_of_base or _is_function(part)]


def _is_reduced_by_library(cls: type) -> bool:
    """Whether the way in which a class of the job's is copied is one that it has from another package."""
    ways = ("__reduce_ex__", "__reduce__")
    owner = next(base for base in cls.__mro__ if any(way in vars(base) for way in ways))
    return owner.__module__.partition(".")[0] != cls.__module__.partition(".")[0]


def _is_function(part: Any) -> bool:
    return isinstance(part.func if isinstance(part, functools.partial) else part, types.FunctionType)


def _is_pickle(argument: Any) -> bool:
    """Whether an argument is the bytes of a pickle, which differ from run to run."""
    return type(argument) is bytes and argument[:1] == b"\x80" and argument[-1:] == b"."


def _of_name(value: Any, name: str) -> Parts:
    """An object that says it is the global of a name: that counts if it is, and state that it has, too."""
    if type(value).__module__ == "typing":
        parts: Parts = [("name", name)]
        for step in _OF_TYPES:
            with contextlib.suppress(AttributeError, NameError):  # a bound may name what is not there
                parts.append((step, getattr(value, step)))
        return parts
    home = sys.modules.get(str(getattr(value, "__module__", None)))
    homes = list(sys.modules.values()) if home is None else [home]
    if not any(_at(getattr(module, "__dict__", {}), name) is value for module in homes):
        raise Unstable(f"it pickles as global {name!r}, which no module has")
    return [("name", name), *_attributes(value)]


def _at(space: Any, dotted: str) -> Any:
    """What a namespace holds under a dotted name, found without running code."""
    first, _, rest = dotted.partition(".")
    value = space.get(first)
    return _at(getattr(value, "__dict__", {}), rest) if rest and value is not None else value


def _attributes(value: Any) -> Parts:
    """Instance attributes, what `cached_property` keeps included, and slots, by name."""
    found = [(str(name), part) for name, part in getattr(value, "__dict__", {}).items()]
    for name in slots_of(*type(value).__mro__):
        with contextlib.suppress(AttributeError):
            found.append((name, object.__getattribute__(value, name)))
    return sorted(found, key=lambda pair: pair[0])
