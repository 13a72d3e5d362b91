"""The files that a file imports, transitively: what counts under `code="script"`.

Imports count wherever they stand (conditional, in a function, under `try`), with the `__init__` of every
package on the way. Names that mean nothing here (an optional dependency that is absent) are not in the
result: once they mean something, the result differs.

Invariants:
    1. No module is imported and no line of the project runs.
    2. Modules that are loaded answer for themselves; others are found as the import system would find them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import ModuleType
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code.fingerprint import nested
from prepcache.keys.code.labels import folders_of
from prepcache.keys.code.project import SELF_MODULES, Place, Places, file_name
from prepcache.keys.code.source_files import Import, SourceFile, read_source


class Kind(Enum):
    SOURCE = "source"
    EXTENSION = "extension"
    BYTECODE = "bytecode"
    NAMESPACE = "namespace"
    SITE = "site"
    UNCOUNTED = "uncounted"
    """Of the standard library, of prepcache, or not there."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an import means. `folders` is where its submodules are looked for."""

    kind: Kind
    path: str = ""
    folders: tuple[str, ...] = ()


_LOADERS: tuple[tuple[Any, list[str]], ...] = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
"""In the order of the import system."""
_UNCOUNTED = Found(Kind.UNCOUNTED)


@dataclass(slots=True)
class Finder:
    """Finds modules along one search path. Lives for one fingerprint.

    Args:
        search: folders, in order; `sys.path` of the job.
        places: tells the project's files from installed ones.
        is_loaded: whether loaded modules answer for themselves (not when a file is only looked at).
    """

    search: Iterable[str]
    places: Places
    is_loaded: bool = True
    _found: dict[str, Found] = field(default_factory=dict)
    _finders: dict[str, FileFinder] = field(default_factory=dict)

    def find(self, name: str) -> Found:
        """What `import name` means; for a dotted name, what its last part does."""
        known = self._found.get(name)
        if known is None:
            known = self._found[name] = self._find(name)
        return known

    def _find(self, name: str) -> Found:
        top, _, rest = name.partition(".")
        if top in SELF_MODULES or top in sys.builtin_module_names:
            return _UNCOUNTED
        loaded = self._of_loaded(name)
        if loaded is not None:
            return loaded
        if not rest:
            return self._searched(name, self.search) or self._of_editable(name)
        parent = self.find(name.rpartition(".")[0])
        if parent.kind in (Kind.SITE, Kind.UNCOUNTED):
            return parent
        return self._searched(name.rpartition(".")[2], parent.folders) or _UNCOUNTED

    def _searched(self, tail: str, folders: Iterable[str]) -> Found | None:
        """What lies in folders under the last part of a module's name. The finders are not those of
        `sys.path_importer_cache`: what they list here, later imports of the job must list again."""
        portions: list[str] = []
        for folder in folders:
            if folder not in self._finders:
                self._finders[folder] = FileFinder(folder, *_LOADERS)
            spec = self._finders[folder].find_spec(tail)
            if spec is not None and spec.loader is not None:
                return self._of_spec(spec)
            portions += (spec.submodule_search_locations or ()) if spec is not None else ()
        return Found(Kind.NAMESPACE, "", tuple(portions)) if portions else None

    def _of_loaded(self, name: str) -> Found | None:
        module = sys.modules.get(name) if self.is_loaded and name != "__main__" else None
        if not isinstance(module, ModuleType):
            return None
        spec: ModuleSpec | None = getattr(module, "__spec__", None)
        origin = getattr(module, "__file__", None) or (spec.origin if spec is not None else None)
        if origin in ("built-in", "frozen"):
            return _UNCOUNTED
        folders = tuple(folders_of(module))
        if not isinstance(origin, str) or not os.path.isfile(origin):
            return Found(Kind.NAMESPACE, "", folders) if folders else None
        return self._classified(origin, folders)

    def _of_editable(self, name: str) -> Found:
        """Asks the finders that editable installs put on `sys.meta_path`."""
        for finder in sys.meta_path:
            if getattr(finder, "__module__", "").startswith("__editable__"):
                found = self._of_spec(finder.find_spec(name, None))
                if found is not None:
                    return found
        return _UNCOUNTED

    def _of_spec(self, spec: ModuleSpec | None) -> Found | None:
        if spec is None:
            return None
        folders = tuple(spec.submodule_search_locations or ())
        if spec.origin and os.path.isfile(spec.origin):
            return self._classified(spec.origin, folders)
        return Found(Kind.NAMESPACE, "", folders) if folders else None

    def _classified(self, path: str, folders: tuple[str, ...]) -> Found:
        place = self.places.of(path)
        if place in (Place.STDLIB, Place.SELF):
            return _UNCOUNTED
        if place is Place.SITE:
            return Found(Kind.SITE, path, folders)
        suffixes = {Kind.EXTENSION: EXTENSION_SUFFIXES, Kind.BYTECODE: BYTECODE_SUFFIXES}
        kinds = (kind for kind, endings in suffixes.items() if path.endswith(tuple(endings)))
        return Found(next(kinds, Kind.SOURCE), path, folders)


