"""Items that are objects of other classes than the canonical encoding knows: by class and state, as run-time
values are, with the code that they hold.

What an item says is a name: of its class, of a function. What that name stands for counts in the recipe; so
each is noted (`Walk.classes`), and `recipes.with_classes` counts those of the project by their definitions.

Invariants:
    1. No state is left out silently: what an object does not give away is refused.
    2. Whatever a function stands for (an attribute of any name, what an object is made anew by), it is noted.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

from prepcache.keys.code import labels
from prepcache.keys.code.project import Place, Places
from prepcache.keys.code.values import Unstable, parts_of
from prepcache.keys.encoding.encoder import Put, length, text_bytes
from prepcache.keys.environment import Environment

if TYPE_CHECKING:
    from prepcache.keys.item_batches import Walk


def put_object(walk: Walk, value: Any, put: Put) -> None:
    """Writes an object by its class and state; where it reaches itself, by how deep that stands above."""
    if id(value) in walk.above:
        put(b"Y" + length(walk.above.index(id(value))))
        return
    cls = type(value)
    try:
        parts = parts_of(value, is_library=_is_library(cls))
    except Unstable as error:
        raise walk.refuse(
            f"{cls.__module__}.{cls.__qualname__} has no stable bytes ({error}); {walk.ways_out}"
        ) from error
    put(b"O")
    walk.put_class_of(value, put)
    put(length(len(parts)))
    walk.above.append(id(value))
    walk.opaque_depth += 1
    for name, part in parts:
        put(text_bytes(name))
        walk.step(part, name, put)
    walk.opaque_depth -= 1
    walk.above.pop()


def code_of(walk: Walk, value: Any) -> bytes | None:
    """A function, class, method or partial in an item; None for what else is code."""
    if getattr(value, "__module__", None) == "builtins":
        return None
    if isinstance(value, type):
        walk.classes[value] = None
        return f"class:{value.__module__}.{value.__qualname__}".encode()
    if isinstance(value, FunctionType):
        walk.classes[value] = None
        return f"function:{value.__module__}.{value.__qualname__}".encode()
    if isinstance(value, types.MethodType):
        return b"method:" + _bound(walk, value.__self__, value.__func__)
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords, vars(value))
        steps = ("func", "args", "keywords", "__dict__")
        return b"partial:" + b"".join(map(walk.part, parts, steps))
    if isinstance(value, types.BuiltinFunctionType):
        name = f"builtin:{value.__module__}.{value.__qualname__}:".encode()
        owner = value.__self__
        is_plain = owner is None or isinstance(owner, type | types.ModuleType)
        return name if is_plain else name + walk.part(owner, "__self__")
    return None


def _bound(walk: Walk, owner: Any, function: Callable[..., Any]) -> bytes:
    return walk.part(owner, "__self__") + walk.part(function, "__func__")


def _is_library(cls: type) -> bool:
    return labels.place_of_class(cls, _places(tuple(sys.path))) is not Place.PROJECT


@lru_cache(maxsize=1)
def _places(path: tuple[str, ...]) -> Places:
    return Places(Environment(path).installed)
