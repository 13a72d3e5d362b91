"""Proxies: objects that pass for others, `__class__` and `__dict__` included, as wrapt's do.

What is asked of them by the usual ways, the wrapped object answers; so they are asked by the descriptors of
their type.

Invariants:
    1. A proxy is told by its type alone: one that has a `__wrapped__` and a `__class__` of its own.
"""

from __future__ import annotations

import contextlib
import gc
import types
from typing import Any

from prepcache.keys.code.fleeting import Parts

_STATE = "_self_"
"""How names begin of what belongs to a proxy, and not to what it wraps."""


def is_proxy(value: Any) -> bool:
    """Whether an object passes for the one that it wraps."""
    names = [vars(base) for base in type(value).__mro__[:-1]]
    return any("__class__" in space for space in names) and any("__wrapped__" in space for space in names)


def parts_of_proxy(value: Any) -> Parts:
    """What a proxy wraps, and its own state: in slots, in its own `__dict__`, or kept in C."""
    wrapped = object.__getattribute__(value, "__wrapped__")
    own: dict[str, Any] = {}
    for base in type(value).__mro__:
        for name, found in vars(base).items():
            is_slot = isinstance(found, types.MemberDescriptorType)
            is_in_c = isinstance(found, types.GetSetDescriptorType)
            if is_slot or (is_in_c and name.startswith(_STATE)):
                with contextlib.suppress(AttributeError):
                    own.setdefault(name, found.__get__(value))
            elif is_in_c and name == "__dict__":
                with contextlib.suppress(AttributeError):
                    space = found.__get__(value)
                    is_own = type(space) is dict and space is not getattr(wrapped, "__dict__", None)
                    own |= space if is_own else {}
    for held in gc.get_referents(value):  # a dict in C is to be had in no other way
        if type(held) is dict and held is not wrapped:
            own |= {n: part for n, part in held.items() if isinstance(n, str) and n.startswith(_STATE)}
    own.pop("__wrapped__", None)
    return [("__wrapped__", wrapped), *sorted(own.items())]
