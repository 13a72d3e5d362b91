"""Settings: plain data that code reads by attribute, from a library's module or from an args namespace.

Of both only what is read counts, not all that lies beside it. So does what a job put among the builtins.
See NOTE [ Settings in a library's own types ].
"""

from __future__ import annotations

import builtins
import enum
import types
from collections import Counter, defaultdict
from typing import Any

from prepcache.keys.code.describe import SCALARS

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
    return _is_plain(value) and label not in _NO_SETTINGS


def _is_plain(value: Any) -> bool:
    rest, count = [value], 0
    while rest:
        one = rest.pop()
        if type(one) in SCALARS:
            continue
        if type(one) is types.SimpleNamespace:
            one = vars(one)
        if type(one) not in (list, tuple, dict, set, frozenset):
            return False
        count += len(one)
        if count > _SHORT:  # or it holds itself
            return False
        rest.extend(one.values() if type(one) is dict else one)
    return True


# NOTE [ Settings in a library's own types ]
#     matplotlib's rcParams are a dict of a class of its own, pandas' options an object that looks into one.
#     Such count by what they hold of plain data, under names that are plain. The rest may be code that is
#     registered there as modules are loaded; and what a table of counts or of defaults holds, its readers
#     put there.
#     Which of its backends draws, matplotlib finds out at the first figure; all that end in `agg` draw alike.
_MADE_BY_READERS = (Counter, defaultdict)
_DRAWS_ALIKE = "agg"


def held_settings(value: Any, chain: tuple[str, ...]) -> tuple[str, Any] | None:
    """What a chain of attributes reads from settings that are an object of a library's own class.

    Returns:
        the part of the chain that leads there, as a label ends in it, and the data; None for all else.
    """
    cls, path = type(value), ""
    if cls.__name__ == "DictWrapper" and cls.__module__.startswith("pandas."):
        value = vars(value).get("d")
        while chain and type(value) is dict and chain[0] in value:
            path, value, chain = f"{path}.{chain[0]}", value[chain[0]], chain[1:]
        return path, value if callable(value) else _plain_part(value)
    if isinstance(value, (dict, list, set)) and not isinstance(value, _MADE_BY_READERS):
        return (path, _plain_part(value)) if cls not in (dict, list, set) else None
    return None


def _plain_part(value: Any) -> Any:
    """The plain data that something holds, read by the methods of the built-in types alone."""
    if isinstance(value, dict) and dict.__len__(value) <= _SHORT:
        shown = {name: _shown(part) for name, part in dict.items(value) if type(name) in SCALARS}
        return {name: part for name, part in shown.items() if _is_plain(part) and not _is_found(name, part)}
    if isinstance(value, list | set):
        value = (list if isinstance(value, list) else set)(value)
    return value if _is_plain(value) else None


def _shown(part: Any) -> Any:
    """A setting, as plain data if it can be told so."""
    if type(part) is dict:
        return _plain_part(part)
    if isinstance(part, enum.Enum):
        return str(part)
    return list(part) if type(part).__module__ == "cycler" else part


def _is_found(name: Any, part: Any) -> bool:
    return name == "backend" and type(part) is str and part.lower().endswith(_DRAWS_ALIKE)


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
