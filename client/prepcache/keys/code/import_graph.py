"""Source files and what they import, transitively: imports wherever they stand, with the `__init__` of every
package on the way, and texts that may name a module, in code that calls an importer.

Invariants:
    1. No module is imported, no line of the project runs, and nothing is written.
    2. Modules that are loaded answer for themselves; others are found as the import system would find them.
    3. What was read of a file is used again only under the stamp that it was read under, and only if that
       stamp was old enough to tell a later write.
"""

from __future__ import annotations

import ast
import dis
import functools
import marshal
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import resolve_name
from inspect import CO_OPTIMIZED
from types import CodeType, ModuleType
from typing import Any, NamedTuple
from warnings import catch_warnings

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.forks import kept
from prepcache.keys.code import project
from prepcache.keys.code.fingerprint import fingerprint, instructions, nested
from prepcache.keys.code.names import ASKING, all_names, texts_in
from prepcache.keys.files.stat_cache import Stamp, is_racy, racy_window_ns, stamp_of

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_LOAD_CONST, _LOAD_SMALL_INT = dis.opmap["LOAD_CONST"], dis.opmap.get("LOAD_SMALL_INT", -1)
_BINDS = (dis.opmap["STORE_NAME"], dis.opmap["STORE_GLOBAL"])
_IMPORTERS = frozenset({"import_module", "__import__", "find_spec", "find_loader", "resolve_name", "modules"})
"""Names in code whose texts may name modules; `modules` is that of `sys`."""
_NAMESPACES = frozenset({"globals", "vars", "dir", "__dict__", "getmembers"})
"""What gives functions to a library without their names."""
_MODULE_NAME = re.compile(r"(\.*)([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_read: dict[str, tuple[SourceFile, int]] = {}
Import = tuple[int, str, tuple[str, ...]]  # the level, the module, and what `from` takes


@dataclass(eq=False)
class SourceFile:
    """One state of a source file: the digest of its bytes, and the code that they compile to."""

    path: str
    stamp: Stamp
    digest: str
    code: CodeType

    @kept
    def _codes(self) -> frozenset[CodeType]:
        return frozenset(nested(self.code))

    def makes(self, code: CodeType) -> bool:
        """Whether loading the file makes code that does the same."""
        return code in self._codes or fingerprint(code) in map(fingerprint, self._codes)

    def parsed(self) -> ast.Module:
        with open(self.path, "rb") as file, catch_warnings(action="ignore"):
            return ast.parse(file.read())

    @kept
    def literals(self) -> dict[str, Any]:
        """The names that its text binds once, at the top level to a literal."""
        bound = Counter(c.co_names[n] for c in self._codes for _, op, n in instructions(c) if op in _BINDS)
        found: dict[str, Any] = {}
        with suppress(OSError, SyntaxError):
            for node in self.parsed().body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                    with suppress(ValueError, TypeError, RecursionError):
                        found[getattr(target, "id", "")] = ast.literal_eval(node.value)
        return {name: literal for name, literal in found.items() if bound[name] == 1}

    @kept
    def handed_on(self) -> set[str]:
        """The names and texts in it, less those of what it only defines, imports or calls."""
        nodes, found = [*ast.walk(self.parsed())], set[str]()
        used = {id(one.func) for one in nodes if isinstance(one, ast.Call)}
        used |= {id(one.value) for one in nodes if isinstance(one, ast.Attribute)}
        for node in nodes:
            is_given = getattr(node, "decorator_list", ()) or getattr(node, "asname", None)
            for part in ("name",) if is_given else ("id", "attr", "value"):
                if type(text := getattr(node, part, None)) is str and id(node) not in used:
                    found.add(text)
        return found

    def says(self, name: str, value: Any) -> bool:
        """Whether it binds a name to this literal; an instance of a subclass is none."""
        with suppress(ValueError):
            return name in self.literals and marshal.dumps(value, 2) == marshal.dumps(self.literals[name], 2)
        return False


def asks_for_others(sources: list[SourceFile]) -> bool:
    """Whether a library may call code of files that asks "questions": not what they call alone, as `main`."""
    every = set[str]().union(*(all_names(source.code) for source in sources))
    is_any = not _NAMESPACES.isdisjoint(every)
    names = every if is_any else set[str]().union(*(source.handed_on for source in sources))
    codes = [one for source in sources for one in nested(source.code)]
    rest = [one for one in codes if one.co_name[0] != "<" or one.co_name == "<lambda>"]

    def is_kept(one: CodeType) -> bool:  # or no function at the top level
        return one.co_name in names or not (one.co_flags & CO_OPTIMIZED and one.co_qualname.isidentifier())

    while found := [*filter(is_kept, rest)]:
        rest = [one for one in rest if not is_kept(one)]
        names = names.union(*map(all_names, found))
    return not ASKING.isdisjoint(names)


class Found(NamedTuple):
    """What an import means: a file, the folders of submodules, an installed module, or nothing."""

    path: str = ""
    folders: tuple[str, ...] = ()
    is_installed: bool = False


class ImportGraph:
    """The files that count. `search`: folders to find modules in, asking nothing of what is loaded."""

    def __init__(self, places: project.Places, search: Sequence[str] | None = None) -> None:
        self.files: dict[str, str] = {}  # name in the recipe to path
        self.modules: dict[str, str] = {}  # module name to path, of project files
        self.wanted: dict[str, set[str]] = {}  # module name to what it imports
        self.top_levels: set[str] = set()  # those of distributions that are used
        self.sources: dict[str, SourceFile] = {}  # by path; extension modules have none
        self.edited: set[str] = set()  # loaded files that can no longer be read: what was loaded counts alone
        self._places = places
        self._search = search
        self._found: dict[str, Found] = {}
        self._queue: list[tuple[str, str]] = []

    def add_file(self, module: str, path: str) -> None:
        if path not in self.sources:
            for name in with_packages([module])[:-1]:
                self._visit(name)
            self._queue.append((module, path))
            self._run()

    def add_imports(self, imports: Iterable[Import], module: str, is_of_package: bool) -> set[str]:
        """Counts what imports lead to, and returns the names of all that is imported."""
        new, found = self._follow(imports, module, is_of_package), set[str]()
        self._run()
        while new:
            found |= new
            new = set[str]().union(*(self.wanted.get(name, ()) for name in new)) - found
        return found

    def _run(self) -> None:
        while self._queue:
            self.count(*self._queue.pop())

    def count(self, module: str, path: str) -> None:
        wanted, count = project.file_name(module, path), 1
        name = wanted
        while name in self.files and os.path.realpath(self.files[name]) != os.path.realpath(path):
            count += 1
            name = f"{wanted}#{count}"  # another file of the same name counts already
        self.files[name] = self.modules[module] = path
        if path.endswith(project.EXTENSIONS):
            return
        try:
            source = self.sources[path] = read_source(path, name)
        except UnkeyableError:
            if self._search is not None or not project.loaded_from(path):
                raise
            self.edited.add(path)
            return
        is_package = os.path.basename(path).startswith("__init__.")
        self.wanted[module] = self._follow(imports_in(source.code), module, is_package)

    def _follow(self, imports: Iterable[Import], module: str, is_of_package: bool) -> set[str]:
        package, wanted = module if is_of_package else module.rpartition(".")[0], set[str]()
        for level, imported, parts in imports:
            with suppress(ImportError):  # beyond the top package
                base = resolve_name("." * level + imported, package)
                wanted |= {base, *(f"{base}.{part}" for part in parts)} - {""}
        for name in with_packages(wanted):
            base, _, last = name.rpartition(".")
            found = self._visit(base if last == "*" else name)
            if last == "*" and found.folders and found.path.endswith(".py"):
                # A package's `__all__` may list any of its texts.
                for text in filter(str.isidentifier, texts_in(read_source(found.path, base).code)):
                    self._visit(f"{base}.{text}")
        return wanted

    def _visit(self, name: str) -> Found:
        found = self._find(name)
        if found.is_installed:
            self.top_levels.add(name.partition(".")[0])
        elif found.path and name not in self.modules:
            self.modules[name] = found.path
            self._queue.append((name, found.path))
        return found

    def _find(self, name: str) -> Found:
        if name not in self._found:
            found, module = None, sys.modules.get(name)
            if isinstance(module, ModuleType) and self._search is None and name != "__main__":
                space = project.space_of(module)
                origin = space.get("__file__") or getattr(space.get("__spec__"), "origin", None)
                found = self._classified(name, origin, project.folders_of(space))
            self._found[name] = found or self._searched(name)
        return self._found[name]

    def _searched(self, name: str) -> Found:
        above, _, last = name.rpartition(".")
        parent = self._find(above) if above else None
        folders = self._search if parent is None else parent.folders
        if parent is not None and not folders:
            return parent if parent.is_installed else Found()
        # By the last part: a namespace package's path asks for its parent, which may not be loaded.
        spec = PathFinder.find_spec(last, folders)
        if spec is None and folders is None:  # a project that is installed to be edited
            finders = [f for f in sys.meta_path if getattr(f, "__module__", "").startswith("__editable__")]
            spec = next(filter(None, (finder.find_spec(name, None) for finder in finders)), None)
        if spec is None:
            return Found()
        if spec.origin is not None and not os.path.isfile(spec.origin):
            return Found(spec.origin)  # in an archive, where it cannot be read
        return self._classified(name, spec.origin, spec.submodule_search_locations or ()) or Found()

    def _classified(self, name: str, path: Any, folders: Iterable[str]) -> Found | None:
        if name.partition(".")[0] in (*project.SELF_MODULES, *sys.builtin_module_names):
            return Found()
        if not isinstance(path, str) or not os.path.isfile(path):
            return Found("", tuple(folders)) if folders else None
        place = self._places.of(path)
        if place is not project.Place.PROJECT:
            return Found(is_installed=place is project.Place.SITE)
        return Found(path, tuple(folders))


def with_packages(modules: Iterable[str]) -> list[str]:
    parts = [name.split(".") for name in modules]
    return sorted({".".join(names[: n + 1]) for names in parts for n in range(len(names))})


@functools.lru_cache(maxsize=20_000)
def imports_in(code: CodeType) -> tuple[Import, ...]:
    found: list[Import] = []
    for one in nested(code):
        if _IMPORT_NAME in one.co_code[::2]:
            consts: Any = (None, None)  # the last two that were loaded: the level, and what `from` takes
            for _, op, arg in instructions(one):
                if op == _IMPORT_NAME:
                    found.append((int(consts[0]), one.co_names[arg], tuple(consts[1] or ())))
                elif op in (_LOAD_CONST, _LOAD_SMALL_INT):
                    consts = consts[1], arg if op == _LOAD_SMALL_INT else one.co_consts[arg]
        if not _IMPORTERS.isdisjoint(one.co_names):
            texts = (const for const in one.co_consts if isinstance(const, str))
            found += [
                (len(text[1]), text[2], ())
                for text in filter(None, map(_MODULE_NAME.fullmatch, texts))
                if text[2] != "__main__" or one.co_flags & CO_OPTIMIZED  # `if __name__ == ...` of a script
            ]
    return tuple(dict.fromkeys(found))


def read_source(path: str, name: str) -> SourceFile:
    read_at_ns = time.time_ns()
    try:
        known, stamp = _read.get(path), stamp_of(os.stat(path))
        if known and known[0].stamp == stamp and not is_racy(stamp, known[1], racy_window_ns(stamp[0])):
            return known[0]
        # A job has seen the warnings when it loaded the file, and may raise them.
        with open(path, "rb") as file, catch_warnings(action="ignore"):
            code: Any = _Loader("source", path).get_code("source")
            found = SourceFile(path, stamp, blake3(file.read()).hexdigest(), code)
        if stamp_of(os.stat(path)) != stamp:
            raise ValueError("it is being written")
    except (OSError, SyntaxError, ValueError, EOFError, RecursionError, MemoryError) as error:
        raise UnkeyableError(
            f"{name} cannot be read or parsed ({error}), so what it imports is unknown; correct it, or name "
            f"the files that count with code=[paths], or use code=None and version=",
            path=path,
        ) from error
    _read[path] = (found, read_at_ns)
    return found


class _Loader(SourceFileLoader):
    """Uses the bytecode cache, and leaves the writing of it to imports."""

    def set_data(self, path: Any, data: Any, *, _mode: int = 0) -> None:
        pass
