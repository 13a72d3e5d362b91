"""Where files, modules and classes belong, and stable names for them.

The project is all that is no distribution's, the standard library's or prepcache's. Module files are named
by how they are imported, other files relative to the checkout that holds them.

Invariants:
    1. A label holds no address, path of the checkout, line number or cell counter.
    2. Two objects of one fingerprint never share a label: the second of a name gets `#2`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import weakref
from collections.abc import Container, Mapping, Set
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import prepcache

_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git", ".hg")
SELF_MODULES = frozenset({"prepcache", "prepcached"})  # which count by the versions of their formats
_SELF = os.path.dirname(os.path.realpath(str(prepcache.__file__))) + os.sep
EXTENSIONS = tuple(EXTENSION_SUFFIXES)
_STDLIB = tuple(os.path.realpath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib"))
SITE_NAMES = frozenset({"site-packages", "dist-packages"})


class Place(Enum):
    PROJECT = "project"
    SITE = "site"
    STDLIB = "stdlib"
    SELF = "self"


class Places:
    """Tells where files belong. `installed`: folder on `sys.path` to top-level modules of distributions."""

    def __init__(self, installed: Mapping[str, Set[str]]) -> None:
        self._installed = [(os.path.realpath(folder) + os.sep, tops) for folder, tops in installed.items()]
        self.owned = frozenset(top for tops in installed.values() for top in tops)
        self._known: dict[str, tuple[Place, str]] = {}

    def of(self, path: str) -> Place:
        return self.found(path)[0]

    def found(self, path: str) -> tuple[Place, str]:
        """Where a file belongs, and its top-level module if others are installed beside it."""
        if path not in self._known:
            self._known[path] = self._find(os.path.realpath(path))
        return self._known[path]

    def _find(self, real: str) -> tuple[Place, str]:
        if real.startswith(_SELF):
            return Place.SELF, ""
        for folder, tops in self._installed:
            if real.startswith(folder):
                top = real[len(folder) :].partition(os.sep)[0].partition(".")[0]
                return Place.SITE if top in tops else Place.PROJECT, top
        is_stdlib = real.startswith(_STDLIB) and SITE_NAMES.isdisjoint(Path(real).parts)
        return Place.STDLIB if is_stdlib else Place.PROJECT, ""


def is_checkout(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, marker)) for marker in _MARKERS)


def checkout_of(function: FunctionType) -> str | None:
    """The nearest folder above its file with a marker; without one, that above the outermost package."""
    filename = function.__code__.co_filename
    path = filename if os.path.isabs(filename) else function.__globals__.get("__file__")
    if not isinstance(path, str) or not os.path.isfile(path):
        return None
    above = map(str, Path(os.path.abspath(path)).parents)
    return next(filter(is_checkout, above), package_root(path))


@lru_cache(maxsize=4096)
def package_root(path: str) -> str:
    folder = os.path.dirname(os.path.abspath(path))
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    return folder


def dotted_name(path: str) -> str:
    """The module name under which the file at `path` would be imported from its package root."""
    relative = os.path.relpath(os.path.abspath(path), package_root(path))
    return os.path.splitext(relative)[0].removesuffix("/__init__").replace(os.sep, ".")


def file_name(module: str, path: str) -> str:
    """The name of a module's file in the recipe: its module name as a path, with the file's ending."""
    stem, dot, suffix = os.path.basename(path).partition(".")
    return module.replace(".", "/") + ("/__init__" if stem == "__init__" else "") + dot + suffix


def working_folder() -> str | None:
    with suppress(OSError):  # it was removed
        return os.getcwd()
    return None


ENTRY_SCRIPT = ("__main__", "__mp_main__")  # in the job, and in workers that `multiprocessing` spawns
_unregistered: weakref.WeakValueDictionary[str, ModuleType] = weakref.WeakValueDictionary()


def module_label(namespace: dict[str, Any]) -> str:
    """The name of the module with these globals; a script is named by its file."""
    name = namespace.get("__name__")
    if name not in ENTRY_SCRIPT and isinstance(name, str):
        return name
    if name := getattr(namespace.get("__spec__"), "name", None):
        return str(name)
    # A script that has ended: its `__file__` is gone before what waits for the exit runs.
    file = namespace.get("__file__") or getattr(namespace.get("__loader__"), "path", None)
    return dotted_name(file) if isinstance(file, str) else "__main__"  # as notebook cells


def class_module(cls: type) -> str:
    name: object = cls.__module__  # some classes in C name none
    return name if isinstance(name, str) else ""


def class_label(cls: type) -> str:
    name = class_module(cls)
    module = sys.modules.get(name) if name in ENTRY_SCRIPT else None
    return f"{name if module is None else module_label(vars(module))}.{cls.__qualname__}"


def folders_of(space: Mapping[str, Any]) -> list[str]:
    with suppress(KeyError, TypeError, AttributeError):  # by the path of a namespace package
        return [str(folder) for folder in space.get("__path__", ())]
    return []


def space_of(module: Any) -> dict[str, Any]:
    """What a module, or what stands in the place of one, holds; no code of its runs."""
    space = None
    with suppress(AttributeError):
        space = object.__getattribute__(module, "__dict__")
    return space if isinstance(space, dict) else {}


def loaded_from(path: str) -> list[Any]:
    here = working_folder() or ""
    files = ((one, space_of(one).get("__file__")) for one in list(sys.modules.values()))
    return [one for one, file in files if isinstance(file, str) and os.path.join(here, file) == path]


def globals_of(held: FunctionType | type) -> dict[str, Any]:
    return space_of(sys.modules.get(class_module(held))) if isinstance(held, type) else held.__globals__


def note_module(module: Any) -> None:
    """Notes a loaded module that is not in `sys.modules`, as those that torch builds."""
    if isinstance(module, ModuleType) and sys.modules.get(module.__name__) is not module:
        _unregistered[module.__name__] = module


def module_named(name: str) -> ModuleType | None:
    return _unregistered.get(name) or sys.modules.get(name)


def file_of(module: str) -> tuple[str, str | None]:
    """A loaded module that has a file, and the file: one made by an extension module has its package's."""
    file = space_of(module_named(module)).get("__file__")
    if file is None and (package := module.rpartition(".")[0]):
        return file_of(package)
    return module, file if isinstance(file, str) else None


