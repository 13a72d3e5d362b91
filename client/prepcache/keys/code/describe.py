"""Short readable forms of values, for the parts of a recipe: never an address, never more than a line."""

from __future__ import annotations

import dataclasses
import os
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from blake3 import blake3

from prepcache.keys.secrets import holds_secret

SCALARS = (bool, int, float, complex, str, bytes, type(None))
TEXT_LIMIT = 120
"""Characters; enough for a path or a short list."""
_SHOWN_ELEMENTS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value that counts.

    Args:
        digest: of its bytes.
        text: a short readable form.
        is_attribute: whether an object holds it, and not the code.
    """

    digest: str
    text: str
    is_secret: bool = False
    kind: type = object
    is_attribute: bool = False


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
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


def _text(value: Any) -> str:
    if _is_long(value):
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
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_long(value: Any) -> bool:
    return type(value) is int and value.bit_length() > 4 * TEXT_LIMIT


def _container(value: Any) -> str:
    if len(value) <= _SHOWN_ELEMENTS:
        elements = [*value, *value.values()] if isinstance(value, dict) else list(value)
    if len(value) > _SHOWN_ELEMENTS or any(type(e) not in SCALARS or _is_long(e) for e in elements):
        return f"{type(value).__name__} of {len(value)}"
    return repr(sorted(value, key=repr)) if isinstance(value, set | frozenset) else repr(value)
