"""What the names in code resolve to: values, modules of the project with what they hold, parts of libraries.

Of libraries count settings that the code reads (`ImageFile.LOAD_TRUNCATED_IMAGES`), and what a job put there.
Of a module that a function imports itself the file counts whole, and what it holds under names in code.
"""

from __future__ import annotations

import builtins
import enum
import functools
import io
import marshal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from prepcache.errors import UnkeyableError
from prepcache.keys.code import project
from prepcache.keys.code.import_graph import imports_in, read_source, with_packages
from prepcache.keys.code.names import SCALARS, SKIPPED_GLOBALS, all_names, is_attribute_bag, is_dynamic
from prepcache.keys.code.values import ABSENT, Value
from prepcache.keys.environment import may_be_older, seen_texts

if TYPE_CHECKING:
    from prepcache.keys.code.dependencies import Dependencies

_SHORT, _BYTES = 1000, 20_000  # elements and bytes of what is still taken for a setting


def count_global(walk: Dependencies, space: dict[str, Any], name: str, chains: set[tuple[str, ...]]) -> None:
    label = f"{walk.labels.of_module(space)}.{name}"
    if name in SKIPPED_GLOBALS or walk.is_untracked(label):
        return
    if name not in space:
        if name not in vars(builtins):
            walk.values.setdefault(label, ABSENT)
        count_builtins(walk, [name])
        return
    value = space[name]
    walk.asked.note_global(label, value, chains)
    if isinstance(value, ModuleType):
        if walk.labels.place_of(vars(value)) is not project.Place.PROJECT:  # of which what is read counts
            walk.values[label] = Value.of_text(value.__name__)
        for chain in sorted(chains):
            count_module(walk, value, chain)
    elif is_attribute_bag(value):
        count_bag(walk, label, value, chains, space)
    elif value is not sys.modules:
        walk.count_value(label, value, space)


def count_builtins(walk: Dependencies, names: Iterable[str]) -> None:
    for name in sorted(({*names} - {"print"}) & vars(builtins).keys()):  # which jobs silence on some ranks
        _library_attribute(walk, "builtins", vars(builtins), (name,))


def count_bag(walk: Dependencies, label: str, bag: Any, chains: set[tuple[str, ...]], owner: Any) -> None:
    # As a whole, or by what its class says (`args.__dict__`).
    if any(not one or (one[0] not in vars(bag) and hasattr(type(bag), one[0])) for one in chains):
        walk.count_value(label, bag, owner)
        return
    for attribute in sorted({chain[0] for chain in chains}):
        walk.count_value(f"{label}.{attribute}", vars(bag).get(attribute, type(bag)), bag)


def count_module(walk: Dependencies, module: ModuleType, chain: tuple[str, ...]) -> None:
    """Counts what a chain of attributes reads from a module; without one, all of a module of the project."""
    if type(module).__module__ == "torch._ops":  # it makes operators when it is asked for them
        walk.refer_library("torch")
        found: Any = module
        for name in chain[:2]:
            found = getattr(found, name, None)
        if not isinstance(found, ModuleType):
            walk.count_value(f"torch.ops.{found}", found, sys)
        return
    space, known_as = vars(module), module.__name__
    place = walk.labels.place_of(space)
    if place is project.Place.SELF:
        return
    project.note_module(module)
    walk.loaded.add(known_as)
    walk.refer_library(known_as)
    if place is not project.Place.PROJECT:
        _library_attribute(walk, known_as, space, chain)
        return
    if type(module) is not ModuleType:  # its properties may read any name of it
        walk.count_value(f"{walk.labels.of_module(space)}.__class__", type(module), module)
        whole_module(walk, space)
    if not chain or chain[0] == "__dict__":
        whole_module(walk, space)
        return
    is_asked = chain[0] not in space and "__getattr__" in space
    count_global(walk, space, "__getattr__" if is_asked else chain[0], {chain[1:]})


