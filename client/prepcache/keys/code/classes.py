"""Which attributes of a class count: all but what Python, dataclasses, enums and pydantic put there.

Of a class of an extension module of the project, whose bytes count, so does what was put there beside its C.

Invariants:
    1. An attribute is left out only by a name or type listed here; what is unknown counts.
    2. Attributes are read from `vars()`, so no descriptor runs.
"""

from __future__ import annotations

import abc
import enum
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from types import FunctionType
from typing import Any

from prepcache.keys.code.labels import file_of

_SKIPPED = frozenset(
    {
        "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__",
        "__firstlineno__", "__static_attributes__", "__orig_bases__", "__parameters__", "__match_args__",
        "__abstractmethods__", "__dataclass_fields__", "__dataclass_params__", "__final__", "__signature__",
        "__protocol_attrs__", "__non_callable_proto_members__", "__annotate__", "__annotate_func__",
        "__annotations_cache__", "__classcell__", "__type_params__", "__private_attributes__",
        "__class_vars__", "_abc_impl", "_is_protocol", "_is_runtime_protocol",
    }
)  # fmt: skip
"""What the text of the class says already, or what is bookkeeping, or counts by `described` (fields.py)."""

_SKIPPED_PREFIXES = ("__pydantic", "__attrs_")
_C_DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)
_EXTENSIONS = tuple(EXTENSION_SUFFIXES)
_IN_C = frozenset({"builtin_function_or_method", "cython_function_or_method", "instancemethod"})
_SLOTS_NOTED = "__slotnames__"
"""What `copyreg` notes in a class once somebody has copied an instance."""
_ENUM_STATE = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})


def attributes_of(cls: type, is_library: Callable[[FunctionType], bool]) -> Iterator[tuple[str, Any]]:
    """The attributes of a class that count, with their values, in the order of their names.

    Args:
        cls: a class of the project.
        is_library: tells functions that a library put there (by a base or a decorator).
    """
    if issubclass(cls, enum.Enum):
        yield "<members>", {name: _member(member) for name, member in cls.__members__.items()}
        keeps: Callable[[str, Any, Callable[[FunctionType], bool]], bool] = _is_of_enum
    elif issubclass(cls, tuple) and "_fields" in vars(cls):
        keeps = _is_of_named_tuple
    elif (extension := _extension_of(cls.__module__)) is not None:
        keeps = _not_in_c(extension)
    else:
        keeps = _always
    for name, value in sorted(vars(cls).items(), key=lambda pair: str(pair[0])):
        skipped = name in _SKIPPED or name.startswith(_SKIPPED_PREFIXES) or isinstance(value, _C_DESCRIPTORS)
        skipped = skipped or (name == "__hash__" and _is_generated(cls, value))
        skipped = skipped or type(value).__name__ == "CField"  # of ctypes: made of the class's `_fields_`
        skipped = skipped or name == _SLOTS_NOTED
        is_member = issubclass(cls, enum.Enum) and name in cls.__members__
        if not (skipped or is_member) and keeps(name, value, is_library):
            yield name, value
    if isinstance(cls, abc.ABCMeta) and (registered := _registered(cls)):
        yield "<registered>", registered


def _is_generated(cls: type, value: Any) -> bool:
    """Whether a library made a method from text of its own.

    A hash so made follows from the fields, and attrs' holds that of a text, another in each process.
    """
    home = getattr(sys.modules.get(cls.__module__), "__dict__", None)
    is_function = isinstance(value, FunctionType) and value.__code__.co_filename.startswith("<")
    return is_function and value.__globals__ is not home


def _registered(cls: abc.ABCMeta) -> list[type]:
    """The classes that `cls.register` was given: `isinstance` answers for them."""
    dump = getattr(sys.modules.get("_abc"), "_get_dump", None)
    found = [] if dump is None else [kind for ref in dump(cls)[0] if (kind := ref()) is not None]
    return sorted(found, key=lambda kind: (str(kind.__module__), kind.__qualname__))


def _member(member: enum.Enum) -> Any:
    more = {name: value for name, value in vars(member).items() if name not in _ENUM_STATE}
    return (member._value_, more) if more else member._value_


def _always(_: str, __: Any, ___: Callable[[FunctionType], bool]) -> bool:
    return True


def _extension_of(module: object) -> str | None:
    """The extension module that a module is, or was made by."""
    name, file = file_of(str(module))
    return name if file is not None and file.endswith(_EXTENSIONS) else None


def _not_in_c(extension: str) -> Callable[[str, Any, Callable[[FunctionType], bool]], bool]:
    """In a class of an extension module: not its functions in C, nor pointers to them."""

    def is_in_c(value: Any) -> bool:
        kind = type(value).__name__
        function = value.__func__ if kind == "instancemethod" else value
        if kind not in _IN_C:
            return kind == "PyCapsule"
        return function.__module__ is None or _extension_of(function.__module__) == extension

    def keeps(_: str, value: Any, __: Callable[[FunctionType], bool]) -> bool:
        if isinstance(value, property):
            return not all(f is None or is_in_c(f) for f in (value.fget, value.fset, value.fdel))
        return not is_in_c(value.__func__ if isinstance(value, staticmethod | classmethod) else value)

    return keeps


def _is_of_enum(name: str, value: Any, is_library: Callable[[FunctionType], bool]) -> bool:
    """In an enum: members count as a table; what `EnumType` puts beside them is machinery."""
    inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if isinstance(inner, FunctionType):
        return not is_library(inner)
    return isinstance(inner, property) or not (name.startswith("_") and name.endswith("_"))


def _is_of_named_tuple(_: str, value: Any, is_library: Callable[[FunctionType], bool]) -> bool:
    """In a namedtuple: not the generated constructor and fields; `_fields` and `_field_defaults` count."""
    inner = getattr(value, "__func__", value)
    if isinstance(inner, FunctionType):
        return not inner.__code__.co_filename.startswith("<") and not is_library(inner)
    is_generated = isinstance(value, classmethod | types.BuiltinFunctionType)
    return not is_generated and type(value).__name__ != "_tuplegetter"
