"""The functions, classes and globals that a function reaches at run time.

The walk starts from values (the preprocessing function, the config) and keeps two tables:
`definitions`, label to digest of the syntax tree, and `values`, label to digest of the value. A function
or class inside a value is written as its label, and queued; so the two tables together describe the
graph, however it is knotted. For modules that are imported inside functions see NOTE [ Lazy modules ].

Invariants:
    1. No attribute is read that may run code: `vars()` and `__dict__`, never `getattr`, on what is walked.
    2. What is visited, and in which order, depends on the code alone, not on hashes or addresses.
    3. Two things never share a row: a label is given once for each (owner, name).
"""

from __future__ import annotations

import builtins
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from types import FunctionType, ModuleType
from typing import Any

from prepcache.keys import own_state
from prepcache.keys.code import labels, questions
from prepcache.keys.code.alone import qualname_of
from prepcache.keys.code.answers import Answers
from prepcache.keys.code.cells import cell_chains
from prepcache.keys.code.classes import attributes_of
from prepcache.keys.code.closure import Closure
from prepcache.keys.code.encoding import Hooks
from prepcache.keys.code.fields import described, names_no_data, texts_of, type_of, variables_of
from prepcache.keys.code.frames import Frames, names_of
from prepcache.keys.code.functions import EMPTY, digest_without_text, state_of
from prepcache.keys.code.lazy_walk import LazyWalk
from prepcache.keys.code.memory import Memory
from prepcache.keys.code.names import SKIPPED_GLOBALS, Chains
from prepcache.keys.code.outlines import Statement
from prepcache.keys.code.parsed import Definition, names_in
from prepcache.keys.code.project import Place, Places
from prepcache.keys.code.questions import Questions
from prepcache.keys.code.readable import ABSENT, OPEN, Value, readable
from prepcache.keys.code.settings import (
    held_settings,
    is_attribute_bag,
    is_own_builtin,
    is_setting,
    is_used_whole,
)
from prepcache.keys.code.source import MADE_AT_RUN_TIME, Sources, Unit
from prepcache.keys.code.texts import Texts
from prepcache.keys.code.told import Told
from prepcache.keys.secrets import holds_secret

_EXTENSIONS = tuple(EXTENSION_SUFFIXES)


