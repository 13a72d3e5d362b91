"""Writers of the canonical encoding for instances of enums and of subclasses of built-in types.

An instance counts by its class (by definition where the encoder knows code, else by name), what it holds as
one of its base, and its attributes. What the writers leave over is an object: see `objects`.

Invariants:
    1. All state counts: elements and whatever else is in the instance's `__dict__` and slots.
    2. Inside an instance the order of dicts counts: only namedtuples can be rebuilt with another one.
    3. What a subclass of a built-in type holds is read by the base's own methods, which no override hides.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from prepcache.keys.encoding.builtins import path_writer, put_code
from prepcache.keys.encoding.encoder import Encoder, Put, Writer, text_bytes
from prepcache.namedtuples import is_namedtuple

_OF_ENUM = frozenset({"_name_", "_value_", "_sort_order_", "__objclass__", "_inverted_"})
"""What the enum module keeps in a member."""


def _enum(encoder: Encoder, value: enum.Enum, put: Put) -> None:
    put(b"E")
    encoder.put_class_of(value, put)
    name: str | None = value._name_
    put(b"n" if name is None else text_bytes(name))
    encoder.opaque_depth += 1
    encoder.inline_depth += 1
    encoder.step(value._value_, "value", put)
    base = next((base for base in type(value).__mro__ if base in _CONTENT), None)
    maker = getattr(value, "_new_member_", None)
    if base is not None and (getattr(maker, "__module__", None) or "enum") != "enum":
        encoder.step(_CONTENT[base](value), "content", put)  # which the project's `__new__` may set apart
    own = attributes_of(value)
    put_state(encoder, {name: own[name] for name in own if name not in _OF_ENUM}, value, put)
    encoder.inline_depth -= 1
    encoder.opaque_depth -= 1


_FILLED_BY_USE = ("__pydantic_", "_attrs_cached")
"""Beginnings of the names of libraries' slots."""


def put_state(encoder: Encoder, state: dict[str, Any], value: Any, put: Put) -> None:
    """Write attributes by name, in the order of the names."""
    put(b"a" if state else b"-")
    if state:
        encoder.opaque_depth += 1
        encoder.put_attributes(value, sorted(state.items()), put)
        encoder.opaque_depth -= 1


def slots_of(*classes: type) -> tuple[str, ...]:
    """The attributes that classes keep in slots of their own, as they are read, class by class."""
    found: list[str] = []
    for base in classes:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            is_private = slot.startswith("__") and not slot.endswith("__")
            if slot not in ("__dict__", "__weakref__") and not slot.startswith(_FILLED_BY_USE):
                found.append(f"_{base.__name__.lstrip('_')}{slot}" if is_private else slot)
    return tuple(found)


def attributes_of(value: Any) -> dict[str, Any]:
    """An instance's own attributes, what `cached_property` keeps and slots included; no code of its runs."""
    found = {str(name): part for name, part in getattr(value, "__dict__", {}).items()}
    for name in slots_of(*type(value).__mro__):
        with contextlib.suppress(AttributeError):
            found[name] = object.__getattribute__(value, name)
    return found


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
        own = attributes_of(value)
        return {name: own[name] for name in slots if name in own} | key if type(key) is dict else (key, own)

    return whole


def _instance(encoder: Encoder, value: Any, put: Put) -> None:
    """Write an instance of a subclass of a built-in type: class, what the base holds, state."""
    if encoder.put_known(value, put):
        return
    kind = type(value)
    base = next(base for base in kind.__mro__ if base in _CONTENT)
    encoder.enter(value)
    put(b"D")
    encoder.put_class_of(value, put)
    put(text_bytes(base.__name__))
    is_opaque = not is_namedtuple(kind)
    encoder.opaque_depth += is_opaque
    encoder.walk(_CONTENT[base](value), put)
    encoder.opaque_depth -= is_opaque
    factory = {"default_factory": value.default_factory} if issubclass(kind, defaultdict) else {}
    put_state(encoder, attributes_of(value) | factory, value, put)
    encoder.leave(value)


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
"""What an instance of a subclass holds as one of its base, however it converts itself."""


def writer_for(kind: type) -> Writer | None:
    """The writer for a class that is not in the table, or None."""
    if issubclass(kind, enum.Enum):
        return _enum
    if issubclass(kind, type):
        return put_code
    if issubclass(kind, os.PathLike):
        return path_writer
    return _instance if issubclass(kind, tuple(_CONTENT)) else None
