"""What annotations say: the classes and functions that they name, and the data in them.

size: Annotated[int, LIMIT]        int is a type, LIMIT is data
def f(x: "Pair"): ...              text, which will mean what is there when somebody reads it
"""

from __future__ import annotations

import types
import typing
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from prepcache.keys.code.describe import SCALARS
from prepcache.keys.code.names import global_chains

_TYPING = frozenset({"typing", "typing_extensions", "annotationlib"})
_NO_DATA = type | types.EllipsisType | ModuleType
_LONGEST = 200
"""Characters of a text that is taken for an annotation."""


def is_alias(value: Any) -> bool:
    """Whether a value stands for types, and may hold code: `Annotated[int, AfterValidator(check)]`."""
    return typing.get_origin(value) is not None or type(value).__name__ == "TypeAliasType"


def named_in(annotation: Any) -> Iterator[Any]:
    """The classes and functions in an annotation, and the annotation itself if it may hold more."""
    if isinstance(annotation, FunctionType | type) or is_alias(annotation):
        yield annotation
    for part in typing.get_args(annotation):
        yield from named_in(part)


@lru_cache(maxsize=4096)
def names_in(annotation: str) -> tuple[str, ...]:
    """The dotted names in an annotation that is written as text, and in texts within it."""
    found: set[str] = set()
    queue: list[Any] = [annotation]
    for text in queue:
        if not isinstance(text, str) or len(text) > _LONGEST:
            continue
        with suppress(SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(text, "<annotation>", "eval", dont_inherit=True)
            found |= {
                ".".join((name, *chain)) for name, chains in global_chains(code).items() for chain in chains
            }
            queue += [const for const in code.co_consts if const != text]
    return tuple(sorted(found))


def data_in(annotation: Any) -> Iterator[Any]:
    """What an annotation holds that is no type: `LIMIT` in `Annotated[int, LIMIT]`."""
    parts = annotation if isinstance(annotation, list) else typing.get_args(annotation)
    for part in parts:
        yield from data_in(part)
    is_type = annotation is None or isinstance(annotation, _NO_DATA) or type(annotation).__module__ in _TYPING
    if not (is_type or is_alias(annotation) or isinstance(annotation, list)):
        yield annotation


def shape_of(annotation: Any) -> str:
    """What an annotation says, by names: whatever is given a function may read its annotations."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return f"{annotation.__module__}.{annotation.__qualname__}"
    if isinstance(annotation, SCALARS):
        return repr(annotation)
    kind = typing.get_origin(annotation) or type(annotation)
    parts = annotation if isinstance(annotation, list | tuple) else typing.get_args(annotation)
    name = getattr(annotation, "__name__", "")
    return f"{shape_of(kind)} {name}[{', '.join(map(shape_of, parts))}]"


def may_be_named(value: Any, rest: list[str], in_text: bool) -> bool:
    """Whether what an annotation or decorator names counts: code, what stands for types, in text also data.

    Args:
        value: what the first name stands for; None for what is not there.
        rest: the names behind it.
        in_text: whether the annotation is text.
    """
    if isinstance(value, ModuleType):
        return bool(rest)
    is_code = isinstance(value, FunctionType | type) or is_alias(value)
    return is_code or (in_text and any(True for _ in data_in(value)))
