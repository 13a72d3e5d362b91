"""Writers of the canonical encoding for instances: enums, dataclasses, namedtuples and subclasses.

An instance counts by its class (by definition where a hook knows it, else by name) and its state. What
the writers leave over is an object for the `on_object` hook.

Invariants:
    1. All state counts: fields, elements and whatever else is in the instance's `__dict__`.
    2. Inside an instance the order of dicts counts: the instance cannot be rebuilt with another one.
    3. What a subclass of a built-in type holds is read by the base's own methods, which no override hides.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from prepcache.keys.encoding.builtins import path_writer, put_code, put_pairs
from prepcache.keys.encoding.encoder import Encoder, Put, Writer, length, text_bytes
from prepcache.namedtuples import is_namedtuple


def _enum(encoder: Encoder, value: enum.Enum, put: Put) -> None:
    put(b"E")
    encoder.put_class_of(value, put)
    name: str | None = value._name_
    put(b"n" if name is None else text_bytes(name))
    encoder.opaque_depth += 1
    encoder.steps.append("value")
    encoder.put_plain(value._value_, put)
    encoder.steps.pop()
    encoder.opaque_depth -= 1


def put_state(encoder: Encoder, names: Iterable[str], value: Any, put: Put) -> None:
    """Write attributes by name, in the order of the names; reading one may run the user's code."""
    encoder.opaque_depth += 1
    pairs = []
    for name in names:
        try:
            pairs.append((name, getattr(value, name)))
        except Exception as error:
            encoder.steps.append(name)
            raise encoder.refuse(f"reading it raised {type(error).__name__}: {error}") from error
    encoder.put_attributes(value, pairs, put)
    encoder.opaque_depth -= 1


def instance_state(value: Any) -> list[str]:
    """The names of an instance's own attributes, slots included, sorted: their order does not count."""
    slots = (name for name in slots_of(type(value)) if _is_set(value, name))
    return sorted({*getattr(value, "__dict__", ()), *slots})


def slots_of(cls: type) -> tuple[str, ...]:
    """The attributes that a class and its bases keep in slots, as they are read, in the order of the MRO."""
    found: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            is_private = slot.startswith("__") and not slot.endswith("__")
            if slot not in ("__dict__", "__weakref__") and not slot.startswith("__pydantic_"):
                found.append(f"_{base.__name__.lstrip('_')}{slot}" if is_private else slot)
    return tuple(found)


def _is_set(value: Any, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


def _dataclass(encoder: Encoder, value: Any, put: Put) -> None:
    encoder.enter(value)
    put(b"D")
    encoder.put_class_of(value, put)
    # A value of a dataclass means that the module is loaded; it would cost an import of inspect.
    fields = [f.name for f in sys.modules["dataclasses"].fields(value) if f.init or _is_set(value, f.name)]
    others = [name for name in instance_state(value) if name not in fields]
    put_state(encoder, [*fields, *others], value, put)
    encoder.leave(value)


def _namedtuple(encoder: Encoder, value: Any, put: Put) -> None:
    encoder.enter(value)
    put(b"N")
    encoder.put_class_of(value, put)
    put(length(tuple.__len__(value)))
    for name, element in zip(value._fields, tuple.__iter__(value), strict=True):
        put(text_bytes(name))
        encoder.step(element, name, put)
    put_state(encoder, instance_state(value), value, put)
    encoder.leave(value)


_OWN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    set: set,
    frozenset: frozenset,
}
"""What a value of a subclass is as one of its base, however it converts itself."""


def _subclass(base: type) -> Writer:
    """A writer for subclasses of a built-in type: class, value as the base's, other state."""

    def write(encoder: Encoder, value: Any, put: Put) -> None:
        encoder.enter(value)
        put(b"x" + length(8) + b"subclass")
        encoder.put_class_of(value, put)
        encoder.opaque_depth += 1
        if base is dict:
            put(b"m" + length(dict.__len__(value)))
            put_pairs(encoder, [(k, dict.__getitem__(value, k)) for k in dict.keys(value)], put)
        elif base in (list, tuple):
            put(b"l" + length(base.__len__(value)))
            for i, element in enumerate(base.__iter__(value)):
                encoder.step(element, i, put)
        else:
            encoder.walk(_OWN[base](value), put)
        encoder.opaque_depth -= 1
        put_state(encoder, instance_state(value), value, put)
        encoder.leave(value)

    return write


def writer_for(kind: type) -> Writer | None:
    """The writer for a class that is not in the table, or None."""
    if issubclass(kind, enum.Enum):
        return _enum
    if hasattr(kind, "__dataclass_fields__"):
        return _dataclass
    if is_namedtuple(kind):
        return _namedtuple
    if issubclass(kind, type):
        return put_code
    if issubclass(kind, os.PathLike):
        return path_writer
    for base in (*_OWN, list, tuple, dict):
        if issubclass(kind, base):
            return _subclass(base)
    return None