def unique(wanted: str, taken: Container[str], counts: dict[str, int]) -> str:
    """The wanted name, or that and a number; `counts` has the last number of each name."""
    name = wanted
    while name in taken:
        counts[wanted] = counts.get(wanted, 1) + 1
        name = f"{wanted}#{counts[wanted]}"
    return name


class Labels:
    """Gives each object its label, in the order in which they are met, and says what is the project's."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._projects: dict[type, bool] = {}
        self._given: dict[int, tuple[str, Any]] = {}
        self._counts: dict[str, int] = {}  # labels given, and the last number of each

    def known(self, value: Any) -> str | None:
        return self._given.get(id(value), (None, None))[0]

    def functions(self) -> list[FunctionType]:
        return [value for _, value in self._given.values() if isinstance(value, FunctionType)]

    def definitions(self) -> list[tuple[str, FunctionType | type]]:
        return [one for one in self._given.values() if isinstance(one[1], FunctionType | type)]

    def give(self, value: Any, wanted: str) -> str:
        label = unique(wanted, self._counts, self._counts)
        self._counts.setdefault(label, 1)
        self._given[id(value)] = (label, value)  # kept alive: an id is unique only while it lives
        return label

    def of_module(self, space: dict[str, Any]) -> str:
        return self.known(space) or self.give(space, module_label(space))

    def is_project(self, cls: type) -> bool:
        if cls not in self._projects:
            self._projects[cls] = self._is_project(cls)
        return self._projects[cls]

    def _is_project(self, cls: type) -> bool:
        name, held = class_module(cls), vars(cls).values()
        module, file = module_named(name), file_of(name)[1]
        if file is not None and file.endswith(EXTENSIONS):  # whose bytes count
            return False
        space, kinds = space_of(module), (WrapperDescriptorType, MethodDescriptorType)
        is_in_c = any(isinstance(value, kinds) and value.__objclass__ is cls for value in held)
        if is_in_c and not isinstance(space.get("__file__"), str):
            return False
        if module is None:
            return name.partition(".")[0] not in {"", *sys.stdlib_module_names}
        is_named = "<" in cls.__qualname__ or cls.__qualname__.split(".")[0] in space
        files = {one.__code__.co_filename for one in held if isinstance(one, FunctionType)}
        is_made = bool(files) and space.get("__file__") not in files and not is_named  # as by make_dataclass
        return is_made or self.place_of(space) is Place.PROJECT

    def is_library(self, function: FunctionType) -> bool:
        """The project's are those whose file or globals are. `functools.wraps` copies `__module__`."""
        filename = function.__code__.co_filename
        is_ours = self.place_of(function.__globals__) is Place.PROJECT
        is_file_ours = os.path.isabs(filename) and self.places.of(filename) is Place.PROJECT
        return not (is_ours or is_file_ours)

    def place_of(self, space: dict[str, Any]) -> Place:
        """Where the module with these globals belongs."""
        if isinstance(file := space.get("__file__"), str):
            return self.places.of(file)
        name = str(space.get("__name__"))
        if name in sys.builtin_module_names or name.partition(".")[0] in sys.stdlib_module_names:
            return Place.STDLIB
        folders = folders_of(space)
        if not folders and "." in name:  # as `torch.backends.cudnn`, an object in the place of its module
            folders = [str(space_of(sys.modules.get(name.partition(".")[0])).get("__file__", ""))]
        return self.places.of(folders[0]) if folders else Place.PROJECT
