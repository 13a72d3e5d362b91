"""Writers of the canonical encoding for the types of Python and its standard library.

    tag  value                              tag  value
    n    None                               l t  list, tuple: count, elements
    T F  True, False                        d    dict whose order is free: count, sorted (key, value)
    i I  int of 64 bits; longer: bytes      m    dict whose order counts
    f    float, big-endian bits             o    OrderedDict
    c    complex, two floats                e z  set, frozenset: count, sorted elements
    s b  str (UTF-8), bytes                 w    bytearray, memoryview, array
    p S  path, str that names a file        x    mapping proxy, Ellipsis, own class of path: name, parts
    P    tree()                             C    function, class, module
    Q    plain()                            O k  other object: by its parts, by a registered function

`instances` adds E (enum member) and D (instance of a subclass of a type here). `Y` refers to an object that
is written elsewhere.

Invariants:
    1. A writer is chosen by exact type; subclasses of built-in types count with their class and state.
"""

from __future__ import annotations

import array
import functools
import math
import os
import struct
import types
from collections import OrderedDict
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from prepcache.keys.encoding.encoder import Encoder, Put, Writer, is_registered, length, text_bytes
from prepcache.keys.markers import Plain, Tree

_INT = struct.Struct(">cq").pack
_FLOAT = struct.Struct(">cd").pack
_NAN = b"f" + bytes.fromhex("7ff8000000000000")
_LONG_LIST = 64
"""Elements; from here on a list of one number type is written in bulk (a config may be 50 MB)."""


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


def _int(_: Encoder, value: int, put: Put) -> None:
    put(int_bytes(value))


def _float(_: Encoder, value: float, put: Put) -> None:
    put(float_bytes(value))


def _complex(_: Encoder, value: complex, put: Put) -> None:
    put(b"c" + float_bytes(value.real) + float_bytes(value.imag))


def _str(encoder: Encoder, value: str, put: Put) -> None:
    if encoder.texts is not None:
        encoder.texts.add(value)
    if not (encoder.looks_up_text and encoder.put_path(value, put)):
        put(text_bytes(value))


def _bytes(_: Encoder, value: bytes, put: Put) -> None:
    put(b"b" + length(len(value)))
    put(value)


def _put_elements(encoder: Encoder, tag: bytes, value: Any, put: Put) -> None:
    """Tag, count and elements of a sequence."""
    put(tag + length(len(value)))
    if len(value) >= _LONG_LIST and _in_bulk(value, put):
        return
    is_mutable = type(value) is not tuple  # a circle of tuples alone cannot be made
    if is_mutable:
        encoder.enter(value)
    steps, walk = encoder.steps, encoder.walk
    steps.append(0)
    for i, element in enumerate(value):
        steps[-1] = i
        walk(element, put)
    steps.pop()
    if is_mutable:
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
    _put_elements(encoder, b"l", value, put)


def _tuple(encoder: Encoder, value: Any, put: Put) -> None:
    _put_elements(encoder, b"t", value, put)


_SIMPLE_KEYS = {type(None), bool, int, float, complex, str, bytes}


def _is_simple_key(key: Any) -> bool:
    return type(key) in _SIMPLE_KEYS or (type(key) is tuple and all(map(_is_simple_key, key)))


def has_free_order(value: dict[Any, Any]) -> bool:
    """Whether the order of a plain dict can be put right: its keys are simple values."""
    return all(map(_is_simple_key, value))


def simple_key(key: Any) -> bytes:
    """By what the keys of a plain dict are sorted: their bytes as plain values."""
    kind = type(key)
    if kind is str:
        return text_bytes(key)
    if kind is int:
        return int_bytes(key)
    if kind is float:
        return float_bytes(key)
    if kind is complex:
        return b"c" + float_bytes(key.real) + float_bytes(key.imag)
    if kind is bytes:
        return b"b" + length(len(key)) + bytes(key)
    if kind is tuple:
        return b"t" + length(len(key)) + b"".join(map(simple_key, key))
    return b"n" if key is None else b"T" if key else b"F"


def _dict(encoder: Encoder, value: dict[Any, Any], put: Put) -> None:
    encoder.enter(value)
    if encoder.opaque_depth == 0 and has_free_order(value):
        put(b"d" + length(len(value)))
        put_pairs(encoder, [(k, value[k]) for k in sorted(value, key=simple_key)], put)
    else:
        put(b"m" + length(len(value)))
        put_pairs(encoder, value.items(), put)
    encoder.leave(value)


def _ordered_dict(encoder: Encoder, value: OrderedDict[Any, Any], put: Put) -> None:
    encoder.enter(value)
    put(b"o" + length(len(value)))
    put_pairs(encoder, value.items(), put)
    encoder.leave(value)


