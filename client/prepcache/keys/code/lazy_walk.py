"""What code reaches through imports that stand in functions, loaded or not; see NOTE [ Lazy modules ].

In a module that is loaded the walk goes on (reach.py). Of one that is not, the text is followed, name by
name, as the code that it compiles to would be: to other texts, and to modules that are loaded.

Invariants:
    1. A value counts under the name that the loaded module would have for it: the rows are those which would
       be there if the module were loaded as its text stands.
    2. What is followed, and in which order, depends on the texts and on what is loaded, not on hashes.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any, Protocol

from prepcache.keys.code.closure import resolve
from prepcache.keys.code.facts import Import
from prepcache.keys.code.frames import named_by
from prepcache.keys.code.local_imports import local_imports
from prepcache.keys.code.names import SKIPPED_GLOBALS, global_chains
from prepcache.keys.code.outlines import Outline, Statement
from prepcache.keys.code.questions import modules_named_in
from prepcache.keys.code.texts import Texts
from prepcache.keys.code.told import Told

Chain = tuple[str, ...]


class Walk(Protocol):
    """What is asked of the walk through what is loaded."""

    is_lazy: bool

    def count_global(self, space: dict[str, Any], module: str, name: str, chains: set[Chain]) -> None:
        """Counts what a namespace holds, under a module's name."""

    def count_module(self, module: Any, chain: Chain) -> None:
        """Counts what a chain of attributes, read from a module, arrives at."""

    def note_statement(self, statement: Statement) -> None:
        """Counts what a text asks for."""

    def is_library_module(self, module: Any) -> bool:
        """Whether a loaded module is none of the project's."""


