"""What the names in code resolve to: values, modules of the project with what they hold, parts of libraries.

Of libraries count settings that the code reads (`ImageFile.LOAD_TRUNCATED_IMAGES`), and what a job put there.
Of a module that a function imports itself the file counts whole, and, if it is loaded, what it holds under
names in code: a job may have set it since (`cfg.SIZE = 512`), or have edited the file.
"""

from __future__ import annotations

import builtins
import enum
import functools
import io
import marshal
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code import project
from prepcache.keys.code.import_graph import (
    Import,
    SourceFile,
    imports_in,
    is_package,
    read_source,
    wanted_by,
    with_packages,
)
from prepcache.keys.code.names import (
    OF_REACHED,
    SCALARS,
    SKIPPED_GLOBALS,
    all_names,
    is_attribute_bag,
    is_dynamic,
    is_used_whole,
)
from prepcache.keys.code.project import Place, file_name
from prepcache.keys.code.values import ABSENT, Value
from prepcache.keys.environment import started_ns
from prepcache.keys.files.stamps import Stamp

if TYPE_CHECKING:
    from prepcache.keys.code.dependencies import Dependencies

NONE = object()
_SHORT, _BYTES = 1000, 20_000
"""Elements of a library's list, and bytes of all that it holds, that is still taken for a setting."""
_NO_SETTINGS = ("sys.path", "sys.meta_path")
_awaited: dict[str, Stamp] = {}
"""The stamps of files that no module was loaded from when they were last looked at, by path. A module that
is loaded later is of that text while the stamp is the same."""


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
        walk.asked.topics.add(OF_REACHED)
        walk.asked.finder = walk.asked.finder or label
    if isinstance(value, ModuleType):
        if walk.labels.place_of(value) is not Place.PROJECT:  # what is read of the project's counts by itself
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


def count_module(walk: Dependencies, module: ModuleType, chain: tuple[str, ...]) -> None:
    """Counts what a chain of attributes of a module leads to."""
    if type(module).__module__ == "torch._ops":  # it makes operators when it is asked for them
        walk.refer_library("torch")
        found: Any = module
        for name in chain[:2]:
            found = getattr(found, name, None)
        if not isinstance(found, ModuleType):
            walk.count_value(f"torch.ops.{found}", found, sys)
        return
    place = walk.labels.place_of(module)
    if place is Place.SELF:
        return
    project.note_module(module)
    space, known_as = vars(module), module.__name__
    walk.loaded.add(known_as)
    walk.refer_library(known_as)
    if place is not Place.PROJECT:
        _library_attribute(walk, known_as, space, chain)
        return
    name = walk.labels.of_module(space)
    if type(module) is not ModuleType and walk.labels.is_project(type(module)):
        walk.count_value(f"{name}.__class__", type(module), module)
        whole_module(walk, module)  # its properties may read any name of it
    if not chain or chain[0] == "__dict__":
        whole_module(walk, module)
    elif chain[0] in space:
        count_global(walk, space, name, chain[0], {chain[1:]})
    elif isinstance(below := sys.modules.get(f"{known_as}.{chain[0]}"), ModuleType):
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
        if not (walk.is_settling and _is_as_installed(walk, module, name, value)):
            walk.count_value(label, setting, space)
    elif isinstance(value, type):
        _library_attribute(walk, label, vars(value), chain[1:])
    elif isinstance(value, FunctionType) and not walk.is_settling:
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
            of_class = project.module_named(project.class_module(type(owner)))
            beside += project.space_of(of_class).values()
        is_theirs = any(one is owner for one in beside)
        is_own = walk.labels.is_project(type(owner)) or not (is_theirs or walk.is_settling)
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
        return not _is_of_package(project.class_module(value), label) and walk.labels.is_project(value)
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
    if isinstance(home, ModuleType) and walk.labels.place_of(home) is Place.PROJECT:
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
    if type(value) is types.SimpleNamespace:
        return _is_plain(vars(value))
    if type(value) in (list, tuple, dict, set, frozenset):
        with suppress(ValueError):  # something in it is no plain data
            return len(value) <= _SHORT and len(marshal.dumps(value, 2)) <= _BYTES
    return type(value) in SCALARS


# -- modules that functions import themselves --------------------------------------------------------------


