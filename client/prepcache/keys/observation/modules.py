"""The files of modules that a function loads, or asks for by name."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.labels import space_of
from prepcache.keys.code.project import Places


def with_imports(path: str, places: Places) -> tuple[list[str], set[str]]:
    """A module's file, those of the project that it imports, and the top-level modules of distributions."""
    graph = ImportGraph(places)
    if path.endswith(".py"):
        names = {_file_of(one): name for name, one in list(sys.modules.items())}
        with contextlib.suppress(UnkeyableError):  # it can't be parsed: it counts, and imports nothing
            graph.add_file(names.get(path, "__unknown__"), path)
    return list(dict.fromkeys((path, *graph.files.values()))), set(graph.top_levels)


def _file_of(module: Any) -> str | None:
    """The file of a loaded module, if it says one."""
    return space_of(module).get("__file__")


def files_of_module(module: str) -> list[str]:
    """The files of a loaded module and of the packages it lies in; of a package, also those of all loaded
    modules in it: of "a.b.C" hydra imports `a`, and gets the rest by attributes."""
    names = _names_down_to(module)
    if hasattr(sys.modules.get(module), "__path__"):
        names += [name for name in list(sys.modules) if name.startswith(module + ".")]
    return [path for name in names if (path := _file_of(sys.modules.get(name))) is not None]


def files_awaited(module: str) -> list[str]:
    """Where a module that is not loaded would be found; of several in a dotted name, the outermost."""
    missing = next((name for name in _names_down_to(module) if sys.modules.get(name) is None), None)
    if missing is None:
        return []
    above, _, last = missing.rpartition(".")
    folders = getattr(sys.modules[above], "__path__", ()) if above else sys.path
    return [
        os.path.join(os.path.abspath(folder), *ending)
        for folder in folders
        for ending in ((f"{last}.py",), (last, "__init__.py"))
    ]


def _names_down_to(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
