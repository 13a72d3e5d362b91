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
from collections.abc import Iterable, Sequence
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, PathFinder
from types import ModuleType
from typing import Any, NamedTuple

from prepcache.errors import UnkeyableError
from prepcache.keys.code.dynamic_lookups import texts_in
from prepcache.keys.code.labels import folders_of, space_of
from prepcache.keys.code.project import SELF_MODULES, Place, Places, file_name
from prepcache.keys.code.source_files import Import, SourceFile, archive_of, read_source


class Found(NamedTuple):
    """What an import means: nothing that counts, by default.

    Args:
        path: the file of a module of the project; none for a namespace package.
        folders: where submodules are looked for.
        is_installed: whether it is of an installed distribution.
    """

    path: str = ""
    folders: tuple[str, ...] = ()
    is_installed: bool = False


class ImportGraph:
    """The files counted so far. Grows by `add_file` and `add_imports`. Lives for one fingerprint.

    Args:
        places: tells the project's files from installed ones.
        search: folders to find modules in, where nothing is to be asked of what is loaded.

    Attributes:
        files: name in the recipe to path.
        modules: module name to path, of project files.
        top_levels: top-level names of what is imported from installed distributions.
        sources: path to the source file; extension modules have none.
        edited: paths of loaded files that can no longer be read or parsed: what was loaded counts alone.
    """

    def __init__(self, places: Places, search: Sequence[str] | None = None) -> None:
        self.files: dict[str, str] = {}
        self.modules: dict[str, str] = {}
        self.top_levels: set[str] = set()
        self.sources: dict[str, SourceFile] = {}
        self.edited: set[str] = set()
        self._places = places
        self._search = search
        self._found: dict[str, Found] = {}
        self._visited: set[str] = set()
        self._queue: list[tuple[str, str]] = []

    def add_file(self, module: str, path: str) -> None:
        """Counts the source file at `path`, known as `module`, and all that it imports."""
        if path not in self.sources:
            self._visited.add(module)
            self._add_parents(module)
            self._queue.append((module, path))
            self._run()

    def add_extension(self, module: str, path: str) -> None:
        """Counts a loaded extension module of the project by its bytes."""
        if path not in self.files.values():
            self._count(module, path)

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

    # -- counting --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._queue:
            self._count(*self._queue.pop())

    def _count(self, module: str, path: str) -> None:
        if path.endswith(tuple(BYTECODE_SUFFIXES)):
            raise UnkeyableError(
                f"module {module} exists only as bytecode ({path}), so what it imports is unknown; "
                f"keep its source, or use code=None and version=",
                path=path,
            )
        name = wanted = file_name(module, path)
        count = 1
        while name in self.files and os.path.realpath(self.files[name]) != os.path.realpath(path):
            count += 1
            name = f"{wanted}#{count}"  # another file of the same name counts already
        self.files[name] = self.modules[module] = path
        if path.endswith(tuple(EXTENSION_SUFFIXES)):
            return
        try:
            source = self.sources[path] = read_source(path, name)
        except UnkeyableError:
            if self._search is not None or not _is_loaded_from(path):
                raise
            self.edited.add(path)
            return
        self._follow(source.imports, module, is_package(path))

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
            names: Iterable[str] = statement.names if found.folders else ()
            if "*" in names and found.path.endswith(".py"):  # a package's `__all__` may list any of its texts
                names = filter(str.isidentifier, texts_in(read_source(found.path, base).code))
            for name in names:
                self._visit(f"{base}.{name}")

    def _visit(self, name: str) -> Found:
        found = self._find(name)
        if name not in self._visited:
            self._visited.add(name)
            if found.is_installed:
                self.top_levels.add(name.partition(".")[0])
            elif found.path and found.path not in self.sources:
                self._queue.append((name, found.path))
        return found

    # -- finding ---------------------------------------------------------------------------------------

    def _find(self, name: str) -> Found:
        """What `import name` means; for a dotted name, what its last part does."""
        if name not in self._found:
            self._found[name] = self._of_loaded(name) or self._searched(name)
        return self._found[name]

    def _of_loaded(self, name: str) -> Found | None:
        module = sys.modules.get(name) if self._search is None and name != "__main__" else None
        if not isinstance(module, ModuleType):
            return None
        origin = getattr(module, "__file__", None) or getattr(
            getattr(module, "__spec__", None), "origin", None
        )
        return self._classified(name, origin, folders_of(module))

    def _searched(self, name: str) -> Found:
        above, _, last = name.rpartition(".")
        folders = self._search
        if above:
            parent = self._find(above)
            folders = parent.folders
            if not folders:
                return parent if parent.is_installed else Found()
        # By the last part: a namespace package's path asks for its parent, which may not be loaded.
        spec = PathFinder.find_spec(last, folders)
        if spec is None and folders is None:  # a project that is installed to be edited
            finders: list[Any] = [
                f for f in sys.meta_path if getattr(f, "__module__", "").startswith("__editable__")
            ]
            spec = next(filter(None, (finder.find_spec(name, None) for finder in finders)), None)
        if spec is None:
            return Found()
        return self._classified(name, spec.origin, spec.submodule_search_locations or ()) or Found()

    def _classified(self, name: str, path: Any, folders: Iterable[str]) -> Found | None:
        """What a file, or the folders of a namespace package, stand for; None where there are none."""
        if name.partition(".")[0] in (*SELF_MODULES, *sys.builtin_module_names):
            return Found()
        if not isinstance(path, str) or not (os.path.isfile(path) or archive_of(path)):
            return Found("", tuple(folders)) if folders else None
        place = self._places.of(path)
        if place is not Place.PROJECT:
            return Found(is_installed=place is Place.SITE)
        return Found(path, tuple(folders))


def _is_loaded_from(path: str) -> bool:
    files = (space_of(module).get("__file__") for module in list(sys.modules.values()))
    return any(isinstance(file, str) and os.path.abspath(file) == path for file in files)


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
