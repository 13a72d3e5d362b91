"""Which attributes a method reads of its object: all that counts of it, unless the method hands it on.

    class Data(LightningDataModule):
        def prepare(self, path): return load(path, self.size)      # not self.trainer, not self.batch_size

Read from bytecode, through the methods and properties that it reaches by `self`.

Invariants:
    1. Where the object may be read otherwise (it is passed on or stored, or its class looks attributes up by
       code of its own), the answer is None: then all of it counts.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any

from prepcache.keys.code.cells import OF_FRAMES
from prepcache.keys.code.names import all_names

_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")
_STORES = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")
_READS = ("LOAD_ATTR", "LOAD_METHOD")
_WRITES = ("STORE_ATTR", "DELETE_ATTR")
_UNSEEN = OF_FRAMES | {"super", "__dict__"}


def attributes_read(owner: Any, function: Any) -> list[tuple[str, Any]] | None:
    """The attributes of an object that one of its methods reads, with their values; None for all of them.

    Args:
        function: the method's function.
    """
    cls = type(owner)
    if _member(cls, "__getattribute__") is not vars(object)["__getattribute__"]:
        return None
    state = getattr(owner, "__dict__", {})
    found: dict[str, Any] = {}
    queue, seen = [function], set()
    while queue:
        function = queue.pop()
        if function in seen:
            continue
        seen.add(function)
        names = _read_by(function)
        if names is None:
            return None
        for name in names:
            member = _member(cls, name)
            if isinstance(member, property | functools.cached_property):
                queue.append(member.fget if isinstance(member, property) else member.func)
            elif isinstance(member, MemberDescriptorType):
                if (value := getattr(owner, name, _ABSENT)) is not _ABSENT:
                    found[name] = value
            elif name in state:
                found[name] = state[name]
            elif isinstance(member, FunctionType):
                queue.append(member)
            elif member is _ABSENT:
                if _member(cls, "__getattr__") is not _ABSENT:
                    return None
            elif hasattr(type(member), "__get__") and not isinstance(member, staticmethod | classmethod):
                return None
    return sorted(found.items())


_ABSENT = object()


def _member(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), _ABSENT)


def _read_by(function: Any) -> set[str] | None:
    """The attributes that a function reads of its first argument; None if it does more with it."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not code.co_argcount or not _UNSEEN.isdisjoint(all_names(code)):
        return None
    names = set(_reads(code, code.co_varnames[0]))
    return None if "" in names else names


def _reads(code: CodeType, name: str) -> Iterator[str]:
    """The attributes that code reads of a variable, nested code included; empty for any other use of it."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    for at, step in enumerate(steps):
        operand = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name not in operand:
            continue
        if step.opname.startswith(_STORES):
            yield ""
        if not step.opname.startswith(_LOADS):
            continue
        after = steps[at + 1]
        if after.opname == "COPY" and after.arg == 1:  # `self.n += 1`
            after = steps[at + 2]
        if operand[-1] != name or operand.count(name) > 1 or after.opname not in _READS + _WRITES:
            yield ""
        elif after.opname in _READS:
            yield str(after.argval)
    for const in code.co_consts:
        if isinstance(const, CodeType) and name in const.co_freevars:
            yield from _reads(const, name)
