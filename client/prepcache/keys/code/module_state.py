"""Modules that functions import themselves: their files count whole, and what the job has set in them.

Such a module may be loaded or not when the recipe is made, and the recipe must not depend on that. So its
file counts, with the files that it imports, and of what it holds, if it is loaded, only what its text does
not say: a constant that is no longer the literal it was bound to (`cfg.SIZE = 512` in the job), a function
that was replaced, an edit after loading. What is computed when the module is loaded cannot be told from
what was set later, and counts.

Invariants:
    1. A module that holds what its text says gives the rows of one that is not loaded: none.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from prepcache.errors import UnkeyableError
from prepcache.keys.code import labels
from prepcache.keys.code.classes import attributes_of
from prepcache.keys.code.dynamic_lookups import (
    is_dynamic,
    looks_up_by_text,
    modules_named_in,
    names_in_texts,
    texts_in,
)
from prepcache.keys.code.function_state import state_of
from prepcache.keys.code.import_graph import ImportGraph, is_package, resolve
from prepcache.keys.code.names import SKIPPED_GLOBALS, all_names
from prepcache.keys.code.project import file_name
from prepcache.keys.code.source_files import (
    Defined,
    Import,
    SourceFile,
    Stamp,
    imports_in,
    is_literal,
    read_source,
    started_ns,
)

Chain = tuple[str, ...]
_awaited: dict[str, Stamp] = {}
"""The stamps of files that no module was loaded from when they were last looked at, by path. A module that
is loaded later is of that text while the stamp is the same."""
_ABSENT = object()
_FARTHEST = 16
"""Imports of a name from one module to the next that are followed."""


class Walk(Protocol):
    """What is asked of the walk through what is loaded."""

    def count_global(self, space: dict[str, Any], module: str, name: str, chains: set[Chain]) -> None:
        """Counts what a namespace holds, under a module's name."""

    def count_module(self, module: Any, chain: Chain) -> None:
        """Counts what a chain of attributes, read from a module, arrives at."""

    def count_builtins(self, names: Iterable[str]) -> None:
        """Counts what a job has put among the builtins under names."""

    def count_value(self, label: str, value: Any, owner: Any) -> None:
        """Counts a value under a label."""

    def note_code(self, code: CodeType, space: dict[str, Any]) -> None:
        """Counts what code asks for beside what it names."""

    def is_library_module(self, module: Any) -> bool:
        """Whether a loaded module is none of the project's."""

    def is_library(self, function: FunctionType) -> bool:
        """Whether a function is a library's."""


