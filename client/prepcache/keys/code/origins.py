"""From which of the texts that were loaded something came, and what else such a text says."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterator
from functools import lru_cache
from types import FunctionType, ModuleType

from blake3 import blake3

from prepcache import loaded
from prepcache.keys.code.heads import heads
from prepcache.keys.code.syntax import syntax_of

UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What a text raises that was read in the middle of being written."""


def load_of(what: FunctionType | type, path: str) -> loaded.Load | None:
    """The load that something came from; None where nothing is known of that file."""
    loads = loaded.loads(path)
    if len(loads) < 2:
        return loads[0] if loads else None
    codes = [one.__code__ for one in ((what,) if isinstance(what, FunctionType) else own_functions(what))]
    for load in reversed(loads):
        if any(load.made(code) for code in codes):
            return load
    module = sys.modules.get(what.__module__)
    space = what.__globals__ if isinstance(what, FunctionType) else getattr(module, "__dict__", {})
    mine = [load for load in loads if load.namespace == id(space)] or loads
    for load in reversed(mine):
        if not load.found(what):
            return load
    return mine[0]


def is_as_loaded(path: str, digest: str) -> bool:
    """Whether a file's bytes are the text that its modules of now were loaded from, as far as is known.

    Args:
        digest: of the bytes.
    """
    path = os.path.abspath(path)
    loads = loaded.loads(path)
    if all(_digest_of(load.text) == digest for load in loads):
        return True
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    spaces = {id(vars(module)) for module in modules if vars(module).get("__file__") == path}
    last = {load.namespace: load.text for load in loads}
    mine = [text for namespace, text in last.items() if namespace in spaces] or [loads[-1].text]
    return all(_digest_of(text) == digest for text in mine)


def says_one_of(text: bytes, path: str, digests: Collection[str]) -> bool:
    """Whether a text that was loaded is one of those with these digests, or says the same as the one of them
    that is in its file."""
    if _digest_of(text) in digests:
        return True
    try:
        with open(path, "rb") as file:
            there = file.read()
    except OSError:
        return False
    return _digest_of(there) in digests and tree_of(there) == tree_of(text) != ""


def own_functions(cls: type) -> Iterator[FunctionType]:
    """The functions of a class that have its name, those of its properties too."""
    for value in vars(cls).values():
        inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        inner = inner.fget if isinstance(inner, property) else inner
        if isinstance(inner, FunctionType) and inner.__qualname__.startswith(f"{cls.__qualname__}."):
            yield inner


@lru_cache(maxsize=1024)
def _digest_of(text: bytes) -> str:
    return blake3(text).hexdigest()


@lru_cache(maxsize=16)
def tree_of(text: bytes) -> str:
    """The digest of a text's syntax tree."""
    try:
        return blake3(ast.dump(syntax_of(text)).encode("utf-8", "surrogatepass")).hexdigest()
    except UNREADABLE:
        return ""


@lru_cache(maxsize=16)
def heads_of(text: bytes, path: str) -> dict[str, list[str]]:
    """The heads of a text; none if it was read in the middle of being written."""
    try:
        return heads(text, path)
    except UNREADABLE:
        return {}
