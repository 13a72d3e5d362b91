"""Settings: plain data that code reads by attribute, from a library's module or from an args namespace.

Of both only what is read counts, not all that lies beside it. So does what a job put among the builtins.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

from prepcache.keys.code.readable import SCALARS

_SHORT = 1000
"""Elements of a library's list, all that it holds included, that is still taken for a setting."""
_NO_SETTINGS = ("sys.path", "sys.meta_path")
_SHOWING = frozenset(
    {
        "print", "input", "help", "exit", "quit", "copyright", "credits", "license", "display",
        "get_ipython", "_",
    }
)  # fmt: skip
"""Builtins that jobs and shells replace to show things: what a function returns is not made of them."""


def is_setting(label: str, value: Any) -> bool:
    """Whether a library's attribute is plain data: a scalar, or short lists, dicts and namespaces of them."""
    rest, count = [value], 0
    while rest:
        one = rest.pop()
        if type(one) in SCALARS:
            continue
        if type(one) is types.SimpleNamespace:
            one = vars(one)
        if type(one) not in (list, tuple, dict):
            return False
        count += len(one)
        if count > _SHORT:  # or it holds itself
            return False
        rest.extend(one.values() if type(one) is dict else one)
    return label not in _NO_SETTINGS


def is_own_builtin(name: str) -> bool:
    """Whether a builtin is Python's, or one that shows something; else a job put it there."""
    value = getattr(builtins, name)
    if name in _SHOWING or name in ("Ellipsis", "NotImplemented") or name.startswith("__"):
        return True
    is_python = getattr(value, "__module__", None) in ("builtins", "_io", "io")
    return is_python and isinstance(value, type | types.BuiltinFunctionType)


def is_attribute_bag(value: Any) -> bool:
    """Whether an object is mere attributes: a SimpleNamespace, or argparse's Namespace."""
    cls = type(value)
    return cls is types.SimpleNamespace or (cls.__module__ == "argparse" and cls.__name__ == "Namespace")


def is_used_whole(bag: Any, chain: tuple[str, ...]) -> bool:
    """Whether a chain uses a bag as a whole, or by what its class says (`args.__dict__`)."""
    return not chain or (chain[0] not in vars(bag) and hasattr(type(bag), chain[0]))
