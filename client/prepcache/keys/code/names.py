"""The names in code: the globals that it reads, what it reads of an object, and what it may alter itself.

Invariants:
    1. Every global that code, or code nested in it, loads by name is among its chains, with what follows in a
       chain of attribute loads; `()` stands for a use as a whole.
    2. Where an object may be read otherwise than by its attributes' names (it is passed on or stored, its
       class has own code for attributes, a text or the frame may lead to it), all of it counts.
"""

from __future__ import annotations

import dis
import functools
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from inspect import CO_OPTIMIZED
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from prepcache.keys.code.fingerprint import instructions, nested
from prepcache.keys.encoding.builtins import attributes_of

_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_LOAD_NAMES = frozenset(
    dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)
_LOAD_ATTR = dis.opmap["LOAD_ATTR"]
_LOAD_METHOD = dis.opmap.get("LOAD_METHOD", -1)
_ATTR_SHIFT = 1 if sys.version_info >= (3, 12) else 0

SCALARS = (bool, int, float, complex, str, bytes, type(None))

SKIPPED_GLOBALS = frozenset(
    {
        "__builtins__", "__name__", "__file__", "__path__", "__spec__", "__loader__", "__package__",
        "__cached__", "__annotations__", "__warningregistry__", "__debug__", "__class__",
    }
)  # fmt: skip
FRAME_READERS = frozenset(
    {
        "query", "eval", "evaluate", "re_evaluate", "sql", "from_query", "execute", "read_where", "dmatrix",
        "dmatrices",
    }
)  # fmt: skip
"""They look up globals of their caller by a text: pandas, numexpr, duckdb, polars, PyTables, patsy."""
_BY_FRAME = FRAME_READERS | {
    "dir", "exec", "globals", "locals", "vars", "f_locals", "_getframe", "currentframe", "stack",
}  # fmt: skip
_USES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
_WHOLE = ""
"""A use of an object that is no use of one attribute."""
_ABSENT = object()
_ALWAYS_THERE = (FunctionType, staticmethod, classmethod)
_PLAIN = (staticmethod, classmethod)
_OF_DESCRIPTORS = ("__get__", "__set__", "__delete__")
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_DEREF"})
_WRITES_OF_ITEMS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
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

Chains = dict[str, set[tuple[str, ...]]]


@functools.lru_cache(maxsize=20_000)
def global_chains(code: CodeType) -> Chains:
    """Global name to the attribute chains read from it, nested code included."""
    chains: Chains = {}
    for root, chain in _all_chains(code):
        if root:
            chains.setdefault(root, set()).add(chain)
    return chains


def attributes_beyond(code: CodeType, space: Mapping[str, Any]) -> set[str]:
    """The attributes that code reads, but from modules that a namespace holds."""
    found = {root: isinstance(space.get(root), ModuleType) for root, _ in _all_chains(code)}
    return {name for root, chain in _all_chains(code) if not found[root] for name in chain}


@functools.lru_cache(maxsize=20_000)
def all_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    if not code.co_flags & CO_OPTIMIZED:
        names.discard("__doc__")  # a class body stores its docstring under that name
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names |= all_names(const)
    return names


