"""What code reads of an object, where that is all that counts of it: of `self`, and of parsed arguments.

    class Data(LightningDataModule):
        def prepare(self, path): return load(path, self.size)      # not self.trainer, not self.batch_size

    def main():
        args = parser.parse_args()
        def prep(path): return load(path, args.size)               # not args.lr

Read from bytecode, through the methods and properties that a method reaches by `self`.

Invariants:
    1. Where the object may be read otherwise (it is passed on or stored, its class finds or sets attributes
       by code of its own, a text or the frame may lead to it), all of it counts.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any

from prepcache.keys.code.dynamic_lookups import FRAME_READERS
from prepcache.keys.code.names import all_names

_WHOLE = ""
"""Stands for a use of an object that is no use of one attribute."""
_READS = ("LOAD_ATTR", "LOAD_METHOD")
_WRITES = ("STORE_ATTR", "DELETE_ATTR")
_BY_FRAME = FRAME_READERS | {
    "dir", "exec", "globals", "locals", "vars", "f_locals", "_getframe", "currentframe", "stack",
}  # fmt: skip
_ABSENT = object()


def attributes_read(owner: Any, function: Any) -> list[tuple[str, Any]] | None:
    """The attributes of an object that one of its methods reads, with their values; None for all of them.

    Args:
        function: the method's function.
    """
    cls = type(owner)
    if _has_own(cls, "__getattribute__"):
        return None
    has_own_setter = _has_own(cls, "__setattr__") or _has_own(cls, "__delattr__")
    state = getattr(owner, "__dict__", {})
    found: dict[str, Any] = {}
    queue, seen = [function], set()
    while queue:
        code = getattr(queue.pop(), "__code__", None)
        if code in seen:
            continue
        seen.add(code)
        if not isinstance(code, CodeType) or not code.co_argcount:
            return None
        names = all_names(code)
        uses = set(_uses(code, code.co_varnames[0]))
        if (_WHOLE, True) in uses or not names.isdisjoint(_BY_FRAME | {"super", "__dict__"}):
            return None
        for name, is_read in uses:
            member = _member(cls, name)
            if isinstance(member, property):
                queue += [part for part in (member.fget, member.fset, member.fdel) if part is not None]
            elif not is_read:
                is_slot = isinstance(member, MemberDescriptorType)
                if has_own_setter or (hasattr(type(member), "__set__") and not is_slot):
                    return None
            elif isinstance(member, MemberDescriptorType):
                found.update({name: getattr(owner, name)} if hasattr(owner, name) else {})
            elif isinstance(member, functools.cached_property):
                queue.append(member.func)
                found.update({name: state[name]} if name in state else {})
            elif name in state and not hasattr(type(member), "__set__"):
                found[name] = state[name]
            elif isinstance(member, FunctionType):
                queue.append(member)
            elif member is _ABSENT:
                if _member(cls, "__getattr__") is not _ABSENT:
                    return None
            elif hasattr(type(member), "__get__") and not isinstance(member, staticmethod | classmethod):
                return None
    return sorted(found.items())


def cell_chains(code: CodeType, name: str) -> set[tuple[str, ...]]:
    """The attributes that code uses of a variable around it; `()` for a use as a whole."""
    found: set[tuple[str, ...]] = {(used,) if used else () for used, _ in _uses(code, name)}
    return found if found and _BY_FRAME.isdisjoint(all_names(code)) else {()}


def is_attribute_bag(value: Any) -> bool:
    """Whether an object is mere attributes: a SimpleNamespace, or argparse's Namespace."""
    cls = type(value)
    return cls is types.SimpleNamespace or (cls.__module__ == "argparse" and cls.__name__ == "Namespace")


def is_used_whole(bag: Any, chain: tuple[str, ...]) -> bool:
    """Whether a chain uses a bag as a whole, or by what its class says (`args.__dict__`)."""
    return not chain or (chain[0] not in vars(bag) and hasattr(type(bag), chain[0]))


def _member(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), _ABSENT)


def _has_own(cls: type, name: str) -> bool:
    return _member(cls, name) is not vars(object)[name]


def _uses(code: CodeType, name: str) -> Iterator[tuple[str, bool]]:
    """The attributes of a variable that code uses, and whether it reads them or sets them; nested code
    included."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    for at, step in enumerate(steps):
        operand = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name not in operand or not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            if name in operand and step.opname.startswith(("STORE_FAST", "STORE_DEREF", "DELETE_")):
                yield _WHOLE, True
            continue
        after = steps[at + 1]
        if after.opname == "COPY" and after.arg == 1:  # `self.n += 1`
            after = steps[at + 2]
            yield str(after.argval), False
        if operand[-1] != name or operand.count(name) > 1 or after.opname not in _READS + _WRITES:
            yield _WHOLE, True
        else:
            yield str(after.argval), after.opname in _READS
    for const in code.co_consts:
        if isinstance(const, CodeType) and name in const.co_freevars:
            yield from _uses(const, name)
