"""Writers of the canonical encoding for the types of Python and its standard library.

    tag  value                              tag  value
    n    None                               l t  list, tuple: count, elements
    T F  True, False                        d    dict whose order is free: count, sorted (key, value)
    i I  int of 64 bits; longer: bytes      m    dict whose order counts
    f    float, big-endian bits             o    OrderedDict
    c    complex, two floats                e z  set, frozenset: count, sorted elements
    s b  str (UTF-8), bytes                 E    enum member: class, name, value
    w    bytearray, memoryview, array       D    dataclass: class, fields and other state
    p S  path, str that names a file        N    namedtuple: class, names, elements
    P    tree()      Q  plain()             x    any other type here: its name, then its parts
    C    function, class, module (hook)     O    other object (hook)      k  by a registered function

Invariants:
    1. A writer is chosen by exact type; subclasses of built-in types count with their class and state.
"""

from __future__ import annotations

import array
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import math
import os
import pathlib
import re
import struct
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import itemgetter
from typing import Any

from prepcache.canonical import Encoder, Put, Writer, is_registered, length
from prepcache.marks import Plain, Tree

_INT = struct.Struct(">cq").pack
_FLOAT = struct.Struct(">cd").pack
_NAN = b"f" + bytes.fromhex("7ff8000000000000")
_LONG_LIST = 64
"""Elements; from here on a list of one number type is written in bulk (a config may be 50 MB)."""

_by_first = itemgetter(0)


def _none(_: Encoder, __: Any, put: Put) -> None:
    put(b"n")


def _bool(_: Encoder, value: bool, put: Put) -> None:
    put(b"T" if value else b"F")


def int_bytes(value: int) -> bytes:
    try:
        return _INT(b"i", value)
    except struct.error:
        raw = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        return b"I" + length(len(raw)) + raw


def float_bytes(value: float) -> bytes:
    return _FLOAT(b"f", value) if value == value else _NAN


