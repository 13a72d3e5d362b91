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
import pickle
import re
import struct
import sys
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from prepcache.keys.code.archives import is_archive, parts_of_archive
from prepcache.keys.code.asked import parts_asked_for
from prepcache.keys.code.fingerprint import fingerprint
from prepcache.keys.code.fleeting import Parts, is_generator, settled
from prepcache.keys.code.onnx import is_session, parts_of_session
from prepcache.keys.code.proxies import is_proxy, parts_of_proxy
from prepcache.keys.code.threads import parts_of_threads
from prepcache.keys.code.torch_modules import parts_of_module, with_ranked_hooks
from prepcache.keys.code.torch_operators import parts_of_operator
from prepcache.keys.instance_types import slots_of
from prepcache.keys.observation.job_code import was_watched

_LOGGERS = (logging.Logger, logging.Handler, logging.LoggerAdapter)
_DESCRIPTORS = (staticmethod, classmethod)
_LOGGER_METHODS = ("debug", "info", "warning", "error", "critical", "exception")
_SEEDED_LIBRARIES = frozenset({"albumentations"})
"""Libraries whose every transform, `Resize` too, holds generators of its own, by default made from entropy;
what it was seeded with is an attribute beside them, and counts."""


_WITH_LATE_DICT = (io.BytesIO, io.StringIO, BaseException)
"""They give their `__dict__` away from when somebody looks at it, as we do, however empty it is."""

_CLAHE_STATE = ("getBitShift", "getClipLimit", "getTilesGridSize")


_SCAN = b"\xa4Scan"
"""How the plan of a LazyFrame of polars says that it reads files, whose bytes it does not hold."""

_CALLS_PYTHON = re.compile(rb"PLPYFN\xcc?\x94|\xacOpaquePython")
"""How an expression or a plan of polars says that it calls functions of Python, which it holds as pickles:
these say of a module's function only its name."""
_OF_EXPRESSIONS = ("Expr", "LazyFrame")


class Unstable(Exception):
    """The object keeps state to itself; the message says why."""


_OBJECT: Any = object
"""Untyped: its slots are compared with those of classes, which are typed as bound."""


def parts_of(value: Any, *, is_library: bool = False) -> Parts:
    """What an object is made of, besides its class.

    Args:
        is_library: whether its class is a library's.

    Returns:
        (step, part) pairs, each part to be encoded in turn.

    Raises:
        Unstable: if the object does not give its state away.
    """
    if is_proxy(value):
        return parts_of_proxy(value)
    if is_library and not isinstance(value, _LOGGERS) and _is_logger(type(value)):
        return [("name", "logger")]
    parts = _parts_of(value, is_library)
    return settled(value, parts) if is_library else parts


def _parts_of(value: Any, is_library: bool) -> Parts:
    if (in_c := _kept_in_c(value)) is not None:
        return in_c
    special = _special(value)
    if special is not None and special[0][0] in ("path", "compiled", "stream"):
        return special
    if special is not None:
        return special + _more_state(value)
    cls = type(value)
    reduce = copyreg.dispatch_table.get(cls)
    has_reduce = cls.__reduce_ex__ is not _OBJECT.__reduce_ex__ or cls.__reduce__ is not _OBJECT.__reduce__
    try:
        if reduce is not None:
            return _reduced(value, reduce(value), is_library)
        if has_reduce:
            return _reduced(value, _reduce(value), is_library)
        if cls.__getstate__ is not _OBJECT.__getstate__:
            return _given_state(value, _less_empty(value, value.__getstate__()))
        object.__reduce_ex__(value, 2)  # refuses state in C that it does not know of
    except Exception as error:
        raise Unstable(str(error) or type(error).__name__) from error
    return _settled(value, sorted(_attributes(value), key=lambda pair: pair[0]))


def _reduce(value: Any) -> Any:
    if type(value).__module__ != "itertools":
        reduced = value.__reduce_ex__(4)
        if isinstance(reduced, tuple) and len(reduced) > 2:
            reduced = (*reduced[:2], _less_empty(value, reduced[2]), *reduced[3:])
        return reduced
    with warnings.catch_warnings():  # Python 3.12 and 3.13 say that 3.14 does not copy them any more
        warnings.simplefilter("ignore", DeprecationWarning)
        return value.__reduce_ex__(4)


def _less_empty(value: Any, state: Any) -> Any:
    """A state without the empty dict that is there once somebody has asked for the object's attributes."""
    if not isinstance(value, _WITH_LATE_DICT):
        return state
    if isinstance(state, tuple) and state and state[-1] == {}:
        return (*state[:-1], None)
    return None if state == {} else state


