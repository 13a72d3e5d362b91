"""What Python and libraries make of the text of a class, and keep in tables of their own.

    __slots__, __match_args__    as the class has them
    annotations, bases           what stands in them beside types: `Annotated[int, LIMIT]`, `B[Literal[NAME]]`
    dataclasses, attrs           the metadata of fields; all else is in the methods that they make
    pydantic                     fields with their defaults, aliases and limits, private attributes, and the
                                 fields that validators and serializers are for
    pydantic-settings            the environment variables that fields are made of

Invariants:
    1. What pydantic completes or makes later than the class, at its first use, does not count: annotations
       that name what is not there yet, aliases that a generator makes. Neither do docstrings.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from typing import Any

from prepcache.keys.code.annotations import data_in
from prepcache.keys.encoding.instances import slots_of

Found = Iterator[tuple[str, Any]]
_BOUND = ("__slots__", "__match_args__")
_AGAIN = (str, tuple, list, dict, set, frozenset)
"""Types of `__slots__` that still hold the names once the class was made."""
_SETTINGS = "pydantic_settings"
_LATER = frozenset({"annotation", "return_type"})
_GENERATED = 1
"""The priority of an alias that a generator made."""


def described(cls: type) -> Found:
    """What a class keeps of what its text only names: labels below the class, and values."""
    if type(cls) is not type:
        yield "__class__", type(cls)
    if "__annotations__" in vars(cls):
        yield "__annotations__", _annotations_of(cls)
    for name in _BOUND:
        if name in vars(cls):
            yield name, _names_in(cls, vars(cls)[name])
    for name, annotation in _annotations_of(cls).items():
        if not isinstance(annotation, str) and (data := list(data_in(annotation))):
            yield f"{name}:", data
    if data := [part for base in vars(cls).get("__orig_bases__", ()) for part in data_in(base)]:
        yield "<bases>", data
    for name, field in vars(cls).get("__dataclass_fields__", {}).items():
        if field.metadata:
            yield f"{name}.metadata", dict(field.metadata)
    for attribute in vars(cls).get("__attrs_attrs__", ()):
        if attribute.metadata:
            yield f"{attribute.name}.metadata", dict(attribute.metadata)
    yield from _of_pydantic(cls)


def texts_of(cls: type) -> list[str]:
    """The annotations of a class that are text."""
    return [annotation for annotation in _annotations_of(cls).values() if isinstance(annotation, str)]


def _annotations_of(cls: type) -> dict[str, Any]:
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
    for kind in slots_of(type(decorators)):  # the methods that pydantic calls, and for what
        for name, decorator in sorted(getattr(decorators, kind).items()):
            given = _public(decorator.info)
            given.pop("description", None)  # of a computed field, its docstring
            yield f"<{kind}>.{name}", given


def _public(info: Any) -> dict[str, Any]:
    """What a field or decorator of pydantic's was given."""
    names = [name for name in slots_of(type(info)) if not name.startswith("_") and name not in _LATER]
    given = {name: getattr(info, name, None) for name in names}
    if given.get("alias_priority") in (None, _GENERATED):  # a generator makes one later, or has made it
        given = {name: value for name, value in given.items() if "alias" not in name}
    return given


def variables_of(cls: type) -> list[str]:
    """The environment variables that are set and that a class of pydantic-settings makes its fields of.

    Their names are put together: of a prefix and the field's name, or of an alias, and of names within it.
    """
    if not any(base.__module__.partition(".")[0] == _SETTINGS for base in cls.__mro__[1:]):
        return []
    config = getattr(cls, "model_config", {})
    wanted: set[str] = set()
    for name, field in vars(cls).get("__pydantic_fields__", {}).items():
        alias = getattr(field, "validation_alias", None)
        choices = getattr(alias, "choices", [alias or config.get("env_prefix", "") + name])
        wanted.update(choice.lower() for choice in choices if isinstance(choice, str))
    delimiter = config.get("env_nested_delimiter")
    nested = tuple(part + delimiter.lower() for part in wanted) if delimiter else ()
    return sorted(v for v in os.environ if v.lower() in wanted or v.lower().startswith(nested))
