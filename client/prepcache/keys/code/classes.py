"""What counts of a class: its attributes, and what Python and libraries keep of what its text only names.

All attributes count but what Python, dataclasses, enums and pydantic put there. Of a class of an extension
module of the project, whose bytes count, so does what was put there beside its C. Of the text count

    __slots__, __match_args__    as the class has them
    annotations, bases           with what stands in them beside types: `Annotated[int, LIMIT]`
    dataclasses, attrs           the metadata of fields; all else is in the methods that they make
    pydantic                     what fields, private attributes, validators and serializers were given
    pydantic-settings            the environment variables that fields are made of

Invariants:
    1. An attribute is left out only by a name or type listed here; what is unknown counts.
    2. Attributes are read from `vars()`, so no descriptor runs.
    3. What pydantic completes or makes later than the class, at its first use, does not count: annotations
       that name what is not there yet, aliases that a generator makes. Neither do docstrings.
"""

from __future__ import annotations

import abc
import collections
import enum
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from types import FunctionType
from typing import Any

from prepcache.keys.code.labels import file_of
from prepcache.keys.encoding.instances import slots_of

Found = Iterator[tuple[str, Any]]
_BOUND = ("__slots__", "__match_args__")
_AGAIN = (str, tuple, list, dict, set, frozenset)
"""Types of `__slots__` that still hold the names once the class was made."""
_SETTINGS = "pydantic_settings"
_LATER = frozenset({"annotation", "return_type"})
_GENERATED = 1
"""The priority of an alias that a generator made."""
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
"""What the text of the class says already, or what is bookkeeping, or counts by `described`."""

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
_BLANK = (
    enum.Enum("_", ()),
    enum.IntFlag("_", ()),
    enum.StrEnum("_", ()),
    collections.namedtuple("_", ()),
)
_COUNTED = frozenset({"_fields", "_field_defaults", "_boundary_"})
_MADE = frozenset(name for blank in _BLANK for name in vars(blank)) - _COUNTED
"""What an enum or namedtuple has of which the text says nothing."""
_ENUM_STATE = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})


def attributes_of(cls: type, is_library: Callable[[FunctionType], bool]) -> Iterator[tuple[str, Any]]:
    """The attributes of a class that count, with their values, in the order of their names.

    Args:
        cls: a class of the project.
        is_library: tells functions that a library put there (by a base or a decorator).
    """
    if issubclass(cls, enum.Enum):
        yield "<members>", {name: _member(member) for name, member in cls.__members__.items()}
        keeps: Callable[[str, Any, Callable[[FunctionType], bool]], bool] = _is_not_made
    elif issubclass(cls, tuple) and "_fields" in vars(cls):
        yield "<defaults>", getattr(cls.__new__, "__defaults__", None)
        keeps = _is_not_made
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


def _is_not_made(name: str, value: Any, is_library: Callable[[FunctionType], bool]) -> bool:
    """In an enum or namedtuple: not the machinery that its base puts there, unless the project replaced it.
    Members of an enum count as a table, and a namedtuple by `_fields` and `_field_defaults`."""
    if name not in _MADE:
        return type(value).__name__ != "_tuplegetter"
    inner = getattr(value, "__func__", value)
    inner = getattr(inner, "__wrapped__", inner)
    if not isinstance(inner, FunctionType):
        return False
    return not inner.__code__.co_filename.startswith("<") and not is_library(inner)


def described(cls: type) -> Found:
    """What a class keeps of what its text only names: labels below the class, and values."""
    if type(cls) is not type:
        yield "__class__", type(cls)
    if "__annotations__" in vars(cls):
        yield "__annotations__", annotations_of(cls)
    for name in _BOUND:
        if name in vars(cls):
            yield name, _names_in(cls, vars(cls)[name])
    if "__orig_bases__" in vars(cls):
        yield "__orig_bases__", vars(cls)["__orig_bases__"]
    for name, field in vars(cls).get("__dataclass_fields__", {}).items():
        if field.metadata:
            yield f"{name}.metadata", dict(field.metadata)
    for attribute in vars(cls).get("__attrs_attrs__", ()):
        if attribute.metadata:
            yield f"{attribute.name}.metadata", dict(attribute.metadata)
    yield from _of_pydantic(cls)


def annotations_of(cls: type) -> dict[str, Any]:
    """The annotations of a class, as far as they were evaluated with it."""
    found = vars(cls).get("__annotations__")
    return found if isinstance(found, dict) else {}


def _names_in(cls: type, value: Any) -> Any:
    """A table of names; where that was an iterator, or a view, which slots there are."""
    if isinstance(value, _AGAIN):
        return value
    return sorted(name for name, part in vars(cls).items() if isinstance(part, types.MemberDescriptorType))


def _of_pydantic(cls: type) -> Found:
    fields = vars(cls).get("__pydantic_fields__") or vars(cls).get("model_fields")
    for name, info in sorted(fields.items()) if isinstance(fields, dict) else ():
        yield f"{name}.field", _public(info)
    for name, info in sorted((vars(cls).get("__private_attributes__") or {}).items()):
        yield f"{name}.field", _public(info)
    decorators = vars(cls).get("__pydantic_decorators__")
    for kind in slots_of(*type(decorators).__mro__):  # the methods that pydantic calls, and for what
        for name, decorator in sorted(getattr(decorators, kind).items()):
            given = _public(decorator.info)
            given.pop("description", None)  # of a computed field, its docstring
            yield f"<{kind}>.{name}", given


def _public(info: Any) -> dict[str, Any]:
    """What a field or decorator of pydantic's was given."""
    slots = slots_of(*type(info).__mro__)
    names = [name for name in slots if not name.startswith("_") and name not in _LATER]
    given = {name: getattr(info, name, None) for name in names}
    if given.get("alias_priority") in (None, _GENERATED):  # a generator makes one later, or has made it
        given = {name: value for name, value in given.items() if "alias" not in name}
    return given


def variables_of(cls: type) -> list[str]:
    """The environment variables that are set and that a class of pydantic-settings may make its fields of:
    their names end in a field's, or hold it before a delimiter. An alias is a text and names one itself."""
    if not any(base.__module__.partition(".")[0] == _SETTINGS for base in cls.__mro__[1:]):
        return []
    fields = tuple(name.lower() for name in annotations_of(cls))
    delimiter = getattr(cls, "model_config", {}).get("env_nested_delimiter")
    nested = [f"{name}{delimiter.lower()}" for name in fields] if delimiter else []
    names = ((name, name.lower()) for name in os.environ)
    return sorted(name for name, low in names if low.endswith(fields) or any(one in low for one in nested))
