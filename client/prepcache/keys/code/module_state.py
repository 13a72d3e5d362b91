"""Modules that functions import themselves: their files count whole, and what they hold, if they are loaded.

What a loaded one holds counts as it is, as far as some code names it: a job may have set it since
(`cfg.SIZE = 512`), or have edited the file.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code import labels, resolution
from prepcache.keys.code.dynamic_lookups import ANY, is_dynamic, module_look_ups, texts_in
from prepcache.keys.code.import_graph import (
    Import,
    ImportGraph,
    SourceFile,
    homes_of,
    imports_in,
    is_package,
    read_source,
)
from prepcache.keys.code.names import all_names, attributes_beyond
from prepcache.keys.code.project import file_name
from prepcache.keys.environment import started_ns
from prepcache.keys.files.stamps import Stamp

if TYPE_CHECKING:
    from prepcache.keys.code.dependencies import Dependencies

_awaited: dict[str, Stamp] = {}
"""The stamps of files that no module was loaded from when they were last looked at, by path. A module that
is loaded later is of that text while the stamp is the same."""


class ModuleState:
    """Follows imports that stand in functions. Lives for one fingerprint.

    Attributes:
        is_followed: whether any module of the project is imported so.
        loaded: the modules that were met and are loaded.
        is_settling: whether settings of libraries are counted, which count only where they contradict their
            text: such a library is loaded in one job and not in the next.
    """

    def __init__(self, graph: ImportGraph) -> None:
        self.is_followed = self.is_settling = False
        self.loaded: set[str] = set()
        self._graph = graph
        self._whole: dict[str, SourceFile] = {}
        self._names: set[str] = set()

    def follow(self, walk: Dependencies, code: CodeType, module: str, *, is_of_package: bool) -> None:
        """Counts what code imports itself that stands in a module; `is_of_package`: in a package."""
        imports = list(dict.fromkeys(imports_in(code)))
        if not imports:
            return
        self._graph.add_imports(imports, module, is_of_package)
        self._beyond_files(walk, all_names(code), imports, module, is_of_package)
        reached = self._graph.imported_from(imports, module, is_of_package)
        self.is_followed |= bool(reached)
        names, is_any = all_names(code) | {"__getattr__"}, is_dynamic(code)
        sources = {name: source for name in reached if (source := self._source(name)) is not None}
        for name, source in sources.items():
            names |= source.names
            is_any |= is_dynamic(source.code)
            if name not in self._whole:
                self._whole[name] = source
                walk.asked.note_code(source.code)
                self._beyond_files(walk, source.names, source.imports, name, is_package(source.path))
        resolution.count_builtins(walk, names)
        for name in reached:
            loaded = sys.modules.get(name)
            if loaded is None:
                if name in sources:
                    _awaited[sources[name].path] = sources[name].stamp
                continue
            self.loaded.add(name)
            if is_any or type(loaded) is not ModuleType:
                resolution.count_module(walk, loaded, ())
            else:
                self._count_held(walk, name, names)

    def count_loaded(self, walk: Dependencies) -> None:
        """Counts all that is loaded of the project, by its files and what it holds under names by which code
        that counts may read attributes of it: a computed name may lead to any of it."""
        codes = [(function.__code__, function.__globals__) for function in walk.labels.functions()]
        codes += [(code, {}) for code in self.codes()]
        texts = set() if self._names else set(walk.asked.texts)
        if self._names:  # code that only a computed name leads to reads of modules that it looks up itself
            codes = [one for one in codes if ANY in module_look_ups(one[0])]
        for code, space in codes:
            texts.update(texts_in(code))
            self._names |= attributes_beyond(code, space)
        self._names |= {text.partition(".")[0] for text in texts}  # `attrgetter("cfg.size")`
        found = self._graph.loaded_of_project
        self.is_followed |= bool(found)
        self.loaded.update(found)
        self._graph.add_imports([Import(0, name) for name in found], "", False)
        for module in found:
            self._count_held(walk, module, self._names)

    def _count_held(self, walk: Dependencies, module: str, names: set[str]) -> None:
        """Counts what a loaded module holds under names; of modules those that no statement imports there."""
        space, source = vars(sys.modules[module]), self._source(module)
        homes = homes_of(source.imports, module, "__path__" in space) if source is not None else []
        for name in sorted(names & space.keys()):
            is_stated = isinstance(space[name], ModuleType) and space[name].__name__ in homes
            if not (is_stated or _is_closed(space[name])):
                resolution.count_global(walk, space, module, name, {()})

    def _beyond_files(
        self, walk: Dependencies, names: set[str], imports: Iterable[Import], module: str, is_of_package: bool
    ) -> None:
        """Counts imported modules that are of no counted file: whole, what a job has put in the place of one;
        of libraries what they hold under any name in the code."""
        for home in homes_of(imports, module, is_of_package):
            loaded = None if home in self._graph.modules else sys.modules.get(home)
            if loaded is None:
                continue
            self.loaded.add(home)
            if not walk.labels.is_library_module(loaded):
                resolution.count_module(walk, loaded, ())
                continue
            self.is_settling = True
            space = labels.space_of(loaded)
            for name in sorted(names & space.keys()):
                held = space[name]
                inner = names & vars(held).keys() if isinstance(held, type) else ()
                if not isinstance(held, ModuleType):  # which counts if it is imported itself
                    for chain in ((name,), *((name, one) for one in sorted(inner))):
                        resolution.count_module(walk, loaded, chain)
            self.is_settling = False

    def codes(self) -> list[CodeType]:
        return [source.code for _, source in sorted(self._whole.items())]

    def is_as_installed(self, module: str, name: str, value: Any) -> bool:
        """Whether a library holds what its text says under a name, or what it has from C."""
        source = self._source(module)
        return source is None or source.says(name, value)

    def older_texts(self, came: Iterable[str]) -> dict[str, str]:
        """The modules, to their files, of labels that were not there where the recipe was made: what may have
        been loaded here from another text than is there now."""
        parts = [label.split(".") for label in came]
        holders = {".".join(names[:n]) for names in parts for n in range(len(names))}
        found = {}
        for module in holders & self._graph.modules.keys():
            path = self._graph.modules[module]
            source = self._graph.sources.get(path)
            if source is None or _awaited.get(path) == source.stamp or max(source.stamp[3:]) < started_ns():
                continue
            found[module] = file_name(module, path)
        return found

    def _source(self, module: str) -> SourceFile | None:
        if module in self._graph.modules:
            return self._graph.sources.get(self._graph.modules[module])
        path = getattr(sys.modules.get(module), "__file__", None)
        with suppress(UnkeyableError):
            return read_source(path, module) if isinstance(path, str) and path.endswith(".py") else None
        return None


def _is_closed(value: Any) -> bool:
    """Whether a value is a closed file, as `with open(...) as file` leaves behind."""
    with suppress(ValueError):  # it was detached
        return isinstance(value, io.IOBase) and value.closed
    return True
