"""What code may alter itself while it runs, told from its bytecode."""

from __future__ import annotations

import dis
import os
import re
from collections.abc import Iterable
from types import CodeType, FunctionType

from prepcache.keys.code.describe import SCALARS

_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_DEREF"})
_WRITES = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_WRITERS = frozenset(
    {
        "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft",
        "insert", "intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse",
        "rotate", "setdefault", "sort", "subtract", "symmetric_difference_update", "update",
        "__dict__", "vars",
    }
)  # fmt: skip
"""Methods of containers that change them, and what gives the dict behind an object."""
_ANYTHING = frozenset({"setattr", "delattr", "globals", "exec", "__setattr__"})
_FIXED = (*SCALARS, tuple, frozenset, type, FunctionType, os.PathLike)
_CONTAINERS = (dict, list, set, bytearray)
_NUMBER = re.compile(r"#\d+$")
_WORD = re.compile(r"\w+")


class Alters:
    """What the code that a recipe depends on may alter itself while it runs.

    Told from bytecode, so about names, not about objects: `setattr` with a computed name may mean any.

    Args:
        codes: of all functions, those of classes included, and of files that count whole.
    """

    def __init__(self, codes: Iterable[CodeType]) -> None:
        self._assigned: set[str] = set()
        self._written: set[str] = set()
        self._is_any = False
        for code in codes:
            self._note(code)

    def _note(self, code: CodeType) -> None:
        found = list(dis.get_instructions(code))
        self._assigned.update(str(i.argval) for i in found if i.opname in _STORES)
        names = set(code.co_names)
        self._is_any |= not _ANYTHING.isdisjoint(names)
        if not _WRITERS.isdisjoint(names) or any(i.opname in _WRITES for i in found):
            self._written |= names.union(code.co_freevars, code.co_varnames)
        for const in code.co_consts:
            if isinstance(const, CodeType):
                self._note(const)

    def may_alter(self, label: str, kind: type) -> bool:
        """Whether it may be the code itself that changed a value.

        Args:
            label: of the value; its last word is the name that code has for it.
            kind: its type. What an object does to itself is not told.
        """
        words = _WORD.findall(_NUMBER.sub("", label))
        name = words[-1] if words else label
        if self._is_any or name in self._assigned:
            return True
        return not issubclass(kind, _FIXED) and (not issubclass(kind, _CONTAINERS) or name in self._written)