class LazyWalk:
    """Follows imports that stand in functions. Lives for one fingerprint.

    Args:
        walk: goes on where something is loaded.
        texts: what is not loaded, and what is.
        told: notes what a text says of a module that is not loaded.
    """

    def __init__(self, walk: Walk, texts: Texts, told: Told) -> None:
        self._walk = walk
        self._texts = texts
        self._told = told
        self._seen: set[tuple[str, str, str, str, frozenset[Chain]]] = set()
        self._statements: set[Statement] = set()
        self._waiting: list[tuple[str, Statement]] = []
        self._is_running = False
        self._spaces: dict[str, dict[str, Any]] = {}
        """By the names of modules that are not loaded: what their imports would bind."""

    def imports(self, statements: Iterable[Import], module: str, is_package: bool) -> None:
        """Counts what imports bring that stand in a function or class of a module."""
        with self._lazily():
            for statement in statements:
                if (base := resolve(statement, module, is_package)) is not None:
                    self._follow(base, statement.names or statement.uses)

    def attributes(self, code: CodeType, module: str) -> None:
        """Counts what code reads from modules of libraries that it imports itself: settings."""
        for what, chains in local_imports(code).items():
            home = self._texts.home(module, what)
            loaded = sys.modules.get(home) if home is not None else None
            if loaded is None or not self._walk.is_library_module(loaded):
                continue
            with self._lazily():
                for chain in sorted(chains):
                    self._walk.count_module(loaded, (what.name, *chain) if what.name else chain)

    @contextmanager
    def _lazily(self) -> Iterator[None]:
        before, self._walk.is_lazy = self._walk.is_lazy, True
        try:
            yield
        finally:
            self._walk.is_lazy = before

    def _follow(self, base: str, names: Collection[str] | None) -> None:
        """Counts names of a module that code imports, or all of them."""
        loaded, outline = sys.modules.get(base), self._outline(base)
        if loaded is not None and (type(loaded) is not ModuleType or self._walk.is_library_module(loaded)):
            self._walk.count_module(loaded, ())
            return
        is_whole = names is None or "*" in names
        there = sorted(vars(loaded)) if loaded is not None else outline.names() if outline is not None else ()
        for name in there if is_whole or names is None else names:
            if name.startswith("__"):
                continue
            module = self._module_at(base, name)
            if module is None:
                self.name(base, name, {()})
            elif not is_whole or module == f"{base}.{name}":
                self._follow(module, None)

    def written(self, module: str, name: str) -> None:
        """Counts what the statements of a text name that bind a name, or speak of it."""
        outline = self._outline(module)
        if outline is not None and name not in outline.assigned and "__getattr__" in outline.assigned:
            self.name(module, "__getattr__", {()})
        statements = [*outline.statements.get(name, ()), *outline.dynamic] if outline is not None else ()
        for statement in statements:
            if statement not in self._statements:
                self._statements.add(statement)
                self._waiting.append((module, statement))
        if not self._is_running:  # one after the other: chains of helpers are longer than Python's stack
            self._is_running = True
            while self._waiting:
                self._statement(*self._waiting.pop(0))
            self._is_running = False

    def name(self, module: str, name: str, chains: set[Chain]) -> None:
        """Counts what chains of attributes, read from a name of a module, arrive at."""
        loaded = sys.modules.get(module)
        if isinstance(loaded, ModuleType) and name in vars(loaded):
            self._walk.count_global(vars(loaded), module, name, chains)
            return
        if name not in SKIPPED_GLOBALS:
            self._bound(module, name, (module, name), frozenset(chains))

    def module(self, module: str, chain: Chain) -> None:
        """Counts what a chain of attributes, read from a module, arrives at."""
        if (loaded := sys.modules.get(module)) is not None:
            if isinstance(loaded, ModuleType) and self._is_unloaded(module, chain):
                self.module(f"{module}.{chain[0]}", chain[1:])
            else:
                self._walk.count_module(loaded, chain)
        elif not chain:
            self._follow(module, None)
        else:
            self.name(module, chain[0], {chain[1:]})

    # -- texts ---------------------------------------------------------------------------------------

    def _bound(self, module: str, name: str, at: tuple[str, str], chains: frozenset[Chain]) -> None:
        """Counts a name that a module would have, of where its text, or another one's, takes it from."""
        if (module, name, *at, chains) in self._seen:
            return
        self._seen.add((module, name, *at, chains))
        home, taken = at
        if (put := _put_for(home)) is not None:
            self._walk.count_module(put, (taken,))
            return
        if (loaded := sys.modules.get(home)) is not None and taken in vars(loaded):
            self._taken(module, name, vars(loaded)[taken], chains)
            return
        outline = self._outline(home)
        if outline is None or (taken not in outline.bound and taken not in outline.assigned):
            self._unbound(module, name, at, chains)
            return
        for what in outline.bound.get(taken, ()):
            base = self._texts.home(home, what)
            if base is not None and what.name:
                self._bound(module, name, (base, what.name), chains)
            elif base is not None and (put := _put_for(base)) is not None:
                self._taken(module, name, put, chains)
            elif base is not None:
                self._modules(base, chains)
        if taken not in outline.bound and self._is_told(home, taken, outline):
            self._told.expect(f"{module}.{name}")
        self.written(home, taken)

    def _taken(self, module: str, name: str, value: Any, chains: frozenset[Chain]) -> None:
        """Counts what a module that is not loaded would take from one that is."""
        if isinstance(value, ModuleType):
            self._modules(value.__name__, chains)
        else:
            space = self._spaces.setdefault(module, {})
            space[name] = value
            self._walk.count_global(space, module, name, set(chains))

    def _unbound(self, module: str, name: str, at: tuple[str, str], chains: frozenset[Chain]) -> None:
        """A submodule, what an import of everything brings, what a module makes when asked, or a builtin."""
        home, taken = at
        if self._is_module(f"{home}.{taken}"):
            self._modules(f"{home}.{taken}", chains)
            return
        outline = self._outline(home)
        for star in outline.stars if outline is not None else ():
            if (base := self._texts.home(home, star)) is not None:
                self._bound(module, name, (base, taken), chains)
        if outline is not None and "__getattr__" in outline.assigned:
            self.name(home, "__getattr__", {()})
        if hasattr(builtins, taken):
            self._walk.count_global(self._spaces.setdefault(module, {}), module, taken, set(chains))

    def _modules(self, module: str, chains: frozenset[Chain]) -> None:
        for chain in sorted(chains):
            self.module(module, chain)

    def _is_told(self, module: str, name: str, outline: Outline) -> bool:
        """Whether a text says what a name will be: a literal, or a function or class as it stands."""
        statements, parsed = outline.statements.get(name, ()), self._texts.parsed(module)
        is_literal = len(statements) == 1 and parsed is not None and name in parsed.literals
        return is_literal or all(statement.is_definition for statement in statements)

    def _statement(self, module: str, statement: Statement) -> None:
        self._walk.note_statement(statement)
        code = statement.code
        chains, outline = global_chains(code), self._outline(module)
        named = named_by(code, outline.names()) if outline is not None else {}
        for name in sorted(chains.keys() | named):
            self.name(module, name, chains.get(name, set()) | named.get(name, set()))
        if statement.is_dynamic:
            self._follow(module, None)
            for loaded in modules_named_in(code):
                self._walk.count_module(loaded, ())
        self.imports(statement.imports, module, self._texts.is_package(module))
        self.attributes(code, module)

    def _outline(self, module: str) -> Outline | None:
        return self._texts.outline(module) if self._texts.is_of_project(module) else None

    def _is_module(self, name: str) -> bool:
        return self._texts.is_of_project(name) or sys.modules.get(name) is not None

    def _is_unloaded(self, module: str, chain: Chain) -> bool:
        """Whether a chain leads to a module that is not loaded, of a package that is."""
        loaded = sys.modules.get(module)
        is_there = not chain or loaded is None or chain[0] in vars(loaded)
        name = f"{module}.{chain[0]}" if chain else module
        return not is_there and name not in sys.modules and self._texts.is_of_project(name)

    def _module_at(self, base: str, name: str) -> str | None:
        """The module that a name of another one stands for, if it does."""
        loaded = sys.modules.get(base)
        if loaded is not None and name in vars(loaded):
            value = vars(loaded)[name]
            return value.__name__ if isinstance(value, ModuleType) else None
        outline = self._outline(base)
        if outline is not None:
            for what in outline.bound.get(name, ()):
                if (home := self._texts.home(base, what)) is None:
                    continue
                if not what.name or self._is_module(f"{home}.{what.name}"):
                    return f"{home}.{what.name}" if what.name else home
        return f"{base}.{name}" if self._is_module(f"{base}.{name}") else None


def _put_for(module: str) -> Any:
    """What a job has put in the place of a module, if it has."""
    loaded = sys.modules.get(module)
    return None if isinstance(loaded, ModuleType) else loaded
