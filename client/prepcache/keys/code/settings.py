"""Settings: plain data that code reads by attribute, from a library's module or from an args namespace.

Of both only what is read counts, not all that lies beside it.
"""

from __future__ import annotations

import types
from typing import Any

from prepcache.keys.code.readable import SCALARS

_SHORT = 1000
"""Elements of a library's list that is still taken for a setting."""
_NO_SETTINGS = ("sys.path", "sys.meta_path")


def is_setting(label: str, value: Any) -> bool:
    """Whether a library's attribute is plain data: a scalar, or a short list, dict or namespace of them."""
    if type(value) in SCALARS:
        return True
    if type(value) is types.SimpleNamespace:
        value = vars(value)
    elements = value.values() if type(value) is dict else value
    is_short = type(value) in (list, tuple, dict) and len(value) <= _SHORT
    return is_short and label not in _NO_SETTINGS and all(type(element) in SCALARS for element in elements)


def is_attribute_bag(value: Any) -> bool:
    """Whether an object is mere attributes: a SimpleNamespace, or argparse's Namespace."""
    cls = type(value)
    return cls is types.SimpleNamespace or (cls.__module__ == "argparse" and cls.__name__ == "Namespace")


def is_used_whole(bag: Any, chain: tuple[str, ...]) -> bool:
    """Whether a chain uses a bag as a whole, or by what its class says (`args.__dict__`)."""
    return not chain or (chain[0] not in vars(bag) and hasattr(type(bag), chain[0]))
