"""What counts of a class: its attributes, and what Python and libraries keep of its text elsewhere.

Invariants:
    1. An attribute is left out only by a name or type listed here; what is unknown counts.
    2. Attributes are read from `vars()`, so no descriptor runs.
"""

from __future__ import annotations

import abc
import os
import sys
import types
from collections.abc import Iterator
from types import FunctionType
from typing import Any

_SKIPPED = frozenset(
    {
        "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__",
        "__annotations__", "__slots__", "__match_args__", "__orig_bases__",
        "__static_attributes__", "__parameters__", "__abstractmethods__", "__dataclass_fields__",
        "__dataclass_params__", "__final__", "__signature__", "__protocol_attrs__",
        "__non_callable_proto_members__", "__annotate__", "__annotate_func__", "__annotations_cache__",
        "__classcell__", "__type_params__", "__class_vars__", "_abc_impl", "_is_protocol",
        "_is_runtime_protocol", "__slotnames__", "_value2member_map_", "_unhashable_values_",
        "_unhashable_values_map_", "_hashable_values_", "_inverted_",
    }
)  # fmt: skip
"""What its text says already, bookkeeping, and what use fills."""
_DESCRIBED = ("__annotations__", "__slots__", "__match_args__", "__orig_bases__")
_OF_STRUCTS = ("__struct_defaults__", "__struct_encode_fields__", "__struct_config__")
"""What msgspec keeps outside of attributes."""
_OF_PYDANTIC = frozenset(
    {"__pydantic_fields__", "__pydantic_decorators__", "__private_attributes__", "__pydantic_config__"}
)
_C_DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


def attributes_of(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(cls).items(), key=lambda pair: str(pair[0])):
        is_kept = not (name in _SKIPPED or name.startswith("__pydantic")) or name in _OF_PYDANTIC
        is_made = isinstance(value, _C_DESCRIPTORS) and value.__objclass__ is cls
        is_made = is_made or type(value).__name__ == "CField"  # of ctypes' `_fields_`
        if is_kept and not is_made and not (name == "__hash__" and _is_generated(cls, value)):
            yield name, value


def _is_generated(cls: type, value: Any) -> bool:
    """Whether a library made a method from text: a hash then follows from the fields, and attrs' differs from
    process to process."""
    home = getattr(sys.modules.get(cls.__module__), "__dict__", None)
    is_function = isinstance(value, FunctionType) and value.__code__.co_filename.startswith("<")
    return is_function and value.__globals__ is not home


def described(cls: type) -> Iterator[tuple[str, Any]]:
    """What counts beside attributes: labels below the class, and values."""
    if type(cls) is not type:
        yield "__class__", type(cls)
    for name in _DESCRIBED:
        if (said := vars(cls).get(name, {})) != {}:  # who asks a class for annotations leaves an empty dict
            yield name, said
    yield from ((name, getattr(cls, name)) for name in _OF_STRUCTS if hasattr(type(cls), name))
    for name, field in vars(cls).get("__dataclass_fields__", {}).items():
        if field.metadata:
            yield f"{name}.metadata", dict(field.metadata)
    for base in cls.__mro__:  # also a library's generic model, of which only the name counts
        if arguments := vars(base).get("__pydantic_generic_metadata__", {}).get("args"):
            yield f"<arguments of {base.__name__}>", arguments
    if isinstance(cls, abc.ABCMeta) and (registered := _registered(cls)):
        yield "<registered>", registered


def _registered(cls: abc.ABCMeta) -> list[type]:
    dump = getattr(sys.modules.get("_abc"), "_get_dump", None)
    found = [] if dump is None else [kind for ref in dump(cls)[0] if (kind := ref()) is not None]
    return sorted(found, key=lambda kind: (str(kind.__module__), kind.__qualname__))


def annotations_of(cls: type) -> dict[str, Any]:
    found = vars(cls).get("__annotations__")
    return found if isinstance(found, dict) else {}


def variables_of(cls: type) -> list[str]:
    """The variables that are set and that a class of pydantic-settings may read: their names end in a field's
    name, or hold it before a delimiter. An alias is a text and names one itself."""
    if not any(base.__module__.partition(".")[0] == "pydantic_settings" for base in cls.__mro__[1:]):
        return []
    fields = tuple(name.lower() for name in annotations_of(cls))
    delimiter = getattr(cls, "model_config", {}).get("env_nested_delimiter")
    nested = [f"{name}{delimiter.lower()}" for name in fields] if delimiter else []
    names = ((name, name.lower()) for name in os.environ)
    return sorted(name for name, low in names if low.endswith(fields) or any(one in low for one in nested))
