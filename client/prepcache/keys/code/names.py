"""Which globals a code object names, and which attributes it reads from them.

Read from the bytecode, which knows the scopes: it also covers code that was generated and has no source.

Invariants:
    1. Every global that the code, or code nested in it, loads by name is in the result. What follows it
       in a chain of attribute loads is in its chains; `()` stands for a use as a whole.
    2. Names that pytest's assertion rewriting adds are not.
"""

from __future__ import annotations

import dis
import sys
from inspect import CO_OPTIMIZED
from types import CodeType

from prepcache.keys.code.fingerprint import instructions

_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_LOAD_NAMES = frozenset(
    dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)
_LOAD_ATTR = dis.opmap["LOAD_ATTR"]
_LOAD_METHOD = dis.opmap.get("LOAD_METHOD", -1)
_ATTR_SHIFT = 1 if sys.version_info >= (3, 12) else 0

SKIPPED_GLOBALS = frozenset(
    {
        "__builtins__", "__name__", "__file__", "__path__", "__spec__", "__loader__", "__package__",
        "__cached__", "__annotations__", "__warningregistry__", "__debug__", "__class__",
    }
)  # fmt: skip
"""What Python keeps in the namespace of a module: no values of its code."""

Chains = dict[str, set[tuple[str, ...]]]
_known: dict[CodeType, tuple[CodeType, Chains]] = {}
_KNOWN_LIMIT = 20_000


def global_chains(code: CodeType) -> Chains:
    """Global name to the attribute chains read from it, nested code included."""
    # Code objects compare equal when positions differ, too: their names are then the same.
    known = _known.get(code)
    if known is not None:
        return known[1]
    chains: Chains = {}
    _scan(code, chains)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            for name, found in global_chains(const).items():
                chains.setdefault(name, set()).update(found)
    if len(_known) >= _KNOWN_LIMIT:
        _known.clear()
    _known[code] = (code, chains)
    return chains


def all_names(code: CodeType) -> set[str]:
    """Every attribute and global name in the code, nested code included."""
    names = set(code.co_names)
    if not code.co_flags & CO_OPTIMIZED:
        names.discard("__doc__")  # a class body stores its docstring under that name
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names |= all_names(const)
    return names


def _scan(code: CodeType, chains: Chains) -> None:
    names = code.co_names
    root: str | None = None
    chain: list[str] = []
    for op, arg in instructions(code) if names else ():
        if root is not None:
            if op == _LOAD_ATTR:
                chain.append(names[arg >> _ATTR_SHIFT])
                continue
            if op == _LOAD_METHOD:
                chain.append(names[arg])
                continue
            chains.setdefault(root, set()).add(tuple(chain))
            root = None
        if op == _LOAD_GLOBAL or op in _LOAD_NAMES:
            name = names[arg >> 1] if op == _LOAD_GLOBAL else names[arg]
            if not name.startswith("@py"):
                root, chain = name, []
    if root is not None:
        chains.setdefault(root, set()).add(tuple(chain))
