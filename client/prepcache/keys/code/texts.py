"""The texts of modules by name, those of the project's and those of libraries that are loaded."""

from __future__ import annotations

import contextlib
import os
import sys

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code.closure import Closure, resolve
from prepcache.keys.code.facts import Import
from prepcache.keys.code.local_imports import Bound
from prepcache.keys.code.memory import Memory, read_stamped
from prepcache.keys.code.outlines import Outline, outline_of
from prepcache.keys.code.parsed import Parsed

_FARTHEST = 16
"""Imports of a name from one module to the next that are followed."""


class Texts:
    """What the texts of modules say. Lives for one fingerprint.

    Args:
        closure: the project's files that count.
        memory: parse results.
    """

    def __init__(self, closure: Closure, memory: Memory) -> None:
        self._closure = closure
        self._memory = memory
        self._outlines: dict[str, Outline | None] = {}

    def is_of_project(self, module: str) -> bool:
        """Whether a module's file counts."""
        return module in self._closure.modules

    def is_package(self, module: str) -> bool:
        return os.path.basename(self._path(module)).startswith("__init__.")

    def parsed(self, module: str) -> Parsed | None:
        """What the file of a module says; None for one that has no text."""
        path = self._path(module)
        if self.is_of_project(module):
            return self._closure.parsed.get(path)
        with contextlib.suppress(UnkeyableError):
            return self._memory.parsed(path, module) if path.endswith(".py") else None
        return None

    def outline(self, module: str) -> Outline | None:
        """What the file of a module binds; None for one that has no text.

        Raises:
            UnkeyableError: it is being edited.
        """
        if module not in self._outlines:
            self._outlines[module] = self._outline(module)
        return self._outlines[module]

    def home(self, module: str, what: Bound) -> str | None:
        """The absolute name of the module that an import in another one's text asks for."""
        return resolve(Import(what.level, what.module), module, self.is_package(module))

    def origin(self, module: str, name: str) -> tuple[str, str] | None:
        """The module whose text binds a name itself, and its name there; through imports, where each text
        has one for it, and nothing else. None where that is not told."""
        for _ in range(_FARTHEST):
            if (home := self._home_in_library(module, name)) is not None:
                module = home
                continue
            outline = None if self._is_literal_in_library(module, name) else self.outline(module)
            if outline is None or name.partition(".")[0] in outline.assigned:
                is_bound = outline is not None and name in outline.bound
                return None if is_bound else (module, name)
            bound = outline.bound.get(name) or self._starred(module, outline, name)
            if not bound:
                return module, name
            home = self.home(module, bound[0])
            if len(bound) > 1 or home is None or not bound[0].name:
                return None
            module, name = home, bound[0].name
        return None

    def _is_literal_in_library(self, module: str, name: str) -> bool:
        """Whether that is told without an outline: those of large libraries take long."""
        parsed = None if self.is_of_project(module) else self.parsed(module)
        return parsed is not None and name in parsed.literals

    def _home_in_library(self, module: str, name: str) -> str | None:
        """The module that a library imports a name from, if only one."""
        parsed = None if self.is_of_project(module) else self.parsed(module)
        if parsed is None or name in parsed.literals:
            return None
        found = [one for one in parsed.imports if name in one.names]
        return self.home(module, Bound(found[0].level, found[0].module)) if len(found) == 1 else None

    def is_made_in_c(self, module: str, name: str) -> bool:
        """Whether a library that is loaded has a name from elsewhere than its text."""
        if self.is_of_project(module) or module == "builtins" or module not in sys.modules:
            return False
        outline = self.outline(module)
        return outline is None or (outline.is_open and name not in outline.assigned)

    def _starred(self, module: str, outline: Outline, name: str) -> list[Bound]:
        """The imports of everything that bring a name, of the project's modules."""
        return [
            star._replace(name=name)
            for star in outline.stars
            if self._brings(self.home(module, star), name, {module})
        ]

    def _brings(self, module: str | None, name: str, seen: set[str]) -> bool:
        """Whether an import of everything in a module of the project's brings a name."""
        if module is None or module in seen or not self.is_of_project(module):
            return False
        seen.add(module)
        outline = self.outline(module)
        if outline is None or name in outline.names():
            return outline is not None
        return any(self._brings(self.home(module, star), name, seen) for star in outline.stars)

    def split(self, label: str) -> tuple[str, str]:
        """The module and the dotted name in it of a label."""
        parts = label.split(".")
        for end in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:end])
            if self.is_of_project(module) or module in sys.modules:
                return module, ".".join(parts[end:])
        return "", label

    def _path(self, module: str) -> str:
        known = self._closure.modules.get(module)
        return known if known is not None else str(getattr(sys.modules.get(module), "__file__", ""))

    def _outline(self, module: str) -> Outline | None:
        parsed, path = self.parsed(module), self._path(module)
        if parsed is None:
            return None
        try:
            text, _ = read_stamped(path)
        except OSError:
            text = b""
        if blake3(text).hexdigest() != parsed.digest:
            raise UnkeyableError(f"{path} was edited while it was read", path=path)
        return outline_of(text)