class ModuleState:
    """Follows imports that stand in functions. Lives for one fingerprint.

    Args:
        walk: goes on where a value counts.
        graph: counts files.

    Attributes:
        differing: labels and types of what is loaded and contradicts its text.
        is_followed: whether any module of the project is imported so.
    """

    def __init__(self, walk: Walk, graph: ImportGraph) -> None:
        self.differing: dict[str, type] = {}
        self.is_followed = False
        self.is_settling = False
        """Whether settings of libraries are counted, which count only where they contradict their text."""
        self._walk = walk
        self._graph = graph
        self._noted: set[str] = set()
        self._compared: set[tuple[str, str]] = set()

    def older_texts(self, came: Iterable[str]) -> dict[str, str]:
        """The modules that this process may have loaded from another text than their file has now.

        Args:
            came: labels that the process that made the recipe did not have, as it had not loaded them.

        Returns:
            File names, by module.
        """
        found: dict[str, str] = {}
        holders = {
            ".".join(parts[:n]) for parts in (label.split(".") for label in came) for n in range(len(parts))
        }
        for module, path in self._graph.modules.items():
            source = self._graph.sources.get(path)
            if source is None or module not in holders or _awaited.get(path) == source.stamp:
                continue
            if max(source.stamp[3:]) >= started_ns():
                found[module] = file_name(module, path)
        return found

    def follow(self, code: CodeType, module: str, *, is_within: bool) -> None:
        """Counts what code imports itself, that stands in a module.

        Args:
            is_within: whether the module is a package.
        """
        imports = list(dict.fromkeys(imports_in(code)))
        if not imports:
            return
        self._graph.add_imports(imports, module, is_within)
        self._placed(imports, module, is_within)
        self._settings(code, imports, module, is_within)
        reached = self._graph.imported_from(imports, module, is_within)
        self.is_followed |= bool(reached)
        asked = set(all_names(code))
        names = set(asked)
        is_any = is_dynamic(code)
        for name in reached:
            if (source := self._source(name)) is not None:
                names |= source.names
                if looks_up_by_text(source.code):
                    names.update(one.partition(".")[0] for one in names_in_texts(texts_in(source.code)))
                is_any |= is_dynamic(source.code)
                self._note(name, source)
        self._walk.count_builtins(names)
        for name in reached:
            loaded = sys.modules.get(name)
            if type(loaded) is not ModuleType:
                if loaded is not None:
                    self._walk.count_module(loaded, ())
                elif (source := self._source(name)) is not None:
                    _awaited[source.path] = source.stamp
                continue
            for one in sorted(vars(loaded).keys() - SKIPPED_GLOBALS):
                is_meant = one in names or one == "__getattr__" or (is_any and not one.startswith("__"))
                # A file that `with open(...) as file` leaves behind has no stable bytes, and nothing to read.
                is_left = one not in asked and _is_closed_file(vars(loaded)[one])
                if is_meant and not is_left:
                    self._compare(name, one, vars(loaded)[one])

    def _note(self, name: str, source: SourceFile) -> None:
        """Counts what the code of a file asks for that counts whole."""
        if name not in self._noted:
            self._noted.add(name)
            loaded = sys.modules.get(name)
            self._walk.note_code(source.code, vars(loaded) if isinstance(loaded, ModuleType) else {})
            self._placed(source.imports, name, is_package(source.path))
            self._settings(source.code, source.imports, name, is_package(source.path))
            for named in modules_named_in(source.code) if is_dynamic(source.code) else ():
                self._walk.count_module(named, ())

    def codes(self) -> list[CodeType]:
        """The code of the files that count whole."""
        return [source.code for name in sorted(self._noted) if (source := self._source(name)) is not None]

    def is_as_installed(self, module: str, name: str, value: Any) -> bool:
        """Whether a library holds what its text says under a name, or what it has from C."""
        home, own = self._origin(module, name, value)
        source = self._source(home)
        written = _ABSENT if source is None else source.written.get(own, _ABSENT)
        return source is None or is_literal(value, written)

    def _placed(self, imports: Iterable[Import], module: str, is_within: bool) -> None:
        """Counts what stands in the place of modules and is of no file."""
        for one in imports:
            for name in _homes(one, module, is_within):
                loaded = None if name in self._graph.modules else sys.modules.get(name)
                if loaded is not None and not self._walk.is_library_module(loaded):
                    self._walk.count_module(loaded, ())

    def _settings(self, code: CodeType, imports: Iterable[Import], module: str, is_within: bool) -> None:
        """Counts settings of libraries that code imports itself: what these hold under any name in it."""
        names = all_names(code)
        for home in sorted({home for one in imports for home in _homes(one, module, is_within)}):
            loaded = sys.modules.get(home)
            if loaded is None or not self._walk.is_library_module(loaded):
                continue
            self.is_settling = True
            for name in sorted(names & labels.space_of(loaded).keys()):
                held = labels.space_of(loaded)[name]
                inner = names & vars(held).keys() if isinstance(held, type) else ()
                if not isinstance(held, ModuleType):  # which counts if it is imported itself
                    for chain in ((name,), *((name, one) for one in sorted(inner))):
                        self._walk.count_module(loaded, chain)
            self.is_settling = False

    def _compare(self, module: str, name: str, value: Any) -> None:
        """Counts what a loaded module holds under a name, if its text does not say so."""
        if isinstance(value, ModuleType) or (module, name) in self._compared:
            return
        self._compared.add((module, name))
        home, own = self._origin(module, name, value)
        if home not in self._graph.modules:
            return  # a library's, which counts by itself
        if home != module:
            self._compare(home, own, value)
            return
        source = self._source(home)
        if source is None or self._is_written(source, own, value):
            return
        if own in source.written or own in source.taken:
            self.differing[f"{module}.{name}"] = type(value)
        self._walk.count_global(vars(sys.modules[module]), module, name, {()})

    def _is_written(self, source: SourceFile, name: str, value: Any) -> bool:
        """Whether a text says that a name is bound to this value: of a class, that all it holds is so."""
        written = source.written.get(name, _ABSENT)
        if isinstance(value, staticmethod | classmethod):
            return self._is_written(source, name, value.__func__)
        if isinstance(value, property):
            parts = [part for part in (value.fget, value.fset, value.fdel) if part is not None]
            return all(self._is_written(source, name, part) for part in parts)
        if isinstance(value, FunctionType):
            is_there = value.__code__.co_filename == source.path and value.__qualname__ == name
            return is_there and source.makes(value.__code__) and _has_defaults(value, written)
        if isinstance(value, type) and isinstance(written, Defined) and self._is_of(source, value, name):
            held = attributes_of(value, self._walk.is_library)
            return all(self._is_written(source, f"{name}.{inner}", part) for inner, part in held)
        return written is not _ABSENT and not isinstance(written, Defined) and is_literal(value, written)

    def _is_of(self, source: SourceFile, cls: type, name: str) -> bool:
        home = sys.modules.get(str(cls.__module__))
        return cls.__qualname__ == name and getattr(home, "__file__", None) == source.path

    def _origin(self, module: str, name: str, value: Any) -> tuple[str, str]:
        """The module that a name is imported from with this value, through others, and its name there."""
        for _ in range(_FARTHEST):
            source = self._source(module)
            if source is None:
                break
            steps = self._taken_from(module, name, source)
            step = next(((home, taken) for home, taken in steps if _held(home, taken) is value), None)
            if step is None:
                break
            module, name = step
        return module, name

    def _taken_from(self, module: str, name: str, source: SourceFile) -> Iterator[tuple[str, str]]:
        stars = [(statement, name) for statement, _ in source.taken.get("*", ())]
        for statement, there in (*source.taken.get(name, ()), *stars):
            home = resolve(statement, module, is_package(source.path))
            if home is not None:
                yield home, there

    def _source(self, module: str) -> SourceFile | None:
        """The source file of a module of the project's, or of a library that is loaded."""
        if module in self._graph.modules:
            return self._graph.sources.get(self._graph.modules[module])
        path = getattr(sys.modules.get(module), "__file__", None)
        with suppress(UnkeyableError):
            return read_source(path, module) if isinstance(path, str) and path.endswith(".py") else None
        return None


def _homes(statement: Import, module: str, is_within: bool) -> list[str]:
    """The modules that an import statement may ask for."""
    parts = (resolve(statement, module, is_within) or "").split(".")
    above = [".".join(parts[: n + 1]) for n in range(len(parts))]
    return [*above, *(f"{above[-1]}.{name}" for name in statement.names)] if parts[0] else []


def _is_closed_file(value: Any) -> bool:
    """Whether a value is a file that is closed, or was detached."""
    try:
        return isinstance(value, io.IOBase) and value.closed
    except ValueError:
        return True


def _has_defaults(function: FunctionType, written: Any) -> bool:
    """Whether a function has the defaults of its text, as far as these are literals; others are computed."""
    literals = written.defaults if isinstance(written, Defined) else {}
    given = {part[1:-2]: value for part, value in state_of(function) if part.startswith("(")}
    return given.keys() == literals.keys() and all(is_literal(given[n], literals[n]) for n in given)


def _held(module: str, name: str) -> Any:
    loaded = sys.modules.get(module)
    return vars(loaded).get(name, _held) if isinstance(loaded, ModuleType) else _held
