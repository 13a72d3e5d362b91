"""Writers of the canonical encoding for built-in types, and the parts of instances of their subclasses.

    tag  value                              tag  value
    n    None                               l t  list, tuple: count, elements
    T F  True, False                        d    dict whose order is free: count, sorted (key, value)
    i I  int of 64 bits; longer: bytes      m    dict whose order counts
    f    float, big-endian bits             o    OrderedDict
    c    complex, two floats                e z  set, frozenset: count, sorted elements
    s b  str (UTF-8), bytes                 w    memoryview: format and shape, bytes
    p S  path, str that names a file        x    path by its name only
    P Q  tree(), plain()                    C    function, class, module
    O    other object: class, parts         Y    an object that is written above

Invariants:
    1. A writer is chosen by exact type. An instance of a subclass counts by its class, by what the base's own
       methods read from it, and by its `__dict__` and slots.
    2. Inside an instance the order of dicts counts: only namedtuples can be rebuilt with another one.
"""

from __future__ import annotations

import contextlib
import enum
import os
import pathlib
import struct
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prepcache.keys.encoding.encoder import CONTENT, Encoder, Parts, Put, Writer, length, text_bytes
from prepcache.keys.markers import Plain, Tree

_INT = struct.Struct(">cq").pack
_FLOAT = struct.Struct(">cd").pack
_NAN = b"f" + bytes.fromhex("7ff8000000000000")


def int_bytes(value: int) -> bytes:
    try:
        return _INT(b"i", value)
    except struct.error:
        raw = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        return b"I" + length(len(raw)) + raw


def float_bytes(value: float) -> bytes:
    return _FLOAT(b"f", value) if value == value else _NAN


SIMPLE: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"n",
    bool: lambda value: b"T" if value else b"F",
    int: int_bytes,
    float: float_bytes,
    complex: lambda value: b"c" + float_bytes(value.real) + float_bytes(value.imag),
    str: text_bytes,
    bytes: lambda value: b"b" + length(len(value)) + value,
}
"""Of values that hold nothing and name no file."""


def _str(encoder: Encoder, value: str, put: Put) -> None:
    encoder.note_text(value)
    if encoder.is_plain or not encoder.put_path(value, put):
        put(text_bytes(value))


def _sequence(encoder: Encoder, value: Any, put: Put) -> None:
    is_mutable = type(value) is not tuple  # a circle of tuples alone cannot be made
    put((b"l" if is_mutable else b"t") + length(len(value)))
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


def has_free_order(value: Iterable[Any]) -> bool:
    return all(type(key) in SIMPLE or (type(key) is tuple and has_free_order(key)) for key in value)


def simple_key(key: Any) -> bytes:
    if type(key) is tuple:
        return b"t" + length(len(key)) + b"".join(map(simple_key, key))
    return SIMPLE[type(key)](key)


def _dict(encoder: Encoder, value: dict[Any, Any], put: Put) -> None:
    encoder.enter(value)
    is_plain = type(value) is dict
    is_free = is_plain and encoder.opaque_depth == 0 and has_free_order(value)
    put((b"d" if is_free else b"m" if is_plain else b"o") + length(len(value)))
    steps, walk = encoder.steps, encoder.walk
    steps.append("")
    pairs = [(key, value[key]) for key in sorted(value, key=simple_key)] if is_free else value.items()
    for key, part in pairs:
        kind = type(key)
        if kind is str and key.isidentifier():  # never looked up on the disk
            steps[-1] = key
            encoder.note_text(key)
            put(text_bytes(key))
        else:
            steps[-1] = key if kind is str or kind is int else f"key of type {kind.__name__}"
            encoder.opaque_depth += 1
            walk(key, put)
            encoder.opaque_depth -= 1
        walk(part, put)
    steps.pop()
    encoder.leave(value)


def _set(encoder: Encoder, value: Any, put: Put) -> None:
    put((b"e" if type(value) is set else b"z") + length(len(value)))
    encoder.inline_depth += 1
    encoder.set_depth += 1
    # Not in the set's order, which is another in each process: the places of paths join an item's hash.
    ordered = sorted(value, key=lambda one: str(one) if type(one) in (str, pathlib.PosixPath) else "")
    for raw in sorted([encoder.part(one, "element") for one in ordered]):
        put(raw)
    encoder.set_depth -= 1
    encoder.inline_depth -= 1


