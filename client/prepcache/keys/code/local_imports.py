"""Which modules code imports into names of its own, and which attributes it reads from them.

Read from bytecode, as the globals are (names.py), and by name: of two imports to one name both are meant.

Invariants:
    1. Every attribute that is loaded from a name which an import binds here, or in the code around, is in a
       chain of that import.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator, Mapping
from inspect import CO_OPTIMIZED
from types import CodeType
from typing import NamedTuple

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_MOVES = re.compile("STORE|LOAD")
_NAMED = re.compile("(STORE|LOAD)_.*(FAST|DEREF|NAME|GLOBAL)")


class Bound(NamedTuple):
    """What an import binds to a name: a module, or what `from` takes from one."""

    level: int
    module: str
    name: str = ""


Imported = dict[Bound, set[tuple[str, ...]]]


def local_imports(code: CodeType) -> Imported:
    """What a code object, nested code included, imports, and the attribute chains that it reads from that.
    What a module's code imports, functions in it read by their globals."""
    found: Imported = {}
    is_module = not code.co_flags & CO_OPTIMIZED
    _scan(code, {}, found, bindings(code) if is_module else {})
    return found


def bindings(code: CodeType) -> dict[str, set[Bound]]:
    """What the imports of a code object bind, without those of nested code."""
    bound: dict[str, set[Bound]] = {}
    for name, what in _bindings(code) if _IMPORT_NAME in code.co_code[::2] else ():
        bound.setdefault(name, set()).add(what)
    return bound


def _scan(
    code: CodeType,
    around: Mapping[str, set[Bound]],
    found: Imported,
    of_module: Mapping[str, set[Bound]],
) -> None:
    bound = {name: of_module[name] for name in code.co_names if name in of_module}
    bound |= {name: around[name] for name in code.co_freevars if name in around}
    if _IMPORT_NAME in code.co_code[::2]:
        for name, what in _bindings(code):
            bound[name] = bound.get(name, set()) | {what}
            found.setdefault(what, set())
    for name, chain in chains_of_names(code) if bound else ():
        for what in bound.get(name, ()):
            found.setdefault(what, set()).add(chain)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            _scan(const, bound, found, of_module)


def _steps(code: CodeType) -> Iterator[tuple[str, object]]:
    """What is done to names, in order; of one instruction for two names (Python >= 3.13), each."""
    for step in dis.get_instructions(code):
        if _NAMED.fullmatch(step.opname.partition("_CHECK")[0].partition("_BORROW")[0]):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            yield from zip(_MOVES.findall(step.opname), names, strict=False)
        else:
            yield step.opname, step.argval


def _bindings(code: CodeType) -> Iterator[tuple[str, Bound]]:
    constants: list[object] = []
    level, module, taken, is_from = 0, "", "", False
    for kind, value in _steps(code):
        if kind in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants.append(value)
        elif kind == "IMPORT_NAME":
            level, is_from = int(str(constants[-2])), bool(constants[-1])
            module, taken = str(value), ""
        elif kind == "IMPORT_FROM":
            taken = str(value)
        elif kind == "STORE" and module:
            name = str(value)
            if is_from:
                yield name, Bound(level, module, taken)
                continue
            top = module.partition(".")[0]
            yield name, Bound(level, top if name == top and not taken else module)
            module = ""


def chains_of_names(code: CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each name that is loaded, of whatever scope, with the attributes that are loaded from it."""
    root: str | None = None
    chain: list[str] = []
    for kind, value in (*_steps(code), ("", None)):
        if root is not None and kind in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(str(value))
            continue
        if root is not None:
            yield root, tuple(chain)
        root, chain = (str(value), []) if kind == "LOAD" else (None, [])
