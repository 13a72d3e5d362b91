"""Stable names for what is loaded: modules, functions and classes.

Invariants:
    1. A label holds no address, path of the checkout, line number or cell counter.
    2. Two objects of one fingerprint never share a label: the second of a name gets `#2`.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Container
from importlib.machinery import EXTENSION_SUFFIXES
from types import FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

from prepcache.keys.code.project import Place, Places, dotted_name

ENTRY_SCRIPT = ("__main__", "__mp_main__")
"""The entry script: in the job, and in the workers that `multiprocessing` spawns."""

_unregistered: weakref.WeakValueDictionary[str, ModuleType] = weakref.WeakValueDictionary()


def module_label(namespace: dict[str, Any]) -> str:
    """The name of the module of these globals; a script is named by its file."""
    name = namespace.get("__name__")
    if name not in ENTRY_SCRIPT and isinstance(name, str):
        return name
    spec = namespace.get("__spec__")
    if spec is not None and getattr(spec, "name", None):
        return str(spec.name)
    file = namespace.get("__file__")
    if file is None:  # a script has ended: its `__file__` is gone before what waits for the exit runs
        file = getattr(namespace.get("__loader__"), "path", None)
    return dotted_name(file) if isinstance(file, str) else "__main__"  # as notebook cells


def class_module(cls: type) -> str:
    """The module that a class names; some classes in C name none."""
    name: object = cls.__module__
    return name if isinstance(name, str) else ""


def class_module_label(cls: type) -> str:
    name = class_module(cls)
    module = sys.modules.get(name)
    return module_label(vars(module)) if name in ENTRY_SCRIPT and module is not None else name


def folders_of(module: ModuleType) -> list[str]:
    """Where a package's submodules lie. A namespace package's path may raise."""
    try:
        return [str(folder) for folder in getattr(module, "__path__", ())]
    except (KeyError, TypeError, AttributeError):
        return []


def space_of(module: Any) -> dict[str, Any]:
    """What a module, or what stands in the place of one, holds; no code of its runs."""
    try:
        space = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return space if isinstance(space, dict) else {}


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
    file = getattr(module_named(module), "__file__", None)
    if file is None and (package := module.rpartition(".")[0]):
        return file_of(package)
    return module, file if isinstance(file, str) else None


def name_of(module: Any) -> str:
    """A module's name; of another object among the modules, that which it was put under."""
    if isinstance(module, ModuleType):
        return module.__name__
    return min((name for name, one in list(sys.modules.items()) if one is module), default="")


def place_of_module(module: Any, places: Places) -> Place:
    """Where a loaded module belongs; what was put in the place of one, by the file that it names."""
    if not isinstance(module, ModuleType):
        file = space_of(module).get("__file__")
        return places.of(file) if isinstance(file, str) else Place.PROJECT
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return places.of(file)
    name = getattr(module, "__name__", "")
    if name in sys.builtin_module_names or name.partition(".")[0] in sys.stdlib_module_names:
        return Place.STDLIB
    folders = folders_of(module)
    return places.of(folders[0]) if folders else Place.PROJECT


def place_of_class(cls: type, places: Places) -> Place:
    name = class_module(cls)
    module = module_named(name)
    if _is_in_c(cls) and not isinstance(getattr(module, "__file__", None), str):
        return Place.STDLIB
    if module is None:
        is_library = not name or name.partition(".")[0] in sys.stdlib_module_names
        return Place.STDLIB if is_library else Place.PROJECT
    place = place_of_module(module, places)
    if place is not Place.PROJECT and _is_made_elsewhere(cls, module):
        return Place.PROJECT
    return place


def _is_in_c(cls: type) -> bool:
    kinds = (WrapperDescriptorType, MethodDescriptorType)
    return any(isinstance(value, kinds) and value.__objclass__ is cls for value in vars(cls).values())


def _is_made_elsewhere(cls: type, module: ModuleType) -> bool:
    """Whether a class names a module that does not define it: `make_dataclass` says `types`."""
    codes = [value.__code__ for value in vars(cls).values() if isinstance(value, FunctionType)]
    is_from_there = any(code.co_filename == getattr(module, "__file__", None) for code in codes)
    is_named = "<" in cls.__qualname__ or cls.__qualname__.split(".")[0] in vars(module)
    return bool(codes) and not is_from_there and not is_named


def unique(wanted: str, taken: Container[str], counts: dict[str, int]) -> str:
    """The wanted name, or that and a number; `counts` has the last number of each name."""
    name, count = wanted, counts.get(wanted, 1)
    while name in taken:
        count += 1
        name = f"{wanted}#{count}"
    if count > 1:
        counts[wanted] = count
    return name


class Labels:
    """Gives each object its label, in the order in which they are met, and says what is the project's."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._projects: dict[type, bool] = {}
        self._given: dict[int, tuple[str, Any]] = {}
        self._names: set[str] = set()
        self._counts: dict[str, int] = {}

    def known(self, value: Any) -> str | None:
        entry = self._given.get(id(value))
        return None if entry is None else entry[0]

    def functions(self) -> list[FunctionType]:
        return [value for _, value in self._given.values() if isinstance(value, FunctionType)]

    def definitions(self) -> list[tuple[str, FunctionType | type]]:
        return [one for one in self._given.values() if isinstance(one[1], FunctionType | type)]

    def give(self, value: Any, wanted: str) -> str:
        label = unique(wanted, self._names, self._counts)
        self._names.add(label)
        self._given[id(value)] = (label, value)  # kept alive: an id is unique only while it lives
        return label

    def of_module(self, space: dict[str, Any]) -> str:
        return self.known(space) or self.give(space, module_label(space))

    def is_project(self, cls: type) -> bool:
        if cls not in self._projects:
            file = file_of(class_module(cls))[1]
            is_in_c = file is not None and file.endswith(tuple(EXTENSION_SUFFIXES))  # whose bytes count
            self._projects[cls] = not is_in_c and place_of_class(cls, self._places) is Place.PROJECT
        return self._projects[cls]

    def is_library(self, function: FunctionType) -> bool:
        """The project's are those whose file or globals are. `functools.wraps` copies `__module__`."""
        filename, file = function.__code__.co_filename, function.__globals__.get("__file__")
        if filename.startswith("<frozen"):
            return str(function.__globals__.get("__name__")).partition(".")[0] in sys.stdlib_module_names
        is_ours = not isinstance(file, str) or self._places.of(file) is Place.PROJECT
        if not os.path.isabs(filename) or (is_ours and isinstance(file, str)):
            return not is_ours
        return self._places.of(filename) is not Place.PROJECT

    def place_of(self, module: Any) -> Place:
        return place_of_module(module, self._places)

    def is_library_module(self, module: Any) -> bool:
        return self.place_of(module) is not Place.PROJECT