def _raw_buffer(_: Encoder, value: memoryview, put: Put) -> None:
    name = f"{value.format} {value.shape}".encode()
    put(b"w" + length(len(name)) + name + length(value.nbytes))
    put(value if value.contiguous and value.ndim == 1 and value.format == "B" else value.tobytes())


def _path(encoder: Encoder, value: Any, put: Put) -> None:
    text = os.fsdecode(value.value if type(value) is Tree else value)
    encoder.note_text(text)
    if encoder.is_plain and type(value) is not Tree:
        put(b"x" + text_bytes(text))
    elif not encoder.put_path(value, put):
        raise encoder.refuse(f"the path {text!r} cannot be looked up here; use plain(path)")


def _plain(encoder: Encoder, value: Plain[Any], put: Put) -> None:
    put(b"Q")
    before, encoder.is_plain = encoder.is_plain, True
    encoder.inline_depth += 1
    encoder.walk(value.value, put)
    encoder.inline_depth -= 1
    encoder.is_plain = before


WRITERS: dict[type, Writer] = {
    **dict.fromkeys(SIMPLE, lambda _, value, put: put(SIMPLE[type(value)](value))),
    **dict.fromkeys((list, tuple), _sequence),
    **dict.fromkeys((dict, OrderedDict), _dict),
    **dict.fromkeys((set, frozenset), _set),
    **dict.fromkeys((pathlib.PosixPath, pathlib.PurePosixPath, Tree), _path),
    **dict.fromkeys((type, types.FunctionType, types.BuiltinFunctionType), Encoder.put_code),
    **dict.fromkeys((types.MethodType, types.ModuleType), Encoder.put_code),
    str: _str,
    memoryview: _raw_buffer,
    Plain: _plain,
}


def parts_of(value: Any, is_library: Callable[[type], bool]) -> Parts:
    """What an instance holds as one of its built-in base, and its attributes."""
    reads = [read for base, read in _CONTENT.items() if issubclass(type(value), base)]
    parts: Parts = [(CONTENT, read(value)) for read in reads[:1]]
    if isinstance(value, os.PathLike):  # a record may be one, too
        parts.append((CONTENT, pathlib.PosixPath(os.fsdecode(value))))
    own = attributes_of(value)
    if isinstance(value, defaultdict):
        own["default_factory"] = value.default_factory
    if isinstance(value, enum.Enum):
        own = {n: part for n, part in own.items() if n not in ("_sort_order_", "__objclass__", "_inverted_")}
    return parts + sorted(own.items())


def slots_of(*classes: type) -> Iterator[tuple[type, str, Any]]:
    for base in classes:
        is_path = base.__module__.startswith("pathlib")  # which keeps parts of the name
        slots = () if is_path else vars(base).get("__slots__", ())
        slots = (slots,) if isinstance(slots, str) else slots
        for name, slot in vars(base).items() if slots else ():
            is_slot = isinstance(slot, types.MemberDescriptorType) or name in slots
            if is_slot and not name.startswith(("_attrs_cached", "__dict__", "__weakref__")):
                yield base, name, slot


def attributes_of(value: Any) -> dict[str, Any]:
    """An instance's own attributes and slots; no code of its runs."""
    found: dict[str, Any] = {}
    with contextlib.suppress(AttributeError):  # which may have slots alone, and `__getattr__` for the rest
        kept = object.__getattribute__(value, "__dict__")
        found = {str(name): part for name, part in kept.items()}
    for base, name, slot in slots_of(*type(value).__mro__):
        with contextlib.suppress(AttributeError):  # nothing is in it
            found[f"{base.__qualname__}.{name}" if name in found else name] = slot.__get__(value)
    return found


_CONTENT: dict[type, Callable[[Any], Any]] = {
    OrderedDict: lambda value: OrderedDict(OrderedDict.items(value)),
    dict: lambda value: dict(dict.items(value)),
    list: lambda value: list.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    set: set,
    frozenset: frozenset,
}
BASES = (enum.Enum, os.PathLike, *_CONTENT)