@dataclass(slots=True)
class ImportGraph:
    """The files counted so far. Grows by `add_file` and `add_imports`."""

    finder: Finder
    files: dict[str, str] = field(default_factory=dict)
    """Name in the recipe to path."""
    modules: dict[str, str] = field(default_factory=dict)
    """Module name to path, of project files."""
    top_levels: set[str] = field(default_factory=set)
    """Top-level names of what is imported from installed distributions."""
    sources: dict[str, SourceFile] = field(default_factory=dict)
    """Path to the source file; extension modules have none."""
    _seen: set[str] = field(default_factory=set)
    _queue: list[tuple[str, Found]] = field(default_factory=list)

    def add_file(self, module: str, path: str) -> None:
        """Counts the source file at `path`, known as `module`, and all that it imports."""
        if path not in self.sources:
            self._seen.add(module)
            folders = (os.path.dirname(path),) if is_package(path) else ()
            self._add_parents(module)
            self._queue.append((module, Found(Kind.SOURCE, path, folders)))
            self._run()

    def add_extension(self, module: str, path: str) -> None:
        """Counts a loaded extension module of the project by its bytes."""
        if path not in self.files.values():
            self._count(module, Found(Kind.EXTENSION, path))

    def add_imports(self, imports: Iterable[Import], module: str, is_of_package: bool) -> None:
        """Counts what these imports, standing in `module`, bring in."""
        self._follow(imports, module, is_of_package)
        self._run()

    def imported_from(self, imports: Iterable[Import], module: str, is_of_package: bool) -> list[str]:
        """The project's modules that imports lead to, transitively, among those that count."""
        found: dict[str, None] = {}
        queue = [(one, module, is_of_package) for one in imports]
        while queue:
            statement, at, is_within = queue.pop()
            base = resolve(statement, at, is_within)
            for name in () if base is None else (base, *(f"{base}.{part}" for part in statement.names)):
                if name in self.modules and name not in found:
                    found[name] = None
                    source = self.sources.get(self.modules[name])
                    within = is_package(self.modules[name])
                    queue += [(one, name, within) for one in source.imports] if source is not None else []
        return sorted(found)

    def _run(self) -> None:
        while self._queue:
            module, found = self._queue.pop()
            self._count(module, found)

    def _count(self, module: str, found: Found) -> None:
        name = file_name(module, found.path)
        if found.kind is Kind.BYTECODE:
            raise UnkeyableError(
                f"module {module} exists only as bytecode ({found.path}), so what it imports is unknown; "
                f"keep its source, or use code=None and version=",
                path=found.path,
            )
        name = self._free_name(name, found.path)
        self.files[name] = found.path
        self.modules[module] = found.path
        if found.kind is not Kind.EXTENSION:
            source = self.sources[found.path] = read_source(found.path, name)
            self._follow(source.imports, module, bool(found.folders) and is_package(found.path))

    def _free_name(self, wanted: str, path: str) -> str:
        """The name itself, or with a number where another file of the same name counts already."""
        name, count = wanted, 1
        while name in self.files and os.path.realpath(self.files[name]) != os.path.realpath(path):
            count += 1
            name = f"{wanted}#{count}"
        return name

    def _add_parents(self, module: str) -> None:
        parts = module.split(".")
        for end in range(1, len(parts)):
            self._visit(".".join(parts[:end]))

    def _follow(self, imports: Iterable[Import], module: str, is_of_package: bool) -> None:
        for statement in imports:
            base = resolve(statement, module, is_of_package)
            if base is None:
                continue
            self._add_parents(base)
            found = self._visit(base)
            if found.kind not in (Kind.SOURCE, Kind.NAMESPACE, Kind.EXTENSION) or not found.folders:
                continue
            names: Iterable[str] = statement.names
            if "*" in names and found.kind is Kind.SOURCE:
                names = _texts(read_source(found.path, file_name(base, found.path)))
            for name in names:
                self._visit(f"{base}.{name}")

    def _visit(self, name: str) -> Found:
        found = self.finder.find(name)
        if name in self._seen:
            return found
        self._seen.add(name)
        if found.kind is Kind.SITE:
            self.top_levels.add(name.partition(".")[0])
        elif found.kind in (Kind.SOURCE, Kind.EXTENSION, Kind.BYTECODE) and found.path not in self.sources:
            self._queue.append((name, found))
        return found


def resolve(statement: Import, module: str, is_of_package: bool) -> str | None:
    """The absolute name that an import statement in `module` asks for; None beyond the top package."""
    if statement.level == 0:
        return statement.module or None
    parts = module.split(".") if is_of_package else module.split(".")[:-1]
    up = statement.level - 1
    if up > len(parts) or not parts:
        # A script run as `__main__` has no package: a relative import there raises when it runs.
        return None
    base = parts[: len(parts) - up] if up else parts
    full = [*base, *([statement.module] if statement.module else [])]
    return ".".join(full) or None


def is_package(path: str) -> bool:
    """Whether a file is the `__init__` of a package."""
    return os.path.basename(path).startswith("__init__.")


def _texts(source: SourceFile) -> list[str]:
    """What the text of a package may list in `__all__`: any identifier that stands in it as text."""
    found: dict[str, None] = {}
    queue: list[Any] = [const for code in nested(source.code) for const in code.co_consts]
    for const in queue:
        if isinstance(const, tuple):
            queue += const
        elif isinstance(const, str) and const.isidentifier():
            found[const] = None
    return list(found)
