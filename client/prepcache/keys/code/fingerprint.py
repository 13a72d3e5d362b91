"""The fingerprint of a loaded code object: its instructions with constants and names resolved and jumps
counted in instructions, without positions, docstrings, NOPs and inline caches.

Invariants:
    1. Code objects with equal fingerprints run alike under one minor version of Python, which is in the key.
    2. A fingerprint depends neither on the hash seed nor on what has run: specialised instructions count as
       the original ones.
"""

from __future__ import annotations

import dis
import functools
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from types import CodeType
from typing import Any

from blake3 import blake3

CACHE = dis.opmap.get("CACHE", 0)
EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_NOP = dis.opmap["NOP"]
_CONSTS = frozenset(dis.hasconst)
_CONST_LOADS = frozenset(dis.opmap[n] for n in ("LOAD_CONST", "LOAD_SMALL_INT") if n in dis.opmap)
_JUMPS = frozenset(dis.hasjrel)
_BACKWARD = frozenset(op for name, op in dis.opmap.items() if "JUMP_BACKWARD" in name)
_HAS_NAME = frozenset(dis.hasname)
NAME_SHIFTS = {dis.opmap["LOAD_GLOBAL"]: 1}  # bits of an argument that are flags, below the index of a name
if sys.version_info >= (3, 12):
    NAME_SHIFTS |= {dis.opmap["LOAD_ATTR"]: 1, dis.opmap["LOAD_SUPER_ATTR"]: 2}
_STORE_NAME = dis.opmap["STORE_NAME"]
_OF_TEXT = frozenset({"__doc__", "__firstlineno__"})
_HAS_DOCSTRING = 0x4000000
_ADDRESS = re.compile(r"\d{6,}$")


@functools.lru_cache(maxsize=20_000)
def fingerprint(code: CodeType) -> str:
    return blake3(repr(_shape(code)).encode("utf-8", "surrogatepass")).hexdigest()


def without_address(name: str, code: CodeType) -> str:
    """A variable's name; in code made from text (beartype's) without an address at its end."""
    return _ADDRESS.sub("", name) if code.co_filename.startswith("<") else name


def nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)


def instructions(code: CodeType) -> Iterator[tuple[int, int, int]]:
    """Code unit, operation and argument of each instruction but caches."""
    raw, extended = code.co_code, 0
    for unit, (op, low) in enumerate(zip(raw[::2], raw[1::2], strict=True)):
        if op == EXTENDED_ARG:
            extended = (extended | low) << 8
        elif op != CACHE:
            yield unit, op, extended | low
            extended = 0


def _shape(code: CodeType) -> tuple[Any, ...]:
    steps, handlers = _steps(code)
    variables = (code.co_varnames, code.co_freevars, code.co_cellvars)
    named = (tuple(without_address(name, code) for name in names) for names in variables)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    return (steps, handlers, *named, *counts, code.co_flags & ~_HAS_DOCSTRING, code.co_name)


def _steps(code: CodeType) -> tuple[list[Any], list[Any]]:
    raw, consts, names = code.co_code, code.co_consts, code.co_names
    is_body = not code.co_flags & CO_OPTIMIZED
    steps: list[Any] = []
    units: list[int] = []  # where each step stands
    jumps: list[tuple[int, int]] = []
    for at, op, arg in instructions(code):
        if op == _NOP:
            continue
        step: Any = (op, arg)
        if op in _CONSTS:
            step = (op, _const(consts[arg]))
        elif op in _HAS_NAME:
            shift = NAME_SHIFTS.get(op, 0)
            name = names[arg >> shift]
            if is_body and op == _STORE_NAME and name in _OF_TEXT and steps and steps[-1][0] in _CONST_LOADS:
                steps.pop()
                units.pop()
                continue
            step = (op, name, arg & ((1 << shift) - 1))
        elif op in _JUMPS:
            after = at + 1
            while raw[2 * after : 2 * after + 1] == bytes([CACHE]):
                after += 1
            jumps.append((len(steps), after + (-arg if op in _BACKWARD else arg)))
        steps.append(step)
        units.append(at)
    for index, target in jumps:
        steps[index] = (steps[index][0], "to", bisect_left(units, target))
    handlers = vars(dis.Bytecode(code))["exception_entries"] if code.co_exceptiontable else ()
    return steps, [
        (*(bisect_left(units, at // 2) for at in (h.start, h.end, h.target)), h.depth << 1 | h.lasti)
        for h in handlers
    ]


def _const(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _shape(value)
    if isinstance(value, tuple):
        return ("tuple", tuple(map(_const, value)))
    if isinstance(value, frozenset):
        return ("frozenset", tuple(sorted(repr(_const(part)) for part in value)))
    # A job may forbid decimals of long ints.
    return (type(value).__name__, hex(value) if type(value) is int else repr(value))
