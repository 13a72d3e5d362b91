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
import re
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from prepcache.keys.encoding.builtins import path_writer, put_code
from prepcache.keys.encoding.encoder import Encoder, Put, Writer, length, text_bytes
from prepcache.namedtuples import is_namedtuple

_SUNDER = re.compile(r"_.*_")
"""Names that the enum module keeps for itself."""


def _enum(encoder: Encoder, value: enum.Enum, put: Put) -> None:
    put(b"E")
    encoder.put_class_of(value, put)
    name: str | None = value._name_
    put(b"n" if name is None else text_bytes(name))
    encoder.opaque_depth += 1
    encoder.inline_depth += 1
    encoder.steps.append("value")
    encoder.put_plain(value._value_, put)
    encoder.steps.pop()
    put_state(encoder, [n for n in instance_state(value) if not _SUNDER.fullmatch(n)], value, put)
    encoder.inline_depth -= 1
    encoder.opaque_depth -= 1


def put_state(encoder: Encoder, names: Iterable[str], value: Any, put: Put) -> None:
    """Write attributes by name, in the order of the names; reading one may run the user's code."""
    pairs = []
    for name in names:
        try:
            pairs.append((name, getattr(value, name)))
        except Exception as error:
            encoder.steps.append(name)
            raise encoder.refuse(f"reading it raised {type(error).__name__}: {error}") from error
    put(b"a" if pairs else b"-")
    if pairs:
        encoder.opaque_depth += 1
        encoder.put_attributes(value, pairs, put)
        encoder.opaque_depth -= 1


def instance_state(value: Any) -> list[str]:
    """The names of an instance's own attributes, slots included, sorted: their order does not count."""
    slots = (name for name in slots_of(*type(value).__mro__) if _is_set(value, name))
    return sorted({*getattr(value, "__dict__", ()), *slots})


def slots_of(*classes: type) -> tuple[str, ...]:
    """The attributes that classes keep in slots of their own, as they are read, class by class."""
    found: list[str] = []
    for base in classes:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            is_private = slot.startswith("__") and not slot.endswith("__")
            if slot not in ("__dict__", "__weakref__") and not slot.startswith("__pydantic_"):
                found.append(f"_{base.__name__.lstrip('_')}{slot}" if is_private else slot)
    return tuple(found)


def attributes_of(value: Any) -> dict[str, Any]:
    """An instance's own attributes, by name."""
    return {name: getattr(value, name) for name in instance_state(value)}


def with_state(key_of: Callable[[Any], Any], kind: type, base: type) -> Callable[[Any], Any]:
    """What instances of a class count by, if an adapter says it of a base: that, and their own attributes.

    A dict that an adapter gives has those of the base's `__dict__` already; slots of subclasses join it.
    """
    slots = slots_of(*kind.__mro__[: kind.__mro__.index(base)])
    if not slots and not kind.__dictoffset__:
        return key_of

    def whole(value: Any) -> Any:
        key = key_of(value)
        if key is NotImplemented:
            return key
        if type(key) is dict:
            return {**{name: getattr(value, name) for name in slots if _is_set(value, name)}, **key}
        return key, attributes_of(value)

    return whole


def _is_set(value: Any, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


def _instance(encoder: Encoder, value: Any, put: Put) -> None:
    """Write a dataclass, or what is of a subclass of a built-in type: class, what the base holds, state."""
    if encoder.put_known(value, put):
        return
    encoder.enter(value)
    put(b"D")
    encoder.put_class_of(value, put)
    base = _content_base(type(value))
    put(text_bytes("" if base is None else base.__name__))
    if base is not None:
        encoder.opaque_depth += 1
        encoder.walk(_CONTENT[base](value), put)
        encoder.opaque_depth -= 1
    names = set(instance_state(value))
    if issubclass(type(value), defaultdict):
        names.add("default_factory")
    if hasattr(type(value), "__dataclass_fields__"):
        # A value of a dataclass means that the module is loaded; it would cost an import of inspect.
        fields = sys.modules["dataclasses"].fields(type(value))
        names.update(field.name for field in fields if field.init or _is_set(value, field.name))
    put_state(encoder, sorted(names), value, put)
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


_CONTENT: dict[type, Callable[[Any], Any]] = {
    OrderedDict: lambda value: dict(OrderedDict.items(value)),
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
"""What an instance of a subclass holds as one of its base, however it converts itself."""


def _content_base(kind: type) -> type | None:
    return next((base for base in kind.__mro__ if base in _CONTENT), None)


def _is_copied_by_a_base(kind: type) -> bool:
    """Whether a dataclass has a base that says how it is copied: its content is for the object hook."""
    ways = ("__reduce_ex__", "__reduce__")
    owner = next(base for base in kind.__mro__ if any(way in vars(base) for way in ways))
    return owner is not object and "__dataclass_fields__" not in vars(owner)


def writer_for(kind: type) -> Writer | None:
    """The writer for a class that is not in the table, or None."""
    if issubclass(kind, enum.Enum):
        return _enum
    if is_namedtuple(kind):
        return _namedtuple
    if issubclass(kind, type):
        return put_code
    if issubclass(kind, os.PathLike):
        return path_writer
    is_dataclass = hasattr(kind, "__dataclass_fields__") and not _is_copied_by_a_base(kind)
    return _instance if is_dataclass or _content_base(kind) is not None else None