def put_pairs(encoder: Encoder, pairs: Iterable[tuple[Any, Any]], put: Put) -> None:
    """Keys and values. A str key that is an identifier is a label and never looked up on the disk."""
    steps, walk = encoder.steps, encoder.walk
    steps.append("")
    for key, value in pairs:
        kind = type(key)
        if kind is str and key.isidentifier():
            steps[-1] = key
            if encoder.texts is not None:
                encoder.texts.add(key)
            put(text_bytes(key))
        else:
            steps[-1] = key if kind is str or kind is int else f"key of type {kind.__name__}"
            encoder.opaque_depth += 1
            walk(key, put)
            encoder.opaque_depth -= 1
        walk(value, put)
    steps.pop()


def _set(encoder: Encoder, value: Any, put: Put) -> None:
    put((b"e" if type(value) is set else b"z") + length(len(value)))
    # Visited in an order of their own, not the set's, which differs between processes: whoever notes the
    # paths on the way (a snapshot) has to meet them in the same order everywhere.
    encoder.inline_depth += 1
    for raw in sorted([encoder.part(x, "element") for x in sorted(value, key=_visiting_order)]):
        put(raw)
    encoder.inline_depth -= 1


def _visiting_order(element: Any) -> bytes:
    if isinstance(element, os.PathLike):
        return os.fsencode(element)
    return simple_key(element) if _is_simple_key(element) else b""


def _raw_buffer(_: Encoder, value: Any, put: Put) -> None:
    view = memoryview(value)
    name = f"{type(value).__name__} {view.format} {view.shape}".encode()
    put(b"w" + length(len(name)) + name + length(view.nbytes))
    put(view if view.contiguous and view.ndim == 1 and view.format == "B" else view.tobytes())


def _mapping_proxy(encoder: Encoder, value: Any, put: Put) -> None:
    put(b"x" + length(12) + b"mappingproxy")
    encoder.opaque_depth += 1  # the function receives it as it is
    encoder.step(dict(value), "items", put)
    encoder.opaque_depth -= 1


def _singleton(_: Encoder, value: Any, put: Put) -> None:
    name = repr(value).encode()
    put(b"x" + length(len(name)) + name)


def path_writer(encoder: Encoder, value: Any, put: Put) -> None:
    """A path. `pathlib`'s hold nothing but the name; others count with their class and state, too."""
    from prepcache.keys.encoding.instances import attributes_of, put_state

    if type(value).__module__.partition(".")[0] not in ("pathlib", "posix"):
        try:
            name = os.fspath(value)
        except Exception as error:
            raise encoder.refuse(f"its path raised {type(error).__name__}: {error}") from error
        put(b"x" + length(8) + b"pathlike")
        encoder.put_class_of(value, put)
        library = [base for base in type(value).__mro__ if base.__module__.startswith("pathlib")]
        theirs = {slot for base in library for slot in vars(base).get("__slots__", ())}
        own = {n: part for n, part in attributes_of(value).items() if n not in theirs and part is not name}
        put_state(encoder, own, value, put)
    _put_path(encoder, value, put)


def _put_path(encoder: Encoder, value: Any, put: Put) -> None:
    if encoder.texts is not None:
        encoder.texts.add(os.fsdecode(value))
    if not encoder.looks_up_text:
        name = os.fspath(value)
        raw = text_bytes(name) if isinstance(name, str) else b"b" + length(len(name)) + name
        put(b"x" + length(4) + b"path" + raw)
    elif not encoder.put_path(value, put):
        raise encoder.refuse(f"the path {os.fspath(value)!r} cannot be looked up here; use plain(path)")


def _plain(encoder: Encoder, value: Plain[Any], put: Put) -> None:
    encoder.check_marker(value)
    put(b"Q")
    encoder.put_plain(value.value, put)


def _tree(encoder: Encoder, value: Tree[Any], put: Put) -> None:
    encoder.check_marker(value)
    if encoder.texts is not None:
        encoder.texts.add(os.fsdecode(value.value))
    if not encoder.put_path(value, put):
        raise encoder.refuse(f"{value!r} cannot be looked up here")


def put_code(encoder: Encoder, value: Any, put: Put) -> None:
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
    types.MappingProxyType: _mapping_proxy,
    type(...): _singleton,
    type(NotImplemented): _singleton,
    types.FunctionType: put_code,
    types.BuiltinFunctionType: put_code,
    types.MethodType: put_code,
    types.ModuleType: put_code,
    type: put_code,
    functools.partial: put_code,
}
