"""What the names in code resolve to: values, modules of the project with what they hold, parts of libraries.

Of libraries count settings that the code reads (`ImageFile.LOAD_TRUNCATED_IMAGES`), and what a job put there.
"""

from __future__ import annotations

import builtins
import enum
import functools
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from prepcache.keys.code import dynamic_lookups, labels
from prepcache.keys.code.names import SCALARS, SKIPPED_GLOBALS, is_attribute_bag, is_used_whole
from prepcache.keys.code.project import Place
from prepcache.keys.code.values import ABSENT, Value

if TYPE_CHECKING:
    from prepcache.keys.code.dependencies import Dependencies

NONE = object()
_SHORT = 1000
"""Elements of a library's list, all that it holds included, that is still taken for a setting."""
_NO_SETTINGS = ("sys.path", "sys.meta_path")


def count_global(
    walk: Dependencies, space: dict[str, Any], module: str, name: str, chains: set[tuple[str, ...]]
) -> None:
    label = f"{module}.{name}"
    if name in SKIPPED_GLOBALS or walk.is_untracked(label):
        return
    if name not in space:
        if name not in vars(builtins):
            walk.values.setdefault(label, ABSENT)
        count_builtins(walk, [name])
        return
    value = space[name]
    walk.asked.note_global(value)
    is_renamed = value is sys and name != "sys" and any(chain[:1] in ((), ("modules",)) for chain in chains)
    if is_renamed or value is sys.modules or value is builtins.__import__:
        walk.asked.topics |= {dynamic_lookups.OF_REACHED, dynamic_lookups.ANY}
    if isinstance(value, ModuleType):
        if walk.labels.is_library_module(value):  # what is read of the project's counts by itself
            walk.values[label] = Value(blake3(value.__name__.encode()).hexdigest(), value.__name__)
        for chain in sorted(chains):
            count_module(walk, value, chain)
    elif is_attribute_bag(value):
        count_bag(walk, label, value, chains, space)
    elif value is not sys.modules:
        walk.count_value(label, value, space)


def count_builtins(walk: Dependencies, names: Iterable[str]) -> None:
    """Counts what a job has put among the builtins under names."""
    for name in sorted({*names} & vars(builtins).keys() - {"print"}):  # which jobs silence on some ranks
        _library_attribute(walk, "builtins", vars(builtins), (name,))


def count_bag(walk: Dependencies, label: str, bag: Any, chains: set[tuple[str, ...]], owner: Any) -> None:
    if any(is_used_whole(bag, chain) for chain in chains):
        walk.count_value(label, bag, owner)
        return
    for attribute in sorted({chain[0] for chain in chains}):
        walk.count_value(f"{label}.{attribute}", vars(bag).get(attribute, type(bag)), bag)


def count_module(walk: Dependencies, module: Any, chain: tuple[str, ...]) -> None:
    """Counts what a chain of attributes of a module leads to; whole, what a job put in the place of one."""
    if type(module).__module__ == "torch._ops":  # it makes operators when it is asked for them
        walk.refer_library("torch")
        found = functools.reduce(lambda one, name: getattr(one, name, None), chain[:2], module)
        if not isinstance(found, ModuleType):
            walk.count_value(f"torch.ops.{found}", found, sys)
        return
    place = walk.labels.place_of(module)
    if place is Place.SELF:
        return
    labels.note_module(module)
    space, known_as = labels.space_of(module), labels.name_of(module)
    walk.modules.loaded.add(known_as)
    walk.refer_library(known_as)
    if place is not Place.PROJECT:
        _library_attribute(walk, known_as, space, chain)
        return
    if not isinstance(module, ModuleType):
        walk.count_value(f"sys.modules.{known_as}", module, sys)
        return
    name = walk.labels.of_module(space)
    if type(module) is not ModuleType and walk.labels.is_project(type(module)):
        walk.count_value(f"{name}.__class__", type(module), module)
        whole_module(walk, module)  # its properties may read any name of it
    if not chain or chain[0] == "__dict__":
        whole_module(walk, module)
    elif chain[0] in space:
        count_global(walk, space, name, chain[0], {chain[1:]})
    elif (below := sys.modules.get(f"{known_as}.{chain[0]}")) is not None:
        count_module(walk, below, chain[1:])
    elif "__getattr__" in space:
        walk.count_value(f"{name}.__getattr__", space["__getattr__"], space)
    else:
        count_global(walk, space, name, chain[0], {chain[1:]})


def _library_attribute(walk: Dependencies, label: str, space: Any, chain: tuple[str, ...]) -> None:
    if not chain or chain[0] not in space or chain[0] in SKIPPED_GLOBALS:
        return
    value, label = space[chain[0]], f"{label}.{chain[0]}"
    if isinstance(value, ModuleType):
        count_module(walk, value, chain[1:])
    elif walk.is_untracked(label):
        return
    elif _is_put_there(walk, label, value, space):
        walk.count_value(label, value, space)
    elif (setting := setting_of(label, value)) is not NONE:
        module, _, name = label.rpartition(".")
        modules = walk.modules
        if not (modules.is_settling and modules.is_as_installed(module, name, value)):
            walk.count_value(label, setting, space)
    elif isinstance(value, type):
        _library_attribute(walk, label, vars(value), chain[1:])
    elif isinstance(value, FunctionType) and not walk.modules.is_settling:
        home = str(value.__globals__.get("__name__"))
        if not _is_of_package(home, label):
            text = f"{home}.{value.__code__.co_qualname}"
            walk.values[label] = Value(blake3(text.encode()).hexdigest(), text)
            walk.refer_library(home)


