"""Short readable forms of values, for the parts of a recipe: never an address, never more than a line."""

from __future__ import annotations

import dataclasses
import os
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from blake3 import blake3

from prepcache.keys.secrets import holds_secret, is_secret

SCALARS = (bool, int, float, complex, str, bytes, type(None))
TEXT_LIMIT = 120
"""Characters; enough for a path or a short list."""
_MEMBERS_LIMIT = 400
"""Of an object with its attributes."""
_SHOWN_ELEMENTS = 8
_MOST = 64
"""Attributes that are looked at."""
_MEMBERS_DEPTH = 1
"""Dataclasses in dataclasses and in objects whose fields are shown too: settings that a class was given."""


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value that counts: the digest of its bytes, a short readable form, and whether to show them."""

    digest: str
    text: str
    is_secret: bool = False
    kind: type = object


ABSENT = Value(blake3(b"absent").hexdigest(), "(undefined)")


def decides(part: Any) -> Any:
    """What a part says of an input, less the readable form: that may change where the input does not."""
    return part.get("digest") if isinstance(part, dict) else part


def readable(value: Any, label: str | None = None) -> str:
    """A short form of a value.

    Args:
        value: anything.
        label: what it is called, for what has a label.
    """
    text = label or _text(value)
    limit = _MEMBERS_LIMIT if label is None and text.endswith(")") else TEXT_LIMIT
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _text(value: Any) -> str:
    if type(value) is int and value.bit_length() > 4 * TEXT_LIMIT:
        return f"int of {value.bit_length()} bits"
    if type(value) in SCALARS:
        return repr(value[:TEXT_LIMIT]) if isinstance(value, str | bytes) else repr(value)
    if type(value) in (dict, list, tuple, set, frozenset):
        return _container(value)
    if isinstance(value, FunctionType | type | BuiltinFunctionType):
        return f"{value.__module__}.{getattr(value, '__qualname__', value.__name__)}"  # Boost's have none
    if isinstance(value, MethodType):
        owner = "secret" if holds_secret(value.__self__) else _text(value.__self__)
        return f"{getattr(value.__func__, '__name__', 'method')} of {owner}"
    if isinstance(value, ModuleType):
        return value.__name__
    if issubclass(type(value), os.PathLike):  # its `__class__` may raise
        return os.fsdecode(value)
    cls = type(value)
    if not dataclasses.is_dataclass(cls) and hasattr(cls, "shape") and hasattr(cls, "dtype"):
        return f"{cls.__name__} {value.dtype} {tuple(value.shape)}"
    return f"{cls.__module__}.{cls.__qualname__}{_members(value, _MEMBERS_DEPTH)}"


def _members(value: Any, depth: int) -> str:
    """`(size=3, deep=Settings(n=1))`: the fields of a dataclass, the settings of another object."""
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        named = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(cls)}
    else:
        state = getattr(value, "__dict__", None)
        named = {} if type(state) is not dict else {n: v for n, v in state.copy().items() if _is_told(n, v)}
    fields = (f"{name}={_field(name, content, depth)}" for name, content in islice(named.items(), _MOST))
    return f"({', '.join(fields)})" if named else ""


def _is_told(name: Any, value: Any) -> bool:
    """Whether an attribute is a setting, as far as its name and type say."""
    is_plain = type(value) in SCALARS or dataclasses.is_dataclass(type(value))
    return is_plain and isinstance(name, str) and not name.startswith("_")


def _field(name: str, value: Any, depth: int) -> str:
    if is_secret(name) or holds_secret(value):
        return "secret"
    if type(value) in SCALARS:
        return _text(value)
    members = _members(value, depth - 1) if depth and dataclasses.is_dataclass(type(value)) else ""
    return type(value).__qualname__ + members


def _container(value: Any) -> str:
    elements = [*value, *value.values()] if isinstance(value, dict) else list(value)
    if len(value) > _SHOWN_ELEMENTS or any(type(e) not in SCALARS for e in elements):
        return f"{type(value).__name__} of {len(value)}"
    if any(type(e) is int and e.bit_length() > 4 * TEXT_LIMIT for e in elements):
        return f"{type(value).__name__} of {len(value)}"
    return repr(sorted(value, key=repr)) if isinstance(value, set | frozenset) else repr(value)
