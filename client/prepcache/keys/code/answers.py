"""What counts of all that is reached once some code that is reached asks for it; see dynamic_lookups.py.

Invariants:
    1. Whenever a question comes up, its answer is given: once, or the same again, which counts once.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from prepcache.keys.code.dynamic_lookups import Questions, data_in, is_alias, named_in
from prepcache.keys.code.encoding import Hooks

_AS_TEXT = annotations.compiler_flag
Answer = tuple[str, Any, Any]
"""A label, a value, and who holds it."""


class Answers:
    """The functions and classes that were visited, as far as they were not asked for yet."""

    def __init__(self, asked: Questions, hooks: Hooks) -> None:
        self.asked, self.hooks = asked, hooks
        self.functions: list[tuple[str, FunctionType]] = []
        self.classes: list[tuple[str, type]] = []
        self.homes: dict[int, dict[str, Any]] = {}
        """The namespaces that they are of."""
        self._texts: list[tuple[dict[str, Any], str]] = []

    def note_function(self, label: str, function: FunctionType) -> None:
        self.functions.append((label, function))
        self.homes[id(function.__globals__)] = function.__globals__

    def note_class(self, label: str, cls: type, home: ModuleType | None) -> None:
        self.classes.append((label, cls))
        if home is not None:
            self.homes[id(vars(home))] = vars(home)

    def values(self) -> Iterator[Answer]:
        """What counts by value."""
        if self.asked.subclasses:
            for label, cls in _drained(self.classes):
                yield f"{label}.__subclasses__()", type.__subclasses__(cls), cls
        is_any = self.asked.annotations
        for label, function in _drained(self.functions):
            if not (is_any or function in self.hooks.held):
                self.functions.append((label, function))
            else:
                for name, annotation in sorted(function.__annotations__.items()):
                    for part in named_in(annotation):
                        yield f"{label}({name}:)", part, function
                    if isinstance(annotation, str):
                        self._texts.append((function.__globals__, annotation))
                    if data := _data_of(function, annotation):
                        yield f"{label}({name}:)", data, function
        if self.asked.arguments:
            yield "sys.argv", sys.argv[1:], self.asked
        if self.asked.home:  # files of one name are others in another's
            yield "~", os.path.expanduser("~"), self.asked
        if self.asked.temporary:
            yield "tempfile.gettempdir()", _temporary_folder(), self.asked

    def annotations(self) -> Iterator[tuple[dict[str, Any], str]]:
        """The annotations that are text, and the namespaces that they speak of."""
        yield from _drained(self._texts)

    def modules(self) -> Iterator[ModuleType]:
        """The modules that count whole: those of all that is reached, or that a value names."""
        homes = self.homes.values() if self.asked.modules else ()
        names = [str(space.get("__name__")) for space in homes]
        named = sorted(self.hooks.texts & sys.modules.keys()) if self.asked.dynamic else []
        for name in (*names, *named):
            if isinstance(module := sys.modules.get(name), ModuleType):
                yield module


def _temporary_folder() -> str:
    """Where `tempfile` would put files, without deciding it for the job; empty where it finds no folder."""
    decided = tempfile.tempdir
    try:
        return tempfile.gettempdir()
    except OSError:
        return ""
    finally:
        tempfile.tempdir = decided


def _data_of(function: FunctionType, annotation: Any) -> list[Any]:
    """What an annotation is that is neither a type nor text."""
    is_text = isinstance(annotation, str) and bool(function.__code__.co_flags & _AS_TEXT)
    return [] if is_text or is_alias(annotation) else list(data_in(annotation))


def _drained(entries: list[Any]) -> list[Any]:
    found = entries.copy()
    entries.clear()
    return found
