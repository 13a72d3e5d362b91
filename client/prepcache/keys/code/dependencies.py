"""The functions, classes and globals that a function depends on at run time.

The walk starts from the function and the config. A function or class inside a value is written as its label,
and queued. So two tables describe the graph, however it is knotted: label to fingerprint of the code, and
label to digest of the value. `resolution` says what the names in code lead to.

Invariants:
    1. No attribute is read that may run code: `vars()` and `__dict__`, never `getattr`, on what is walked.
    2. What is visited, and in which order, depends on the code alone, not on hashes or addresses.
    3. Two things never share a row: a label is given once for each (owner, name).
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from types import CodeType, FunctionType, ModuleType
from typing import Any

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code import dynamic_lookups, labels, resolution
from prepcache.keys.code.classes import annotations_of, attributes_of, described, variables_of
from prepcache.keys.code.dynamic_lookups import Questions, names_in_annotations
from prepcache.keys.code.fingerprint import docstrings, fingerprint
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.module_state import ModuleState
from prepcache.keys.code.names import FRAME_READERS, all_names, cell_chains, global_chains, is_attribute_bag
from prepcache.keys.code.project import Place, Places
from prepcache.keys.code.values import ABSENT, Of, Value, ValueEncoder, identity_of, readable
from prepcache.keys.encoding.builtins import Parts
from prepcache.keys.encoding.encoder import Encoder, is_registered
from prepcache.keys.encoding.objects import EMPTY, state_of
from prepcache.keys.secrets import holds_secret

_SAYING_WHAT_COUNTS = ("__prepcache_key__", "__getstate__", "__reduce__", "__reduce_ex__")
_EXTENSIONS = tuple(EXTENSION_SUFFIXES)
CLASS = "class"
MOST_ROWS = 1024
"""Attributes that are rows of their own; further objects are written where they are met."""


class Dependencies:
    """What the preprocessing function and the config depend on. Lives for one fingerprint.

    Args:
        untracked: names that do not count: bare, or dotted as errors and parts show them.
        root: the checkout; absolute paths under it count relative to it.
        on_path: what paths in the config stand for.
        counts_code: whether functions and classes are visited; without, they are names in the config.

    Attributes:
        owners: what holds each value: a namespace, a function, a class, an object.
        sources: path of each project file that holds a definition, to its module's label.
        codes: path of such a file to the code from it that was visited.
        unstable: what has no stable bytes: only calls of the function may have put it there.
        is_of_loaded: whether only a computed name may lead to what is counted: refused only if too deep.
    """

    def __init__(
        self,
        graph: ImportGraph,
        places: Places,
        untracked: Iterable[str],
        root: str | None,
        file_digest: Callable[[str], bytes],
        on_path: Callable[[Any, Encoder], bytes | None],
        counts_code: bool = True,
    ) -> None:
        self.definitions: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.owners: dict[str, Any] = {}
        self.variables: dict[str, str | None] = {}
        self.top_levels: set[str] = set()
        self.sources: dict[str, str] = {}
        self.codes: dict[str, list[CodeType]] = {}
        self.ignored: set[str] = set()
        self.leaves_out = self.is_again = self.is_of_loaded = False
        self.root = root
        self.texts: set[str] = set()
        self.unstable: dict[str, UnkeyableError] = {}
        self.objects: set[str] = set()
        self.labels = labels.Labels(places)
        self.modules = ModuleState(graph)
        self.whole_modules: set[int] = set()
        self.file_digest = file_digest
        self.on_path = on_path
        self.asked = Questions(self.texts)
        self.graph = graph
        self._places = places
        self._counts_code = counts_code
        self._untracked = tuple(untracked)
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._of_sets: list[tuple[str, Callable[..., None], tuple[Any, ...]]] = []
        self.whole_objects: dict[int, str] = {}
        """Labels of the objects that were met and all of whose attributes count, by address."""
        self._rows = 0
        self._slots: set[tuple[int, str]] = set()
        self._counts: dict[str, int] = {}

    def add(self, label: str, value: Any) -> None:
        self.count_value(label, value, self)
        self.run()

    def run(self) -> None:
        """Visits what is queued, until nothing is, and no question of the code is left."""
        is_over = False
        while self._queue or not is_over:
            if is_over := not self._queue:
                self._answer()
            else:
                visit, arguments = self._queue.popleft()
                visit(*arguments)
            if not self._queue:  # what sets hold comes last, by name: they give it no order
                self._queue.extend(rest[1:] for rest in sorted(self._of_sets, key=lambda rest: rest[0]))
                self._of_sets.clear()

    def add_loaded(self) -> None:
        """Counts what a module may be looked up for by a name that code computes. Comes last: a value has its
        place in what leads to it for certain."""
        self.is_of_loaded, count = True, -1
        while dynamic_lookups.ANY in self.asked.topics and count != len(self.values):
            count = len(self.values)
            self.modules.count_loaded(self)
            self.run()

    def _answer(self) -> None:
        """Counts what most code does not ask for, once some code does."""
        topics = self.asked.topics
        named = dynamic_lookups.names_in_texts(self.asked.texts | self.texts) if "frames" in topics else ()
        for label, held in self.labels.definitions() if topics else ():
            if label not in self.definitions:
                continue
            space = labels.globals_of(held)
            if "docs" in topics:
                docs = vars(held).get("__doc__")
                if isinstance(held, FunctionType):
                    docs = [held.__doc__, *docstrings(held.__code__)]
                self.count_value(f"{label}.__doc__", docs, held)
            if "subclasses" in topics and isinstance(held, type):
                self.count_value(f"{label}.__subclasses__()", type.__subclasses__(held), held)
            if "modules" in topics:
                resolution.count_home(self, space)
            if isinstance(held, FunctionType) and not FRAME_READERS.isdisjoint(all_names(held.__code__)):
                resolution.count_named(self, space, named)
        if "arguments" in topics:
            self.count_value("sys.argv", sys.argv[1:], sys)
        if "home" in topics:  # files of one name are others in another's
            self.count_value("~", os.path.expanduser("~"), sys)
        if "sources" in topics:
            for path, module in sorted(self.sources.items()):
                self.graph.add_file(module, path)
        self._named_variables(self.asked.variables())

    def _visit_function(self, label: str, function: FunctionType) -> None:
        code, space = function.__code__, function.__globals__
        self.definitions[label] = fingerprint(code)
        if (path := self._note_file(space, code.co_filename)) is not None:
            self.codes.setdefault(path, []).append(code)
        for part, value in state_of(function):
            if value is EMPTY:
                self.values[f"{label}{part}"] = ABSENT
            elif is_attribute_bag(value) and part.startswith("["):
                resolution.count_bag(self, f"{label}{part}", value, cell_chains(code, part[1:-1]), function)
            else:
                self.count_value(f"{label}{part}", value, function)
        if function.__annotations__:  # whatever is given the function may read them
            self.count_value(f"{label}.__annotations__", function.__annotations__, function)
            resolution.count_named(
                self, space, names_in_annotations(function.__annotations__.values(), space)
            )
        module = self.labels.of_module(space)
        for name, chains in sorted(global_chains(code).items()):
            resolution.count_global(self, space, module, name, chains)
        self.asked.note_code(code)
        if dynamic_lookups.is_dynamic(code):
            resolution.count_home(self, space, path)
        self.modules.follow(self, code, module, is_of_package="__path__" in space)

    def _note_file(self, space: dict[str, Any], filename: str) -> str | None:
        """Notes the project's file that a definition was loaded from; None if there is none."""
        own: Any = space.get("__file__")
        # `python script.py` compiles under the path as typed, and the job may have changed folder since.
        is_typed = isinstance(own, str) and os.path.basename(own) == os.path.basename(filename)
        path: str = os.path.abspath(own if is_typed and not os.path.isabs(filename) else filename)
        is_file = not filename.startswith("<") and not path.endswith(_EXTENSIONS) and os.path.isfile(path)
        # A template has no module, and counts by the code that was compiled from it.
        if not is_file or "__name__" not in space or self._places.of(path) is not Place.PROJECT:
            return None
        self.sources.setdefault(path, self.labels.of_module(space))
        return path

    def _visit_class(self, label: str, cls: type) -> None:
        space = labels.globals_of(cls)
        self.definitions[label] = CLASS
        for said in (vars(cls)[way] for way in _SAYING_WHAT_COUNTS if way in vars(cls)):
            self.leaves_out |= not (isinstance(said, FunctionType) and self.labels.is_library(said))
        if isinstance(file := space.get("__file__"), str):
            self._note_file(space, file)
        self.refer_library(labels.class_module(cls))
        self.count_value(f"{label}.__bases__", cls.__bases__, cls)
        self._named_variables(variables_of(cls))
        resolution.count_named(self, space, names_in_annotations(annotations_of(cls).values(), space))
        for name, value in (*attributes_of(cls), *described(cls)):
            self.count_value(f"{label}.{name}", value, cls)

    def _visit_object(self, label: str, owner: Any, pairs: Parts, of: Of) -> None:
        for name, value in pairs:
            is_step = name[:1] in ("(", "[", ".")
            step = name if is_step else f".{name}" if name.isidentifier() else f"[{name!r}]"
            self.count_value(label + step, value, owner, is_attribute=True, of=of)

    def _named_variables(self, names: Iterable[Any]) -> None:
        for name in names:
            if isinstance(name, str) and not self.is_untracked(f"environ.{name}"):
                self.variables[name] = os.environ.get(name)

    def is_untracked(self, label: str) -> bool:
        for name in self._untracked:
            if label.endswith((f".{name}", f"[{name}]")):  # and never `preprocess`, the function itself
                self.ignored.add(name)
                return True
        return False

    def count_value(
        self, label: str, value: Any, owner: Any, *, is_attribute: bool = False, of: Of = (False, False)
    ) -> None:
        """Counts what a namespace, function, class or object (`is_attribute`) holds under a label."""
        slot = (id(owner), label)
        if slot in self._slots or self.is_untracked(label):
            return
        self._slots.add(slot)
        unique = labels.unique(label, self.values, self._counts)
        self.values[unique] = ABSENT
        self.owners[unique] = owner
        encoder = ValueEncoder(self, is_config=of[0])
        hasher = blake3()
        try:
            # The order of dicts counts: nobody can put a global in order before the function sees it.
            encoder.write(value, hasher.update, unique, opaque_depth=1, is_key=of[1])
            digest = hasher.hexdigest()
        except UnkeyableError as error:
            digest = self.stand_in(unique, value, error)
        known = self.labels.known(value)
        is_object = known in self.objects
        is_held = known is None or is_object
        # What a library's function holds may change, where one of the project's only stands for its code.
        is_any = encoder.is_whole or (isinstance(value, FunctionType) and is_held)
        self.values[unique] = Value(
            digest,
            readable(value, None if is_object else known),
            is_secret=not is_object and holds_secret(value),  # attributes are rows of their own
            kind=object if is_any else type(value),
            is_attribute=is_attribute,
        )

    def stand_in(self, label: str, value: Any, error: UnkeyableError) -> str:
        """What stands for a value without stable bytes: its identity, or its class if none is refused."""
        is_too_deep = isinstance(error.__context__, RecursionError)  # it has bytes, deep down
        if self.is_of_loaded and not is_too_deep:
            return labels.class_module_label(type(value)) + "." + type(value).__qualname__
        self.unstable.setdefault(label, error)
        return identity_of(value)

    def refer_object(
        self, value: Any, pairs: Parts, by: ValueEncoder, place: str, *, is_whole: bool = True
    ) -> str:
        """The label of an object, some or all of whose attributes are counted; `by` writes what holds it."""
        label, of = self.labels.known(value) or self._give(value, place, by), (by.is_config, by.is_key)
        if is_whole:
            self.whole_objects[id(value)] = label
        self._rows += len(pairs)
        self.objects.add(label)
        name = f"{label} {[name for name, _ in pairs]}"  # methods of one object read different parts of it
        self._later(name, by, self._visit_object, label, value, pairs, of)
        return label

    def number_object(self, value: Any, by: ValueEncoder) -> str | None:
        """The label of an object that `by` is to write in full, once there are many rows; before, None."""
        if self._rows < MOST_ROWS:
            return None
        label = self.labels.known(value) or self._give(value, f"object in {by.steps[0]}", by)
        return self.whole_objects.setdefault(id(value), label)

    def refer_function(self, function: FunctionType, by: ValueEncoder) -> str | None:
        if self.labels.is_library(function):
            return None
        name = function.__code__.co_qualname
        if name.startswith("__create_fn__."):  # a dataclass made it, and gave it the name of its class
            name = function.__qualname__
        space = function.__globals__  # a module that was loaded again has two
        module = self.labels.known(space) or self._give(space, labels.module_label(space), by)
        return self._refer(function, f"{module}.{name}", self._visit_function, by)

    def refer_class(self, cls: type, by: ValueEncoder | None = None) -> str:
        self.leaves_out |= is_registered(cls)
        name = f"{labels.class_module_label(cls)}.{cls.__qualname__}"
        if not self.labels.is_project(cls):
            self.refer_library(labels.class_module(cls))
            return name
        return self._refer(cls, name, self._visit_class, by)

    def refer_module(self, module: ModuleType, by: ValueEncoder) -> None:
        if self._counts_code:
            self._later(module.__name__, by, resolution.count_module, self, module, ())

    def refer_library(self, module: str) -> None:
        """Counts a module's distribution, or the bytes of an extension module of the project."""
        name, file = labels.file_of(module)
        if file is not None and file.endswith(_EXTENSIONS) and self._places.of(file) is Place.PROJECT:
            self.graph.add_extension(name, file)
        elif module.partition(".")[0] in self._places.owned:
            self.top_levels.add(module.partition(".")[0])

    def _refer(
        self, value: Any, wanted: str, visit: Callable[[str, Any], None], by: ValueEncoder | None
    ) -> str:
        label = self.labels.known(value)
        if label is None:
            label = self._give(value, wanted, by)
            if self._counts_code:
                self._later(label, by, visit, label, value)
        return label

    def _give(self, value: Any, wanted: str, by: ValueEncoder | None) -> str:
        label = self.labels.give(value, wanted)
        if label != wanted and by is not None and by.set_depth and not self.is_of_loaded:
            raise by.refuse(f"a set gives no order to two things named {wanted}: use a list or a tuple")
        return label

    def _later(self, name: str, by: ValueEncoder | None, visit: Callable[..., None], *arguments: Any) -> None:
        if by is not None and by.set_depth:
            self._of_sets.append((name, visit, arguments))
        else:
            self._queue.append((visit, arguments))


def name_of(cls: type) -> str:
    return f"{labels.class_module(cls)}.{cls.__qualname__}"


def refer_classes(classes: Sequence[type], reach: Dependencies) -> None:
    """Counts the code of the classes of items, where they are names. Sorted by name."""
    own: dict[str, type] = {}
    for cls in filter(reach.labels.is_project, classes):
        if own.setdefault(name_of(cls), cls) is not cls:
            raise UnkeyableError(
                f"items: two classes are named {name_of(cls)}: rename one, or pass plain values as items and "
                "let the function build the objects"
            )
        reach.refer_class(cls)
    reach.run()
