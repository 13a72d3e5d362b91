"""Settings: plain data that code reads from a library. Only what is read counts, not all beside it."""

from __future__ import annotations

import enum
import types
from collections import Counter, defaultdict
from typing import Any

from prepcache.keys.code.describe import SCALARS

NONE = object()
"""Stands for what is no setting."""
_SHORT = 1000
"""Elements of a library's list, all that it holds included, that is still taken for a setting."""
_NO_SETTINGS = ("sys.path", "sys.meta_path")


def setting_of(label: str, value: Any) -> Any:
    """What counts of a library's attribute: plain data (a scalar, or short lists, dicts and namespaces of
    them) as it is, and the plain data in a dict, list or set of a library's own class, as matplotlib's
    `rcParams` are. The rest there may be code that is registered as modules are loaded, and a table of counts
    or of defaults its readers fill. `NONE` for all else.
    """
    if _is_plain(value):
        return NONE if label in _NO_SETTINGS else value
    if isinstance(value, Counter | defaultdict):
        return NONE
    if isinstance(value, dict) and type(value) is not dict and dict.__len__(value) <= _SHORT:
        # Read by the methods of the built-in types alone: theirs may warn, or load a backend.
        named = {name: part for name, part in dict.items(value) if type(name) in SCALARS}
        shown = {name: str(p) if isinstance(p, enum.Enum) else p for name, p in named.items()}
        return {name: part for name, part in shown.items() if _is_plain(part)}
    for kind in (list, set):
        if isinstance(value, kind) and _is_plain(plain := kind(value)):
            return plain
    return NONE


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