class Reach:
    """What the preprocessing function and the config reach. Lives for one fingerprint.

    Args:
        closure: counts files; the walk adds what whole-module uses and lazy imports bring in.
        memory: parse results.
        places: tells the project's code from libraries'.
        untracked: names that do not count: bare, or dotted as errors and parts show them.
        root: the checkout; absolute paths under it count relative to it.
        file_digest: path -> digest of the file's bytes.
    """

    def __init__(
        self,
        closure: Closure,
        memory: Memory,
        places: Places,
        untracked: Iterable[str],
        root: str | None,
        file_digest: Callable[[str], bytes],
    ) -> None:
        self.definitions: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.owners: dict[str, Any] = {}
        """What holds each value: a namespace, a function, a class."""
        self.variables: dict[str, str | None] = {}
        self.top_levels: set[str] = set()
        self.sources: dict[str, str] = {}
        """Path of each project file that holds a definition reached, to its module's label."""
        self.ignored: set[str] = set()
        self.literal_paths: set[str] = set()
        self.named_files: set[str] = set()
        self.is_debug = False
        self.root = root
        self.hooks = Hooks(self, file_digest)
        self._docs: dict[str, str] = {}
        self._asked = Questions()
        self._answers = Answers(self._asked, self.hooks)
        self._frames = Frames(self.hooks.texts)
        self._closure = closure
        self._sources = Sources(memory)
        self._places = places
        texts = Texts(closure, memory)
        self.told = Told(closure, texts)
        self._lazily = LazyWalk(weakref.proxy(self), texts, self.told)
        self._untracked = tuple(untracked)
        self.labels = labels.Labels()
        self._queue: list[tuple[str, Any, bool]] = []
        self._slots: set[tuple[int, str, bool]] = set()
        self._whole: set[tuple[int, bool]] = set()
        self._lazy_labels: set[str] = set()
        self.is_lazy = False
        """Whether what is visited was reached through an import in a function."""

    # -- the walk ------------------------------------------------------------------------------------

    def add(self, label: str, value: Any) -> None:
        """Counts a value under a label, and all that it reaches."""
        self._value(label, value, self)
        self.run()

    def look_again(self) -> None:
        """What was counted before is looked at; see `drift`."""
        self.hooks.is_again = self._sources.is_again = True

    @property
    def asks_cwd(self) -> bool:
        """Whether some code that is reached asks for the working directory."""
        return self._asked.cwd

    @property
    def is_unsure(self) -> bool:
        """Whether it is not known which text something was loaded from that is looked at again."""
        return self._sources.is_unsure

    def run(self) -> None:
        """Visits what is queued, until nothing is."""
        is_over = False
        while self._queue or not is_over:
            if is_over := not self._queue:
                self._answer()
                continue
            label, value, self.is_lazy = self._queue.pop(0)
            if isinstance(value, FunctionType):
                self._visit_function(label, value)
            else:
                self._visit_class(label, value)
            self.is_lazy = False
        if self._asked.docs:
            self.definitions.update({f"{label}.__doc__": digest for label, digest in self._docs.items()})

    def _answer(self) -> None:
        """Counts what most code does not ask for, once some code that is reached does."""
        for label, value, owner in self._answers.values():
            self._value(label, value, owner)
        for space, text in self._answers.annotations():
            for dotted in names_in(text):
                self._named_code(space, self._module_label(space), dotted, in_text=True)
        for home in self._answers.modules():
            if labels.place_of_module(home, self._places) is Place.PROJECT:
                self._whole_module(home)
        for space, chains, is_lazy in self._frames.named():
            self.is_lazy = is_lazy
            self._globals(space, chains)
        self.is_lazy = False
        if self._asked.sources:
            for path, module in sorted(self.sources.items()):
                self._closure.add_file(module, path)
        self._named_variables(self._asked.named_variables(self.hooks.texts))

    def _visit_function(self, label: str, function: FunctionType) -> None:
        code, space = function.__code__, function.__globals__
        module = self._module_label(space)
        found = self._sources.definition(function, is_lazy=self.is_lazy)
        if not self.is_lazy:
            self.definitions[label] = found[1].digest if found else digest_without_text(function)
        if found:
            self._docs[label] = found[1].doc_digest
            self._facts(*found, module, space)
            for loaded in questions.modules_named_in(code) if found[1].is_dynamic else ():
                self.count_module(loaded, ())
        self._answers.note_function(label, function)
        self._asked.note(code)
        self.literal_paths |= questions.paths_below(self.root, code)
        if not self.hooks.is_again:
            self.named_files.update(questions.files_named_in(function))
        for part, value in state_of(function):
            if value is EMPTY:
                self.values[f"{label}{part}"] = ABSENT
            elif is_attribute_bag(value) and part.startswith("["):
                self._bag(f"{label}{part}", value, cell_chains(code, part[1:-1]), function)
            else:
                self._value(f"{label}{part}", value, function)
        self._frames.note(function, self.is_lazy)
        self._globals(space, names_of(function))
        if found is None or found[1].imports:
            self._lazily.attributes(code, module)

    def _globals(self, space: dict[str, Any], chains: Chains) -> None:
        for name in sorted(chains):
            self.count_global(space, self._module_label(space), name, chains[name])

    def _visit_class(self, label: str, cls: type) -> None:
        found_there = sys.modules.get(labels.class_module(cls))
        home = found_there if isinstance(found_there, ModuleType) else None
        space = vars(home) if home is not None else {}
        module = self._module_label(space) if home is not None else labels.class_module(cls)
        found = self._sources.class_definitions(cls, is_lazy=self.is_lazy)
        definitions = found[1] if found else []
        if not definitions:
            self.refer_library(labels.class_module(cls))
        if not self.is_lazy:
            self.definitions[label] = "+".join(d.digest for d in definitions) or MADE_AT_RUN_TIME
        if found and definitions:
            self._docs[label] = "+".join(d.doc_digest for d in definitions)
            for definition in definitions:
                self._facts(found[0], definition, module, space)
        if self.is_lazy:
            for base in cls.__bases__:
                self.refer_class(base)
        else:
            self._value(f"{label}.__bases__", cls.__bases__, cls)
        self._answers.note_class(label, cls, home)
        self._named_variables(variables_of(cls))
        for dotted in names_in(*texts_of(cls)):
            self._named_code(space, module, dotted, in_text=True)
        own = attributes_of(cls, self.is_library, cls in self.hooks.copied)
        is_told = self.is_lazy and names_no_data(definitions, space)  # by the text, which counts
        made = () if is_told else described(cls, definitions, found[0].parsed.literals if found else {})
        for name, value in (*type_of(cls, definitions), *own, *made):
            self._value(f"{label}.{name}", value, cls)

    def _facts(self, unit: Unit, definition: Definition, module: str, space: dict[str, Any]) -> None:
        """Counts what the text of a definition tells and its code does not."""
        self.is_debug |= definition.is_debug
        self._asked.dynamic |= definition.is_dynamic
        self._asked.modules |= definition.is_far
        if unit.path is not None and not self.is_lazy:
            self.sources.setdefault(unit.path, module)
        if definition.is_dynamic:
            self._dynamic(unit, module, space)
        self._named_variables(definition.variables)
        self._named_variables(map(space.get, definition.variable_names))
        for dotted in definition.names:
            self._named_code(space, module, dotted)
        is_package = unit.path is not None and os.path.basename(unit.path).startswith("__init__.")
        for path in self._closure.add_imports(definition.imports, module, is_package):
            self.is_debug |= self._closure.parsed[path].is_debug
        self._lazily.imports(definition.imports, module, is_package)

    def note_statement(self, statement: Statement) -> None:
        """Counts what a text asks for that is not loaded."""
        self._named_variables(statement.variables)
        self._asked.note_text(*statement.asked)

    def _named_variables(self, names: Iterable[Any]) -> None:
        for name in names:
            if isinstance(name, str) and not self.is_untracked(name):
                self.variables[name] = os.environ.get(name)

    def _dynamic(self, unit: Unit, module: str, space: dict[str, Any]) -> None:
        """Code that looks names up by text (`globals()`, `eval`): any name of its module may be meant."""
        home = sys.modules.get(str(space.get("__name__")))
        if home is not None and vars(home) is space:
            self._whole_module(home)
        elif unit.path is not None:
            self._closure.add_file(module, unit.path)

    def _named_code(self, space: dict[str, Any], module: str, dotted: str, *, in_text: bool = False) -> None:
        """Counts the function, class or alias of types that an annotation or decorator names; one that is
        text, data too: it will mean what is there when somebody reads it."""
        first, *rest = dotted.split(".")
        if questions.may_be_named(space.get(first), rest, in_text):
            self.count_global(space, module, first, {tuple(rest)})

    # -- names ---------------------------------------------------------------------------------------

    def is_untracked(self, label: str) -> bool:
        """Whether the user left a label out; remembers that the name was met."""
        for name in self._untracked:
            if label.endswith((f".{name}", f"[{name}]")):  # and never `preprocess`, the function itself
                self.ignored.add(name)
                return True
        return False

    def _module_label(self, space: dict[str, Any]) -> str:
        return self.labels.known(space) or self.labels.give(space, labels.module_label(space))

    def count_global(
        self, space: dict[str, Any], module: str, name: str, chains: set[tuple[str, ...]]
    ) -> None:
        """Counts what a namespace holds under a name, which it has in a module."""
        label = f"{module}.{name}"
        if name in SKIPPED_GLOBALS or self.is_untracked(label):
            return
        if name not in space:
            if not hasattr(builtins, name):
                self.values.setdefault(label, ABSENT)
            elif not is_own_builtin(name) and not self.is_untracked(f"builtins.{name}"):
                self._value(f"builtins.{name}", getattr(builtins, name), builtins)
            return
        value = space[name]
        self._asked.note_global(value)
        if type(value) is str and not self.hooks.is_again:
            self.named_files.update(questions.files_quoted_in(value))
        if isinstance(value, ModuleType):
            for chain in sorted(chains):
                self.count_module(value, chain)
        elif is_attribute_bag(value):
            self._bag(label, value, chains, space)
        else:
            self._value(label, value, space)

    def _bag(self, label: str, bag: Any, chains: set[tuple[str, ...]], owner: Any) -> None:
        """Counts what chains of attributes read from an object of mere attributes."""
        if any(is_used_whole(bag, chain) for chain in chains):
            self._value(label, bag, owner)
            return
        for attribute in sorted({chain[0] for chain in chains}):
            self._value(f"{label}.{attribute}", vars(bag).get(attribute, type(bag)), bag)

    def count_module(self, module: Any, chain: tuple[str, ...]) -> None:
        """Counts what a chain of attributes, read from a module, arrives at; whole, what a job has put in the
        place of one."""
        place = labels.place_of_module(module, self._places)
        if place is Place.SELF:
            return
        space, known_as = labels.space_of(module), labels.name_of(module)
        self.refer_library(known_as)
        if place is not Place.PROJECT:
            self._library_attribute(known_as, space, chain)
            return
        if not isinstance(module, ModuleType):
            is_lazy, self.is_lazy = self.is_lazy, False  # no text says what it is
            self._value(f"sys.modules.{known_as}", module, sys)
            self.is_lazy = is_lazy
            return
        name = self._module_label(space)
        if type(module) is not ModuleType and self.is_project(type(module)):
            self._value(f"{name}.__class__", type(module), module)
            self._whole_module(module)  # its properties may read any name of it
        if not chain or chain[0] == "__dict__":
            self._whole_module(module)
        elif chain[0] in space:
            self.count_global(space, name, chain[0], {chain[1:]})
        elif (below := sys.modules.get(f"{known_as}.{chain[0]}")) is not None:
            self.count_module(below, chain[1:])
        elif "__getattr__" in space:
            self._value(f"{name}.__getattr__", space["__getattr__"], space)
        else:
            self.count_global(space, name, chain[0], {chain[1:]})

    def _library_attribute(self, label: str, space: Any, chain: tuple[str, ...]) -> None:
        """Of libraries, settings count by value (`ImageFile.LOAD_TRUNCATED_IMAGES`), and what was patched."""
        if not chain or chain[0] not in space or chain[0] in SKIPPED_GLOBALS:
            return
        value, label = space[chain[0]], f"{label}.{chain[0]}"
        if isinstance(value, ModuleType):
            self.count_module(value, chain[1:])
        elif self.is_untracked(label):
            return
        elif is_setting(label, value) or self._is_put_there(value):
            self._value(label, value, space)
        elif (held := held_settings(value, chain[1:])) is not None:
            self._value(f"{label}{held[0]}", held[1], space)
        elif isinstance(value, type):
            self._library_attribute(label, vars(value), chain[1:])

    def _is_put_there(self, value: Any) -> bool:
        """Whether what a library holds is a function of the project's, or an instance of its classes."""
        if isinstance(value, FunctionType):
            return not self.is_library(value)
        return not isinstance(value, type) and self.is_project(type(value))

    def _whole_module(self, module: ModuleType) -> None:
        """A module used as a value: any of its names may be looked up in it."""
        space, file = vars(module), getattr(module, "__file__", None)
        if (id(space), self.is_lazy) in self._whole:
            return
        self._whole.add((id(space), self.is_lazy))
        label = self._module_label(space)
        if isinstance(file, str) and file.endswith(".py"):
            self._closure.add_file(label, file)
        for name, value in sorted(space.items()):
            is_own = not isinstance(value, ModuleType) or value.__name__ == f"{module.__name__}.{name}"
            if is_own and not name.startswith("__"):
                self.count_global(space, label, name, {()})

    def is_library_module(self, module: Any) -> bool:
        """Whether a loaded module is none of the project's."""
        return labels.place_of_module(module, self._places) is not Place.PROJECT

    # -- values --------------------------------------------------------------------------------------

    def _value(self, label: str, value: Any, owner: Any) -> None:
        """Counts what `owner` (a namespace, function or class) holds under a label."""
        is_lazy = self.is_lazy
        slot = (id(owner), label, is_lazy)
        if slot in self._slots or self.is_untracked(label):
            return
        self._slots.add(slot)
        if is_lazy and self.told.is_written(label, value):
            self._visit_later(value)
            return
        unique, count = label, 1
        while unique in self.values:
            count += 1
            unique = f"{label}#{count}"
        self.values[unique] = Value("", "")
        self.owners[unique] = owner
        if (settled := self._settled(unique, value, owner)) is not None:
            self.values[unique] = settled
            return
        self.is_lazy = False
        digest = self.hooks.digest(unique, value)
        self.is_lazy = is_lazy
        known = self.labels.known(value)
        # What a library's function holds may change, where one of the project's only stands for its code.
        kind = object if isinstance(value, FunctionType) and known is None else type(value)
        self.values[unique] = Value(digest, readable(value, known), holds_secret(value), kind)

    def _settled(self, label: str, value: Any, owner: Any) -> Value | None:
        """What counts of a value that calls of the function have changed, where it is what it was before."""
        places, before = self.hooks.places, self.hooks.before
        if before is not None:
            found = before.settled.get(label)
            if found is not None:
                self.hooks.look_at_settled(owner, label, value)
        else:
            slot = own_state.slots_of(owner).get(label)
            if slot is None:
                return None
            if not self.hooks.is_settled(slot, label, value):
                return OPEN if self.hooks.is_first_try and not slot.is_material else None
            found = slot.original
        if isinstance(found, Value):
            places.settled[label] = found
            return found
        return None

    def _visit_later(self, value: Any) -> None:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        for part in (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,):
            if isinstance(part, FunctionType):
                self.refer_function(part)
            elif isinstance(part, type):
                self.refer_class(part)

    def is_project(self, cls: type) -> bool:
        """Whether a class is the project's."""
        return labels.place_of_class(cls, self._places) is Place.PROJECT

    def is_library(self, function: FunctionType) -> bool:
        """Whether a function is a library's."""
        return labels.place_of_function(function, self._places) is not Place.PROJECT

    def refer_function(self, function: FunctionType) -> str | None:
        """The label of a function, which will be visited; None for a library's."""
        if self.labels.known(function) is None and self.is_library(function):
            return None
        return self._refer(function, f"{self._module_label(function.__globals__)}.{qualname_of(function)}")

    def refer_class(self, cls: type) -> str:
        """The label of a class, which will be visited, or the name of a library's."""
        name = f"{labels.class_module_label(cls)}.{cls.__qualname__}"
        if self.labels.known(cls) is None and labels.place_of_class(cls, self._places) is not Place.PROJECT:
            self.refer_library(labels.class_module(cls))
            return name
        return self._refer(cls, name)

    def refer_module(self, module: ModuleType) -> None:
        """Counts a module that is used as a value."""
        self.count_module(module, ())

    def refer_library(self, module: str) -> None:
        """Counts the distribution of a module, or the bytes of an extension module of the project."""
        self.hooks.is_kept_elsewhere |= module == "linecache"
        name, file = labels.file_of(module)
        if file is not None and file.endswith(_EXTENSIONS) and self._places.of(file) is Place.PROJECT:
            self._closure.add_extension(name, file)
        elif module.partition(".")[0] in self._places.owned:
            self.top_levels.add(module.partition(".")[0])

    def _refer(self, value: Any, wanted: str) -> str:
        label = self.labels.known(value)
        if label is None:
            label = self.labels.give(value, wanted)
        elif self.is_lazy or label not in self._lazy_labels:
            return label
        self._lazy_labels.discard(label)
        if self.is_lazy:
            self._lazy_labels.add(label)
        self._queue.append((label, value, self.is_lazy))
        return label
