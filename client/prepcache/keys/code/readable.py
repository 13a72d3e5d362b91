"""Short readable forms of values, for the parts of a recipe: never an address, never more than a line."""

from __future__ import annotations

import dataclasses
import os
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from blake3 import blake3

from prepcache.keys.secrets import is_secret

SCALARS = (bool, int, float, complex, str, bytes, type(None))
TEXT_LIMIT = 120
"""Characters; enough for a path or a short list."""
_SHOWN_ELEMENTS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value that counts: the digest of its bytes, a short readable form, and whether to show them."""

    digest: str
    text: str
    is_secret: bool = False
    kind: type = object


ABSENT = Value(blake3(b"absent").hexdigest(), "absent")


def readable(value: Any, label: str | None = None) -> str:
    """A short form of a value.

    Args:
        value: anything.
        label: what it is called, for what has a label.
    """
    text = label or _text(value)
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


def _text(value: Any) -> str:
    if type(value) is int and value.bit_length() > 4 * TEXT_LIMIT:
        return f"int of {value.bit_length()} bits"
    if type(value) in SCALARS:
        return repr(value[:TEXT_LIMIT]) if isinstance(value, str | bytes) else repr(value)
    if type(value) in (dict, list, tuple, set, frozenset):
        return _container(value)
    if isinstance(value, FunctionType | type | BuiltinFunctionType):
        return f"{value.__module__}.{getattr(value, '__qualname__', value.__name__)}"  # Boost's have none
    if isinstance(value, ModuleType):
        return value.__name__
    if issubclass(type(value), os.PathLike):  # its `__class__` may raise
        return os.fsdecode(value)
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        fields = (f"{f.name}={_field(f.name, getattr(value, f.name, None))}" for f in dataclasses.fields(cls))
        return f"{cls.__module__}.{cls.__qualname__}({', '.join(fields)})"
    if hasattr(cls, "shape") and hasattr(cls, "dtype"):
        return f"{cls.__name__} {value.dtype} {tuple(value.shape)}"
    return f"{cls.__module__}.{cls.__qualname__}"


def _field(name: str, value: Any) -> str:
    if is_secret(name):
        return "secret"
    return _text(value) if type(value) in SCALARS else type(value).__qualname__


def _container(value: Any) -> str:
    elements = [*value, *value.values()] if isinstance(value, dict) else list(value)
    if len(value) > _SHOWN_ELEMENTS or any(type(e) not in SCALARS for e in elements):
        return f"{type(value).__name__} of {len(value)}"
    if any(type(e) is int and e.bit_length() > 4 * TEXT_LIMIT for e in elements):
        return f"{type(value).__name__} of {len(value)}"
    return repr(sorted(value, key=repr)) if isinstance(value, set | frozenset) else repr(value)
