"""What the imports of a code object bind to names; of two imports to one name both are meant."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
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


def bindings(code: CodeType) -> dict[str, set[Bound]]:
    """What the imports of a code object bind, without those of nested code."""
    bound: dict[str, set[Bound]] = {}
    for name, what in _bindings(code) if _IMPORT_NAME in code.co_code[::2] else ():
        bound.setdefault(name, set()).add(what)
    return bound


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