def _library_attribute(
    walk: Dependencies, home: str, space: Any, chain: tuple[str, ...], *, is_late: bool = False
) -> None:
    """Counts a setting of a library, or what the job put there. `is_late`: only functions import it."""
    if not chain or chain[0] not in space or chain[0] in SKIPPED_GLOBALS:
        return
    value, label = space[chain[0]], f"{home}.{chain[0]}"
    if isinstance(value, ModuleType):
        count_module(walk, value, chain[1:])
    elif walk.is_untracked(label):
        return
    elif _is_put_there(walk, label, value, space, is_late):
        walk.count_value(label, value, space)
    elif (setting := setting_of(label, value)) is not ABSENT:
        if not (is_late and _is_said(home, chain[0], value)):
            walk.count_value(label, setting, space)
    elif isinstance(value, type):
        _library_attribute(walk, label, vars(value), chain[1:], is_late=is_late)
    elif isinstance(value, BuiltinFunctionType if is_late else FunctionType | BuiltinFunctionType):
        module, name = str(value.__module__), value.__qualname__
        if isinstance(value, FunctionType):  # of which `functools.wraps` sets both
            module, name = str(value.__globals__.get("__name__")), value.__code__.co_qualname
        # A library may have taken it itself, as `os.open` is the system's, or one of its own in C.
        is_alias = value.__module__ is None or (module in sys.stdlib_module_names and name == chain[0])
        is_usual = is_alias or _is_of_package(module.strip("_"), label.strip("_"))
        if not (_is_of_package(module, label) or (is_late and is_usual)):
            walk.values[label] = Value.of_text(f"{module}.{name}")
            walk.refer_library(module)


def _is_put_there(walk: Dependencies, label: str, value: Any, space: Any, is_late: bool) -> bool:
    """Whether what a library holds is the project's, or a method of an object from elsewhere."""
    if isinstance(value, functools.partial):
        return True
    if isinstance(value, functools._lru_cache_wrapper):
        value = value.__wrapped__
    owner = value.__self__ if isinstance(value, MethodType | BuiltinFunctionType) else None
    if owner is not None and not isinstance(owner, type | ModuleType):
        # Methods of its own objects are a library's own: of one that stands beside them (`secrets.choice`),
        # and of one beside its class, under their own name (`np.random.rand`, `torch.multiprocessing.Lock`).
        beside = [*space.values()]
        if label.rpartition(".")[2] == value.__name__:
            of_class = project.module_named(project.class_module(type(owner)))
            beside += project.space_of(of_class).values()
        if walk.labels.is_project(type(owner)) or not (is_late or any(one is owner for one in beside)):
            return True
    if isinstance(value, MethodType | staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, FunctionType):
        return not walk.labels.is_library(value)
    if isinstance(value, type):  # a library may name its class by a module that is not loaded
        return not _is_of_package(project.class_module(value), label) and walk.labels.is_project(value)
    return walk.labels.is_project(type(value))


def _is_of_package(module: str, label: str) -> bool:
    return module.partition(".")[0] == label.partition(".")[0]


def whole_module(walk: Dependencies, space: dict[str, Any]) -> None:
    """Counts a module of the project of which any name may be looked up (`globals()`, `eval`)."""
    if id(space) in walk.whole_modules or walk.labels.place_of(space) is not project.Place.PROJECT:
        return
    walk.whole_modules.add(id(space))
    label, file = walk.labels.of_module(space), str(space.get("__file__"))
    if has_file := file.endswith(".py"):
        walk.graph.add_file(label, file)
    for name, value in sorted(space.items()):
        is_imported = isinstance(value, ModuleType) and value.__name__ != f"{space.get('__name__')}.{name}"
        if not (name.startswith("__") or (is_imported and has_file)):  # whose imports count
            count_global(walk, space, name, {()})


def count_named(walk: Dependencies, space: dict[str, Any], names: Iterable[str]) -> None:
    for dotted in sorted(names):
        first, *rest = dotted.split(".")
        if first in space and (rest or not isinstance(space[first], ModuleType)):
            count_global(walk, space, first, {tuple(rest)})