@functools.lru_cache(maxsize=20_000)
def _all_chains(code: CodeType) -> set[tuple[str, tuple[str, ...]]]:
    """The attribute chains that code and code nested in it read, each with the global that it begins with; ""
    for another beginning."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    for one in nested(code):
        names = one.co_names
        root = ""
        chain: tuple[str, ...] = ()
        for _, op, arg in instructions(one) if names else ():
            if op in (_LOAD_ATTR, _LOAD_METHOD):
                chain = (*chain, names[arg >> _ATTR_SHIFT if op == _LOAD_ATTR else arg])
                continue
            found.add((root, chain))
            root, chain = "", ()
            if op == _LOAD_GLOBAL or op in _LOAD_NAMES:
                name = names[arg >> 1 if op == _LOAD_GLOBAL else arg]
                root = "" if name.startswith("@py") else name
        found.add((root, chain))
    return found


def attributes_read(owner: Any, function: Any) -> list[tuple[str, Any]] | None:
    """The attributes of an object that one of its methods reads, also through the methods and properties that
    it reaches by `self`; None for all of them."""
    cls, own = type(owner), attributes_of(owner)
    if _has_own(cls, "__getattribute__"):
        return None
    is_asked = _has_own(cls, "__getattr__")  # for what is not there, as by torch's modules
    is_told = _has_own(cls, "__setattr__") or _has_own(cls, "__delattr__")
    found: set[str] = set()
    queue, seen = [function], set()
    while queue:
        code = getattr(queue.pop(), "__code__", None)
        if code in seen:
            continue
        seen.add(code)
        if not isinstance(code, CodeType) or not code.co_argcount:
            return None
        uses = set(_uses(code, code.co_varnames[0]))
        if (_WHOLE, True) in uses or not all_names(code).isdisjoint(_BY_FRAME | {"super", "__dict__"}):
            return None
        found.update(name for name, is_read in uses if is_read)
        for name, is_read in uses:
            member = _member(cls, name)
            kind = type(member)  # exactly: a subclass may have a `__get__` of its own
            if is_told and not is_read:
                return None
            if is_asked and (kind is property or (name not in own and kind not in _ALWAYS_THERE)):
                return None
            if kind is FunctionType:
                queue.append(member)
            elif kind is property:
                queue += [part for part in (member.fget, member.fset, member.fdel) if part is not None]
            elif kind is functools.cached_property:
                queue.append(member.func)
            elif kind is MemberDescriptorType and name in own:
                continue
            elif kind not in _PLAIN and any(hasattr(kind, way) for way in _OF_DESCRIPTORS):
                return None
    return sorted((name, own[name]) for name in found & own.keys())


def cell_chains(code: CodeType, name: str) -> set[tuple[str, ...]]:
    """The attributes that code uses of a variable around it; `()` for a use as a whole."""
    found: set[tuple[str, ...]] = {(used,) if used else () for used, _ in _uses(code, name)}
    return found if found and _BY_FRAME.isdisjoint(all_names(code)) else {()}


def is_attribute_bag(value: Any) -> bool:
    cls = type(value)
    return cls is types.SimpleNamespace or (cls.__module__ == "argparse" and cls.__name__ == "Namespace")


def is_used_whole(bag: Any, chain: tuple[str, ...]) -> bool:
    """Whether a chain uses a bag as a whole, or by what its class says (`args.__dict__`)."""
    return not chain or (chain[0] not in vars(bag) and hasattr(type(bag), chain[0]))


def _member(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), _ABSENT)


def _has_own(cls: type, way: str) -> bool:
    return _member(cls, way) is not vars(object).get(way, _ABSENT)


def _uses(code: CodeType, name: str) -> Iterator[tuple[str, bool]]:
    """The attributes of a variable that code and code nested in it use, and whether they are read."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    for at, step in enumerate(steps):
        operand = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name not in operand or not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            if name in operand and step.opname.startswith(("STORE_FAST", "STORE_DEREF", "DELETE_")):
                yield _WHOLE, True
            continue
        is_augmented = steps[at + 1].opname == "COPY" and steps[at + 1].arg == 1  # `self.n += 1`
        after = steps[at + 1 + is_augmented]
        if operand[-1] != name or operand.count(name) > 1 or after.opname not in _USES:
            yield _WHOLE, True
        else:
            yield str(after.argval), after.opname != "STORE_ATTR"
            if is_augmented or after.opname == "DELETE_ATTR":  # which fails where there is none
                yield str(after.argval), False
    for const in code.co_consts:
        if isinstance(const, CodeType) and name in const.co_freevars:
            yield from _uses(const, name)


class Alters:
    """What some code may alter itself while it runs, told by names."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        self._assigned: set[str] = set()
        self._written: set[str] = set()
        self._is_any = False
        for code in (one for outer in codes for one in nested(outer)):
            steps = list(dis.get_instructions(code))
            self._assigned.update(str(step.argval) for step in steps if step.opname in _STORES)
            names = set(code.co_names)
            self._is_any |= not _ANYTHING.isdisjoint(names)
            if not _WRITERS.isdisjoint(names) or any(step.opname in _WRITES_OF_ITEMS for step in steps):
                self._written |= names.union(code.co_freevars, code.co_varnames)

    def may_alter(self, label: str, kind: type) -> bool:
        """Whether it may be the code itself that changed a value of a type. Its label ends in its name."""
        words = re.findall(r"\w+", re.sub(r"#\d+$", "", label))
        name = words[-1] if words else label
        if self._is_any or name in self._assigned:
            return True
        return not issubclass(kind, _FIXED) and (not issubclass(kind, _CONTAINERS) or name in self._written)