def _is_put_there(walk: Dependencies, label: str, value: Any, space: Any) -> bool:
    """Whether what a library holds is the project's, also wrapped, or in C and from elsewhere."""
    if isinstance(value, functools.partial):
        return True
    if isinstance(value, functools._lru_cache_wrapper):
        value = value.__wrapped__
    is_of_c = isinstance(value, BuiltinFunctionType) and value.__module__ is None  # functions have a module
    owner = value.__self__ if is_of_c or isinstance(value, MethodType) else None
    if owner is not None and not isinstance(owner, type | ModuleType):
        # Methods of its own objects are a library's own: of one that stands beside them (`secrets.choice`),
        # and of one beside its class, under their own name (`np.random.rand`, `torch.multiprocessing.Lock`).
        beside = [*space.values()]
        if label.rpartition(".")[2] == value.__name__:
            of_class = labels.module_named(labels.class_module(type(owner)))
            beside += labels.space_of(of_class).values()
        is_theirs = any(one is owner for one in beside)
        is_own = walk.labels.is_project(type(owner)) or not (is_theirs or walk.modules.is_settling)
        return is_own or _is_put_there(walk, label, getattr(value, "__func__", None), space)
    if isinstance(value, MethodType):
        return _is_put_there(walk, label, value.__func__, space)
    if isinstance(value, FunctionType):
        return not walk.labels.is_library(value)
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__module__, str):
        home, name = label.partition(".")[0], label.rpartition(".")[2]
        other = value.__module__.partition(".")[0]
        is_alias = value.__name__ == name and other in sys.stdlib_module_names  # `os.open` is posix's
        return not is_alias and other.strip("_") != home.strip("_")
    if isinstance(value, type):  # a library may name its class by a module that is not loaded
        return not _is_of_package(labels.class_module(value), label) and walk.labels.is_project(value)
    return walk.labels.is_project(type(value))


def _is_of_package(module: str, label: str) -> bool:
    return module.partition(".")[0] == label.partition(".")[0]


def whole_module(walk: Dependencies, module: ModuleType) -> None:
    """Counts a module that any name may be looked up in."""
    space, file = vars(module), getattr(module, "__file__", None)
    if id(space) in walk.whole_modules:
        return
    walk.whole_modules.add(id(space))
    label = walk.labels.of_module(space)
    if isinstance(file, str) and file.endswith(".py"):
        walk.graph.add_file(label, file)
    for name, value in sorted(space.items()):
        is_own = not isinstance(value, ModuleType) or value.__name__ == f"{module.__name__}.{name}"
        if is_own and not name.startswith("__"):
            count_global(walk, space, label, name, {()})


def count_home(walk: Dependencies, space: dict[str, Any], path: str | None = None) -> None:
    """Counts the module of code that looks names up by text (`globals()`, `eval`)."""
    home = sys.modules.get(str(space.get("__name__")))
    if isinstance(home, ModuleType) and not walk.labels.is_library_module(home):
        whole_module(walk, home)
    if path is not None:
        walk.graph.add_file(walk.labels.of_module(space), path)


def count_named(walk: Dependencies, space: dict[str, Any], names: Iterable[str]) -> None:
    for dotted in sorted(names):
        first, *rest = dotted.split(".")
        if first in space and (rest or not isinstance(space[first], ModuleType)):
            count_global(walk, space, walk.labels.of_module(space), first, {tuple(rest)})


def setting_of(label: str, value: Any) -> Any:
    """What counts of a library's attribute: plain data, and the plain data in a dict, list or set of an own
    class, as matplotlib's `rcParams`: the rest there may be registered as modules are loaded."""
    if _is_plain(value):
        return NONE if label in _NO_SETTINGS else value
    if isinstance(value, Counter | defaultdict):
        return NONE
    if isinstance(value, dict) and type(value) is not dict and dict.__len__(value) <= _SHORT:
        # Read by the methods of the built-in types alone: theirs may warn, or load a backend.
        named = {name: part for name, part in dict.items(value) if type(name) in SCALARS}
        shown = {name: str(p) if isinstance(p, enum.Enum) else p for name, p in named.items()}
        return {name: part for name, part in shown.items() if _is_plain(part)}
    for kind in (list, set):
        if isinstance(value, kind) and _is_plain(plain := kind(value)):
            return plain
    return NONE


def _is_plain(value: Any) -> bool:
    rest, count = [value], 0
    while rest:
        one = rest.pop()
        if type(one) in SCALARS:
            continue
        if type(one) is types.SimpleNamespace:
            one = vars(one)
        if type(one) not in (list, tuple, dict, set, frozenset):
            return False
        count += len(one)
        if count > _SHORT:  # or it holds itself
            return False
        rest.extend(one.values() if type(one) is dict else one)
    return True