def setting_of(label: str, value: Any) -> Any:
    """The plain data that a library's attribute is, or is a dict, list or set of (`rcParams`)."""
    if label == "sys.path" or isinstance(value, Counter | defaultdict):
        return ABSENT
    if isinstance(value, dict) and type(value) is not dict and dict.__len__(value) <= _SHORT:
        # Read by the methods of the built-in types alone: theirs may warn, or load a backend.
        named = {name: part for name, part in dict.items(value) if type(name) in SCALARS}
        shown = {name: str(p) if isinstance(p, enum.Enum) else p for name, p in named.items()}
        return {name: part for name, part in shown.items() if _is_plain(part)}
    for kind in (list, set):
        value = kind(value) if isinstance(value, kind) else value
    return value if _is_plain(value) else ABSENT


def _is_plain(value: Any) -> bool:
    value = vars(value) if type(value) is SimpleNamespace else value
    if type(value) in (list, tuple, dict, set, frozenset):
        with suppress(ValueError):  # something in it is no plain data
            return len(value) <= _SHORT and len(marshal.dumps(value, 2)) <= _BYTES
    return type(value) in SCALARS


def follow_imports(walk: Dependencies, code: CodeType, space: dict[str, Any]) -> None:
    if not (imports := imports_in(code)):
        return
    codes, wanted = [code], walk.graph.add_imports(imports, walk.labels.of_module(space), "__path__" in space)
    reached = wanted & walk.graph.modules.keys()
    for name in sorted(reached):
        if (source := walk.graph.sources.get(walk.graph.modules[name])) is None:
            continue
        codes.append(source.code)
        if name not in walk.whole_files:
            walk.whole_files[name] = source.code
            walk.asked.note_code(source.code)
        if name not in sys.modules and not project.loaded_from(source.path):
            seen_texts[source.path] = source.stamp
    names, homes = {"__getattr__"}.union(*map(all_names, codes)), {*with_packages(wanted)}
    count_builtins(walk, names)
    for home in sorted(homes & sys.modules.keys()):
        loaded = sys.modules[home]
        inside = project.space_of(loaded)
        place = walk.labels.place_of(inside)
        if loaded is None or place is project.Place.SELF:
            continue
        if home in walk.graph.modules and home not in reached:
            continue
        walk.loaded.add(home)
        if not isinstance(loaded, ModuleType):  # what a job has put in the place of one
            walk.count_value(f"sys.modules.{home}", loaded, sys)
        elif place is not project.Place.PROJECT:
            _count_late(walk, home, inside, names)
        elif any(map(is_dynamic, codes)) or home not in reached or type(loaded) is not ModuleType:
            count_module(walk, loaded, ())
        else:
            for held in sorted(names & inside.keys()):
                value = inside[held]
                is_stated = isinstance(value, ModuleType) and value.__name__ in homes
                if not (is_stated or _is_closed(value)):
                    count_global(walk, inside, held, {()})


def _count_late(walk: Dependencies, home: str, space: dict[str, Any], names: set[str]) -> None:
    for name in sorted(names & space.keys()):
        inner = names & vars(space[name]).keys() if isinstance(space[name], type) else ()
        if not isinstance(space[name], ModuleType):  # which counts if it is imported itself
            for chain in ((name,), *((name, one) for one in sorted(inner))):
                _library_attribute(walk, home, space, chain, is_late=True)


def older_texts(walk: Dependencies, came: Iterable[str]) -> dict[str, str]:
    """The modules, to their files, of labels that came up, which may have been loaded from an older text."""
    sources = {name: walk.graph.sources.get(walk.graph.modules.get(name, "")) for name in with_packages(came)}
    older = {name: one.path for name, one in sources.items() if one and may_be_older(one.path, one.stamp)}
    return {name: project.file_name(name, path) for name, path in older.items()}


def _is_said(module: str, name: str, value: Any) -> bool:
    """Whether a module's file binds a name to this literal, if it can be read."""
    path = str(project.space_of(sys.modules.get(module)).get("__file__"))
    with suppress(UnkeyableError):
        return not path.endswith(".py") or read_source(path, module).says(name, value)
    return True


def _is_closed(value: Any) -> bool:
    """As `with open(...) as file` leaves a file behind."""
    with suppress(ValueError):  # it was detached
        return isinstance(value, io.IOBase) and value.closed
    return True