def follow_imports(walk: Dependencies, code: CodeType, module: str, *, is_of_package: bool) -> None:
    """Counts what code imports itself that stands in a module; `is_of_package`: in a package."""
    imports: Sequence[Import] = list(dict.fromkeys(imports_in(code)))
    if not imports:
        return
    reached = walk.graph.add_imports(imports, module, is_of_package)
    _beyond_files(walk, all_names(code), imports, module, is_of_package)
    walk.is_following |= bool(reached)
    names, is_any = all_names(code) | {"__getattr__"}, is_dynamic(code)
    sources = {name: source for name in reached if (source := _source(walk, name)) is not None}
    for name, source in sources.items():
        names |= source.names
        is_any |= is_dynamic(source.code)
        if name not in walk.whole_files:
            walk.whole_files[name] = source.code
            walk.asked.note_code(source.code)
            _beyond_files(walk, source.names, source.imports, name, is_package(source.path))
    count_builtins(walk, names)
    for name in reached:
        loaded = sys.modules.get(name)
        if loaded is None:
            if name in sources:
                _awaited[sources[name].path] = sources[name].stamp
            continue
        walk.loaded.add(name)
        if not isinstance(loaded, ModuleType):  # what a job has put in the place of one
            walk.count_value(f"sys.modules.{name}", loaded, sys)
            continue
        if is_any or type(loaded) is not ModuleType:
            count_module(walk, loaded, ())
            continue
        space = vars(loaded)
        imports = sources[name].imports if name in sources else ()
        homes = with_packages(wanted_by(imports, name, "__path__" in space))
        for held in sorted(names & space.keys()):
            is_stated = isinstance(space[held], ModuleType) and space[held].__name__ in homes
            if not (is_stated or _is_closed(space[held])):
                count_global(walk, space, name, held, {()})


def _beyond_files(
    walk: Dependencies, names: set[str], imports: Iterable[Import], module: str, is_of_package: bool
) -> None:
    """Counts imported modules that are of no counted file: whole, what a job has put in the place of one;
    of libraries, which are loaded in one job and not in the next, what contradicts their text."""
    for home in with_packages(wanted_by(imports, module, is_of_package)):
        loaded = None if home in walk.graph.modules else sys.modules.get(home)
        if loaded is None:
            continue
        walk.loaded.add(home)
        if not isinstance(loaded, ModuleType):
            walk.count_value(f"sys.modules.{home}", loaded, sys)
            continue
        if walk.labels.place_of(loaded) is Place.PROJECT:
            count_module(walk, loaded, ())
            continue
        walk.is_settling = True
        space = project.space_of(loaded)
        for name in sorted(names & space.keys()):
            inner = names & vars(space[name]).keys() if isinstance(space[name], type) else ()
            if not isinstance(space[name], ModuleType):  # which counts if it is imported itself
                for chain in ((name,), *((name, one) for one in sorted(inner))):
                    count_module(walk, loaded, chain)
        walk.is_settling = False


def _is_as_installed(walk: Dependencies, module: str, name: str, value: Any) -> bool:
    """Whether a library holds what its text says under a name, or what it has from C."""
    source = _source(walk, module)
    return source is None or source.says(name, value)


def older_texts(walk: Dependencies, came: Iterable[str]) -> dict[str, str]:
    """The modules, to their files, of labels that were not there where the recipe was made: what may have
    been loaded here from another text than is there now."""
    found = {}
    for module in walk.graph.modules.keys() & with_packages(came):
        path = walk.graph.modules[module]
        source = walk.graph.sources.get(path)
        if source is None or _awaited.get(path) == source.stamp or max(source.stamp[3:]) < started_ns():
            continue
        found[module] = file_name(module, path)
    return found


def _source(walk: Dependencies, module: str) -> SourceFile | None:
    if module in walk.graph.modules:
        return walk.graph.sources.get(walk.graph.modules[module])
    path = getattr(sys.modules.get(module), "__file__", None)
    with suppress(UnkeyableError):
        return read_source(path, module) if isinstance(path, str) and path.endswith(".py") else None
    return None


def _is_closed(value: Any) -> bool:
    """Whether a value is a closed file, as `with open(...) as file` leaves behind."""
    with suppress(ValueError):  # it was detached
        return isinstance(value, io.IOBase) and value.closed
    return True
