"""The files that a file imports, transitively: what counts under `code="script"`.

Imports count wherever they stand (conditional, in a function, under `try`), with the `__init__` of
every package on the way. Names that mean nothing here (an optional dependency that is absent) count as
absent, simply by not being in the result: once they mean something, the result differs.

Invariants:
    1. No module is imported and no line of the project runs.
    2. The result does not depend on what happens to be loaded, unless what is loaded came from
       elsewhere than an import would find it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prepcache.errors import UnkeyableError
from prepcache.keys.code.facts import Import
from prepcache.keys.code.memory import Memory
from prepcache.keys.code.modules import Finder, Found, Kind
from prepcache.keys.code.parsed import Parsed
from prepcache.keys.code.project import file_name


@dataclass(slots=True)
class Closure:
    """The files counted so far. Grows by `add_file` and `add_imports`."""

    finder: Finder
    memory: Memory
    files: dict[str, str] = field(default_factory=dict)
    """Name in the recipe to path."""
    modules: dict[str, str] = field(default_factory=dict)
    """Module name to path, of project files."""
    top_levels: set[str] = field(default_factory=set)
    """Top-level names of what is imported from installed distributions."""
    parsed: dict[str, Parsed] = field(default_factory=dict)
    """Path to what the source file says; extension modules have none."""
    _seen: set[str] = field(default_factory=set)
    _queue: list[tuple[str, Found]] = field(default_factory=list)

    def add_file(self, module: str, path: str) -> None:
        """Counts the source file at `path`, known as `module`, and all that it imports."""
        if path not in self.parsed:
            self._seen.add(module)
            folders = (os.path.dirname(path),) if os.path.basename(path).startswith("__init__.") else ()
            self._add_parents(module)
            self._queue.append((module, Found(Kind.SOURCE, path, folders)))
            self._run()

    def add_extension(self, module: str, path: str) -> None:
        """Counts a loaded extension module of the project by its bytes."""
        if module not in self.modules:
            self._count(module, Found(Kind.EXTENSION, path))

    def add_imports(self, imports: Sequence[Import], module: str, is_package: bool) -> set[str]:
        """Counts what these imports, standing in `module`, bring in.

        Returns:
            The paths of the source files that did not count before.
        """
        before = set(self.parsed) if imports else set()
        self._follow(imports, module, is_package)
        self._run()
        return set(self.parsed) - before if imports else set()

    def _run(self) -> None:
        while self._queue:
            module, found = self._queue.pop()
            self._count(module, found)

    def _count(self, module: str, found: Found) -> None:
        name = file_name(module, found.path)
        if found.kind is Kind.BYTECODE:
            raise UnkeyableError(
                f"module {module} exists only as bytecode ({found.path}), so what it imports is unknown; "
                f"keep its source, or count by hand with code=None and version=",
                path=found.path,
            )
        name = self._free_name(name, found.path)
        self.files[name] = found.path
        self.modules[module] = found.path
        if found.kind is Kind.EXTENSION:
            return
        is_package = bool(found.folders) and os.path.basename(found.path).startswith("__init__.")
        parsed = self.parsed[found.path] = self.memory.parsed(found.path, name)
        self._follow(parsed.imports, module, is_package)

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

    def _follow(self, imports: Iterable[Import], module: str, is_package: bool) -> None:
        for statement in imports:
            base = resolve(statement, module, is_package)
            if base is None:
                continue
            self._add_parents(base)
            found = self._visit(base)
            if found.kind not in (Kind.SOURCE, Kind.NAMESPACE, Kind.EXTENSION) or not found.folders:
                continue
            names: Iterable[str] = statement.names
            if "*" in statement.names and found.kind is Kind.SOURCE:
                names = _public_names(self.memory.parsed(found.path, file_name(base, found.path)))
            for name in names:
                self._visit(f"{base}.{name}")

    def _visit(self, name: str) -> Found:
        found = self.finder.find(name)
        if name in self._seen:
            return found
        self._seen.add(name)
        if found.kind is Kind.SITE:
            self.top_levels.add(name.partition(".")[0])
        elif found.kind in (Kind.SOURCE, Kind.EXTENSION, Kind.BYTECODE) and found.path not in self.parsed:
            self._queue.append((name, found))
        return found


def resolve(statement: Import, module: str, is_package: bool) -> str | None:
    """The absolute name that an import statement in `module` asks for; None beyond the top package."""
    if statement.level == 0:
        return statement.module or None
    parts = module.split(".") if is_package else module.split(".")[:-1]
    up = statement.level - 1
    if up > len(parts) or not parts:
        # A script run as `__main__` has no package: a relative import there raises when it runs.
        return None
    base = parts[: len(parts) - up] if up else parts
    full = [*base, *([statement.module] if statement.module else [])]
    return ".".join(full) or None


def _public_names(parsed: Parsed) -> list[str]:
    import ast

    text = parsed.literals.get("__all__")
    names = ast.literal_eval(text) if text is not None else ()
    return [name for name in names if isinstance(name, str)]