def _given_state(value: Any, state: Any) -> Parts:
    """What `__getstate__` gave; of a dict of attributes, the order does not count."""
    if type(state) is dict and all(type(name) is str for name in state):
        return [("state", dict(_settled(value, sorted(state.items(), key=lambda pair: pair[0]))))]
    if type(state) is bytes and type(value).__module__.partition(".")[0] == "polars":
        if _SCAN in state:
            raise ValueError(
                "it reads files when it is collected: collect it before, or hand over their paths"
            )
        if type(value).__name__ in _OF_EXPRESSIONS and _CALLS_PYTHON.search(state):
            raise ValueError("it calls functions of Python: make it in the function that uses it")
    return [("state", state)]


def _settled(value: Any, parts: Parts) -> Parts:
    """Attributes, less what differs from process to process and says nothing."""
    if any(base.__module__.partition(".")[0] in _SEEDED_LIBRARIES for base in type(value).__mro__):
        parts = [(name, part) for name, part in parts if not is_generator(part)]
    return with_ranked_hooks(parts)


def _is_logger(cls: type) -> bool:
    """Whether a library's class is a logger by what it offers: nothing comes from it into a sample."""
    return all(isinstance(_class_attribute(cls, name), types.FunctionType) for name in _LOGGER_METHODS)


_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_KNOWN_STATE = frozenset(
    {
        "__doc__", "__module__", "__name__", "__qualname__", "__wrapped__", "__isabstractmethod__",
        "func", "attrname", "lock", "dispatcher", "args", "keywords",
    }
)  # fmt: skip


def _more_state(value: Any) -> Parts:
    """What a subclass of a descriptor (`property` and its like) keeps beside what it wraps."""
    is_subclass = not isinstance(value, _LOGGERS) and type(value).__module__ not in ("builtins", "functools")
    found = _attributes(value) if is_subclass else ()
    return sorted(((n, part) for n, part in found if n not in _KNOWN_STATE), key=lambda pair: pair[0])


def stream_state(value: Any) -> Parts:
    """What the job's own class of standard stream keeps."""
    return sorted(_attributes(value), key=lambda pair: pair[0])


def _special(value: Any) -> Parts | None:
    if isinstance(value, _LOGGERS):
        return [("name", str(getattr(value, "name", "")))]
    if issubclass(type(value), io.TextIOBase) and (stream := _standard_stream(value)):
        return [("stream", stream)]
    if isinstance(value, _DESCRIPTORS):
        return [("__func__", value.__func__)]
    if isinstance(value, property):
        return [("fget", value.fget), ("fset", value.fset), ("fdel", value.fdel)]
    if isinstance(value, functools.cached_property):
        return [("func", value.func)]
    if isinstance(value, functools.partialmethod):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, functools.singledispatchmethod):
        return [("func", value.func), ("dispatcher", value.dispatcher)]
    if type(value) is functools._lru_cache_wrapper:
        return [("__wrapped__", value.__wrapped__)]
    if (ctypes := sys.modules.get("ctypes")) is not None and isinstance(value, ctypes.CDLL):
        return _c_library(value, ctypes)
    if type(value).__module__ == "torch._dynamo.eval_frame" and "_orig_mod" in vars(value).get(
        "_modules", ()
    ):
        return [("compiled", vars(value)["_modules"]["_orig_mod"])]
    if (
        type(value).__name__ == "TypeAliasType"
    ):  # Python >= 3.12, and typing_extensions; it reduces to its name
        return [("__value__", value.__value__)]
    if type(value) is struct.Struct:
        return [("format", value.format)]
    if isinstance(value, types.CodeType):
        return [("code", fingerprint(value))]
    return None


def _kept_in_c(value: Any) -> Parts | None:
    """What objects are made of that do not reduce, but can be asked otherwise."""
    kind = type(value)
    if kind in (weakref.ref, weakref.KeyedRef):
        return [("referent", value())]
    if kind is contextvars.ContextVar:  # its name says nothing, and holds an address where torch makes one
        try:
            return [("is_set", True), ("value", value.get())]
        except LookupError:
            return [("is_set", False)]
    if kind.__module__ == "cv2" and kind.__name__ == "CLAHE":
        return [(name, getattr(value, name)()) for name in _CLAHE_STATE if hasattr(value, name)]
    if (numpy := sys.modules.get("numpy")) is not None and kind is getattr(numpy, "ufunc", None):
        # `numpy.frompyfunc` puts the function where only the garbage collector sees it.
        held = [part for part in gc.get_referents(value) if callable(part)]
        return [("functions", held), ("arity", (value.nin, value.nout, value.identity))] if held else None
    try:
        if is_archive(value):
            return parts_of_archive(value)
        if (ordering := parts_of_threads(value)) is not None:
            return ordering
        if (told := parts_asked_for(value)) is not None:
            return told
        if (operator := parts_of_operator(value)) is not None:
            return operator
        return parts_of_session(value) if is_session(value) else parts_of_module(value)
    except Exception as error:
        raise Unstable(str(error) or type(error).__name__) from error


