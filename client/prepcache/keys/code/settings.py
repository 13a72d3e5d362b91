"""Settings: plain data that code reads by attribute, from a library's module or from an args namespace.

Of both only what is read counts, not all that lies beside it.
"""

from __future__ import annotations

import enum
import types
from collections import Counter, defaultdict
from typing import Any

from prepcache.keys.code.describe import SCALARS

_SHORT = 1000
"""Elements of a library's list, all that it holds included, that is still taken for a setting."""
_NO_SETTINGS = ("sys.path", "sys.meta_path")
_FOUND_LATE = "backend"
"""matplotlib finds it out at the first figure."""


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


def held_settings(value: Any) -> Any:
    """The plain data in settings that are a dict, list or set of a library's own class, as matplotlib's
    `rcParams` are; None for all else. The rest there may be code that is registered as modules are loaded;
    and what a table of counts or of defaults holds, its readers put there.
    """
    is_own = isinstance(value, dict | list | set) and type(value) not in (dict, list, set)
    return _plain_part(value) if is_own and not isinstance(value, Counter | defaultdict) else None


def _plain_part(value: Any) -> Any:
    """The plain data that something holds, read by the methods of the built-in types alone."""
    if isinstance(value, dict) and dict.__len__(value) <= _SHORT:
        shown = {name: _shown(part) for name, part in dict.items(value) if type(name) in SCALARS}
        return {name: part for name, part in shown.items() if _is_plain(part) and name != _FOUND_LATE}
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


def is_attribute_bag(value: Any) -> bool:
    """Whether an object is mere attributes: a SimpleNamespace, or argparse's Namespace."""
    cls = type(value)
    return cls is types.SimpleNamespace or (cls.__module__ == "argparse" and cls.__name__ == "Namespace")


def is_used_whole(bag: Any, chain: tuple[str, ...]) -> bool:
    """Whether a chain uses a bag as a whole, or by what its class says (`args.__dict__`)."""
    return not chain or (chain[0] not in vars(bag) and hasattr(type(bag), chain[0]))