def text_bytes(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"s" + length(len(raw)) + raw


def _int(_: Encoder, value: int, put: Put) -> None:
    put(int_bytes(value))


def _float(_: Encoder, value: float, put: Put) -> None:
    put(float_bytes(value))


def _complex(_: Encoder, value: complex, put: Put) -> None:
    put(b"c" + float_bytes(value.real) + float_bytes(value.imag))


def _str(encoder: Encoder, value: str, put: Put) -> None:
    if not (encoder.looks_up_text and encoder.put_path(value, put)):
        put(text_bytes(value))


def _bytes(_: Encoder, value: bytes, put: Put) -> None:
    put(b"b" + length(len(value)))
    put(value)


def _elements(encoder: Encoder, tag: bytes, value: Any, put: Put) -> None:
    put(tag + length(len(value)))
    if len(value) >= _LONG_LIST and _in_bulk(value, put):
        return
    encoder.enter(value)
    steps, walk = encoder.steps, encoder.walk
    steps.append(0)
    for i, element in enumerate(value):
        steps[-1] = i
        walk(element, put)
    steps.pop()
    encoder.leave(value)


def _in_bulk(value: Any, put: Put) -> bool:
    kinds = set(map(type, value))
    if any(map(is_registered, kinds)):
        return False
    if kinds == {int}:
        try:
            put(b"".join(map(_INT, repeat(b"i"), value)))
        except struct.error:
            return False
        return True
    if kinds == {float} and not any(map(math.isnan, value)):
        put(b"".join(map(_FLOAT, repeat(b"f"), value)))
        return True
    return False


def _list(encoder: Encoder, value: Any, put: Put) -> None:
    _elements(encoder, b"l", value, put)


def _tuple(encoder: Encoder, value: Any, put: Put) -> None:
    _elements(encoder, b"t", value, put)


_SIMPLE_KEYS = {type(None), bool, int, float, complex, str, bytes}


def _is_simple_key(key: Any) -> bool:
    return type(key) in _SIMPLE_KEYS or (type(key) is tuple and all(map(_is_simple_key, key)))


def has_free_order(value: dict[Any, Any]) -> bool:
    """Whether the order of a plain dict can be put right: its keys are simple values."""
    return all(map(_is_simple_key, value))


def simple_key(key: Any) -> bytes:
    """By what the keys of a plain dict are sorted: their bytes as plain values."""
    chunks: list[bytes] = []
    _KEYS.put_plain(key, chunks.append)
    return b"".join(chunks)


_KEYS = Encoder()


def _dict(encoder: Encoder, value: dict[Any, Any], put: Put) -> None:
    encoder.enter(value)
    if encoder.opaque_depth == 0 and has_free_order(value):
        put(b"d" + length(len(value)))
        _pairs(encoder, [(k, value[k]) for k in sorted(value, key=simple_key)], put)
    else:
        put(b"m" + length(len(value)))
        _pairs(encoder, value.items(), put)
    encoder.leave(value)


def _ordered_dict(encoder: Encoder, value: OrderedDict[Any, Any], put: Put) -> None:
    encoder.enter(value)
    put(b"o" + length(len(value)))
    encoder.opaque_depth += 1
    _pairs(encoder, value.items(), put)
    encoder.opaque_depth -= 1
    encoder.leave(value)


def _pairs(encoder: Encoder, pairs: Iterable[tuple[Any, Any]], put: Put) -> None:
    """Keys and values. A str key that is an identifier is a label and never looked up on the disk."""
    steps, walk = encoder.steps, encoder.walk
    steps.append("")
    for key, value in pairs:
        if type(key) is str:
            steps[-1] = key
            if key.isidentifier():
                put(text_bytes(key))
            else:
                walk(key, put)
        else:
            steps[-1] = key if type(key) is int else f"key of type {type(key).__name__}"
            walk(key, put)
        walk(value, put)
    steps.pop()


def _set(encoder: Encoder, value: Any, put: Put) -> None:
    put((b"e" if type(value) is set else b"z") + length(len(value)))
    for raw in sorted(encoder.part(x, "element") for x in value):
        put(raw)


def _named(encoder: Encoder, name: bytes, parts: Iterable[tuple[str, Any]], put: Put) -> None:
    put(b"x" + length(len(name)) + name)
    for step, part in parts:
        encoder.step(part, step, put)


def _by_parts(name: str, parts: Any) -> Writer:
    """A writer for a type that is its name and the parts that `parts(value)` lists."""
    raw = name.encode()

    def write(encoder: Encoder, value: Any, put: Put) -> None:
        encoder.enter(value)
        encoder.opaque_depth += 1
        _named(encoder, raw, parts(value), put)
        encoder.opaque_depth -= 1
        encoder.leave(value)

    return write


def _attributes(*names: str) -> Any:
    return lambda value: [(name, getattr(value, name)) for name in names]


def _raw_buffer(_: Encoder, value: Any, put: Put) -> None:
    view = memoryview(value)
    name = f"{type(value).__name__} {view.format} {view.shape}".encode()
    raw = view.tobytes()
    put(b"w" + length(len(name)) + name + length(len(raw)))
    put(raw)


def _timezone(value: datetime.timezone) -> list[tuple[str, Any]]:
    return [("offset", value.utcoffset(None)), ("name", value.tzname(None))]


_DATE = ("year", "month", "day")
_TIME = ("hour", "minute", "second", "microsecond", "fold", "tzinfo")


def _path(encoder: Encoder, value: Any, put: Put) -> None:
    if not encoder.looks_up_text:
        name = os.fspath(value)
        raw = text_bytes(name) if isinstance(name, str) else b"b" + length(len(name)) + name
        put(b"x" + length(4) + b"path" + raw)
    elif not encoder.put_path(value, put):
        raise encoder.refuse(f"the path {os.fspath(value)!r} cannot be looked up here; use plain(path)")


def _plain(encoder: Encoder, value: Plain[Any], put: Put) -> None:
    put(b"Q")
    encoder.put_plain(value.value, put)


def _tree(encoder: Encoder, value: Tree[Any], put: Put) -> None:
    if not encoder.put_path(value, put):
        raise encoder.refuse(f"{value!r} cannot be looked up here")


def _enum(encoder: Encoder, value: enum.Enum, put: Put) -> None:
    put(b"E")
    encoder.put_class_of(value, put)
    name: str | None = value._name_
    put(b"n" if name is None else text_bytes(name))
    encoder.opaque_depth += 1
    before = encoder._is_plain
    encoder._is_plain = True
    encoder.step(value._value_, "value", put)
    encoder._is_plain = before
    encoder.opaque_depth -= 1


def put_state(encoder: Encoder, names: Iterable[str], value: Any, put: Put) -> None:
    """Write attributes by name, in the order of the names; reading one may run the user's code."""
    encoder.opaque_depth += 1
    names = list(names)
    put(length(len(names)))
    for name in names:
        put(text_bytes(name))
        encoder.steps.append(name)
        try:
            attribute = getattr(value, name)
        except Exception as error:
            raise encoder.refuse(f"reading it raised {type(error).__name__}: {error}") from error
        encoder.walk(attribute, put)
        encoder.steps.pop()
    encoder.opaque_depth -= 1


def _dataclass(encoder: Encoder, value: Any, put: Put) -> None:
    encoder.enter(value)
    put(b"D")
    encoder.put_class_of(value, put)
    fields = [field.name for field in dataclasses.fields(value)]
    others = sorted(set(getattr(value, "__dict__", ())).difference(fields))
    put_state(encoder, [*fields, *others], value, put)
    encoder.leave(value)


def _namedtuple(encoder: Encoder, value: Any, put: Put) -> None:
    encoder.enter(value)
    put(b"N")
    encoder.put_class_of(value, put)
    put_state(encoder, value._fields, value, put)
    encoder.leave(value)


def _subclass(base: type) -> Writer:
    """A writer for subclasses of a built-in type: class, value as the base's, other state."""

    def write(encoder: Encoder, value: Any, put: Put) -> None:
        encoder.enter(value)
        put(b"x" + length(8) + b"subclass")
        encoder.put_class_of(value, put)
        encoder.opaque_depth += 1
        if base is dict:
            put(b"m" + length(len(value)))
            _pairs(encoder, [(k, dict.__getitem__(value, k)) for k in dict.keys(value)], put)
        elif base in (list, tuple):
            put(b"l" + length(base.__len__(value)))
            for i, element in enumerate(base.__iter__(value)):
                encoder.step(element, i, put)
        else:
            encoder.walk(base(value), put)
        encoder.opaque_depth -= 1
        put_state(encoder, sorted(getattr(value, "__dict__", ())), value, put)
        encoder.leave(value)

    return write


def _default_dict(value: defaultdict[Any, Any]) -> list[tuple[str, Any]]:
    return [("default_factory", value.default_factory), ("items", dict(value))]


def _mapping(encoder: Encoder, value: Mapping[Any, Any], put: Put) -> None:
    """A mapping that is no dict, as OmegaConf's: class, then items as iteration gives them."""
    encoder.enter(value)
    try:
        pairs = list(value.items())
    except Exception as error:
        raise encoder.refuse(f"reading it raised {type(error).__name__}: {error}") from error
    put(b"x" + length(7) + b"mapping")
    encoder.put_class_of(value, put)
    encoder.opaque_depth += 1
    put(length(len(pairs)))
    _pairs(encoder, pairs, put)
    encoder.opaque_depth -= 1
    encoder.leave(value)


def _sequence(encoder: Encoder, value: Any, put: Put) -> None:
    try:
        elements = list(value)
    except Exception as error:
        raise encoder.refuse(f"reading it raised {type(error).__name__}: {error}") from error
    put(b"x" + length(8) + b"sequence")
    encoder.enter(value)
    encoder.put_class_of(value, put)
    encoder.opaque_depth += 1
    _elements(encoder, b"l", elements, put)
    encoder.opaque_depth -= 1
    encoder.leave(value)


def _attribute_bag(encoder: Encoder, value: Any, put: Put) -> None:
    """SimpleNamespace and argparse's Namespace: class and attributes; their order does not count."""
    encoder.enter(value)
    put(b"x" + length(9) + b"namespace")
    encoder.put_class_of(value, put)
    put_state(encoder, sorted(vars(value)), value, put)
    encoder.leave(value)


def _code(encoder: Encoder, value: Any, put: Put) -> None:
    encoder.put_code(value, put)


WRITERS: dict[type, Writer] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    complex: _complex,
    str: _str,
    bytes: _bytes,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    OrderedDict: _ordered_dict,
    set: _set,
    frozenset: _set,
    Plain: _plain,
    Tree: _tree,
    bytearray: _raw_buffer,
    memoryview: _raw_buffer,
    array.array: _raw_buffer,
    defaultdict: _by_parts("defaultdict", _default_dict),
    Counter: _by_parts("Counter", lambda v: [("items", dict(v))]),
    deque: _by_parts("deque", lambda v: [("maxlen", v.maxlen), ("elements", list(v))]),
    types.MappingProxyType: _by_parts("mappingproxy", lambda v: [("items", dict(v))]),
    types.SimpleNamespace: _attribute_bag,
    range: _by_parts("range", _attributes("start", "stop", "step")),
    slice: _by_parts("slice", _attributes("start", "stop", "step")),
    type(...): _by_parts("Ellipsis", lambda _: []),
    type(NotImplemented): _by_parts("NotImplemented", lambda _: []),
    datetime.date: _by_parts("date", _attributes(*_DATE)),
    datetime.time: _by_parts("time", _attributes(*_TIME)),
    datetime.datetime: _by_parts("datetime", _attributes(*_DATE, *_TIME)),
    datetime.timedelta: _by_parts("timedelta", _attributes("days", "seconds", "microseconds")),
    datetime.timezone: _by_parts("timezone", _timezone),
    decimal.Decimal: _by_parts("Decimal", lambda v: [("text", Plain(str(v)))]),
    fractions.Fraction: _by_parts("Fraction", _attributes("numerator", "denominator")),
    uuid.UUID: _by_parts("UUID", _attributes("int")),
    re.Pattern: _by_parts("regex", lambda v: [("pattern", Plain(v.pattern)), ("flags", int(v.flags))]),
    types.FunctionType: _code,
    types.BuiltinFunctionType: _code,
    types.MethodType: _code,
    types.ModuleType: _code,
    type: _code,
    functools.partial: _code,
}

_MAPPING_LIBRARIES = {"omegaconf", "ml_collections"}
"""Libraries whose mappings and sequences hold back-references and caches: their items are their value."""


def writer_for(kind: type) -> Writer | None:
    """The writer for a class that is not in the table, or None."""
    if issubclass(kind, enum.Enum):
        return _enum
    if dataclasses.is_dataclass(kind):
        return _dataclass
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _namedtuple
    if kind.__module__.partition(".")[0] in _MAPPING_LIBRARIES:
        return _mapping if hasattr(kind, "items") else _sequence if hasattr(kind, "__iter__") else None
    if issubclass(kind, type):
        return _code
    if issubclass(kind, (pathlib.PurePath, os.PathLike)):
        return _path
    for base in (str, bytes, int, float, complex, list, tuple, dict, set, frozenset):
        if issubclass(kind, base):
            return _subclass(base)
    if kind.__name__ == "ZoneInfo":
        return _by_parts("ZoneInfo", _attributes("key"))
    if kind.__module__ == "argparse" and kind.__name__ == "Namespace":
        return _attribute_bag
    return None