def _standard_stream(value: io.TextIOBase) -> str | None:
    """`stdout` or `stderr`, if it is that and only takes text: nothing comes from it into a sample."""
    for name in ("stdout", "stderr"):
        if value is getattr(sys, name) or value is getattr(sys, f"__{name}__"):
            is_text = isinstance(value, io.StringIO)  # it can be asked for what was written
            with contextlib.suppress(ValueError):  # its file was detached from it
                return None if is_text or value.closed or value.readable() else name
    return None


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
    if any(_is_pickle(argument) for argument in state[1]) and (own := stream_state(value)):
        return own
    names = ("callable", "args", "state", "items", "pairs", "setter")
    if is_library:
        state = (state[0], tuple(map(_unpickled, state[1])), *state[2:])
    parts: Parts = []
    for name, part in zip(names, state, strict=False):
        if part is not None:
            parts.append((name, list(part) if name in ("items", "pairs") else part))
    return parts + _untold(value, state, is_library)


def _untold(value: Any, state: Any, is_library: bool) -> Parts:
    """Functions that an object holds and its reduction may only name, as `toolz.curry` does; of one of the
    job's own classes that is looked up in a table, plain data too."""
    maker, *rest = state
    if isinstance(maker, type) or getattr(maker, "__module__", None) == "copyreg":
        return []
    told = {id(part) for part in _within(rest)}
    parts = [(name, part) for name, part in _attributes(value) if id(part) not in told]
    is_looked_up = not is_library and _is_looked_up(maker, value)
    held = [(n, p) for n, p in parts if _is_function(p) or (is_looked_up and not _holds_more(p))]
    return sorted(held, key=lambda pair: pair[0])


def _is_looked_up(maker: Any, value: Any) -> bool:
    """Whether a function, or the class that it is a method of, has an object in one of its tables."""
    function = getattr(maker, "__func__", maker)
    if not isinstance(function, types.FunctionType):
        return False
    spaces = [{name: function.__globals__.get(name) for name in function.__code__.co_names}]
    spaces += [vars(base) for base in getattr(getattr(maker, "__self__", None), "__mro__", ())]
    tables = [part for space in spaces for part in space.values() if isinstance(part, dict | list | tuple)]
    return any(one is value for table in tables for one in _elements(table))


def _elements(table: Any) -> list[Any]:
    return list(table.values() if isinstance(table, dict) else table)


def _is_function(part: Any) -> bool:
    return isinstance(part.func if isinstance(part, functools.partial) else part, types.FunctionType)


def _within(part: Any, depth: int = 4) -> Iterator[Any]:
    """What a tree holds that is no scalar."""
    if isinstance(part, dict | list | tuple) and depth:
        for inner in _elements(part):
            yield from _within(inner, depth - 1)
    if not isinstance(part, _SCALARS):
        yield part


def _holds_more(part: Any, depth: int = 4) -> bool:
    """Whether a tree holds anything but scalars."""
    if isinstance(part, dict | list | tuple | set | frozenset) and depth:
        inner = [*part, *part.values()] if isinstance(part, dict) else part
        return any(_holds_more(one, depth - 1) for one in inner)
    return not isinstance(part, _SCALARS)


def _is_pickle(argument: Any) -> bool:
    """Whether an argument is the bytes of a pickle, which differ from run to run."""
    return type(argument) is bytes and argument[:1] == b"\x80" and argument[-1:] == b"."


def _unpickled(argument: Any) -> Any:
    """What the bytes of a pickle stand for, which an object has just made; other arguments as they are."""
    if not _is_pickle(argument):
        return argument
    try:
        return pickle.loads(argument)
    except Exception:  # noqa: BLE001 - of whatever library; then they count as they are
        return argument


def _of_name(value: Any, name: str) -> Parts:
    """An object that says it is the global of a name: that counts if it is, and state that it has, too."""
    if type(value).__module__ == "typing":
        return [("name", name)]
    home = sys.modules.get(str(getattr(value, "__module__", None)))
    homes = list(sys.modules.values()) if home is None else [home]
    if not any(_at(getattr(module, "__dict__", {}), name) is value for module in homes):
        raise Unstable(f"it says that it is a global {name!r}, which no module holds")
    return [("name", name), *sorted(_attributes(value), key=lambda pair: pair[0])]


def _at(space: Any, dotted: str) -> Any:
    """What a namespace holds under a dotted name, found without running code."""
    first, _, rest = dotted.partition(".")
    value = space.get(first)
    return _at(getattr(value, "__dict__", {}), rest) if rest and value is not None else value


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Instance attributes and slots. What `cached_property` keeps is made again from the rest, where
    it was seen from what."""
    cls = type(value)
    for name, part in getattr(value, "__dict__", {}).items():
        made_by = _class_attribute(cls, name)
        if not isinstance(made_by, functools.cached_property) or not was_watched(made_by):
            yield str(name), part
    for name in slots_of(cls):
        with contextlib.suppress(AttributeError):
            yield name, object.__getattribute__(value, name)


def _class_attribute(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None
