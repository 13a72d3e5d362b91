"""The functions, classes and globals that a function depends on at run time: two tables, of fingerprints of
code and digests of values by label. A function or class inside a value is written as its label, and queued.

Invariants:
    1. No attribute is read that may run code: `vars()` and `__dict__`, never `getattr`, on what is walked.
    2. What is visited, and in which order, depends on the code alone, not on hashes or addresses.
    3. Two things never share a row: a label is given once for each (owner, name).
"""

from __future__ import annotations

import abc
import linecache
import os
import re
import secrets
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, ForwardRef, get_args

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code import names, project, resolution
from prepcache.keys.code.fingerprint import fingerprint, nested
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.project import EXTENSIONS, Place, class_label
from prepcache.keys.code.values import ABSENT, Value, ValueEncoder, holds_secret, readable
from prepcache.keys.encoding.encoder import WAYS_OUT, Encoder, Parts, is_registered
from prepcache.keys.encoding.objects import bits_of, global_generator, is_generator, state_of

_SKIPPED_OF_CLASSES = {
    "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__", "__slotnames__",
    "__parameters__", "__abstractmethods__", "__dataclass_fields__", "__dataclass_params__",
    "__signature__", "__protocol_attrs__", "__non_callable_proto_members__", "__annotate__",
    "__annotate_func__", "__annotations_cache__", "__class_vars__", "_abc_impl", "_value2member_map_",
    "_unhashable_values_", "_unhashable_values_map_", "_hashable_values_", "_inverted_",
}  # fmt: skip
"""What its text says already, bookkeeping, and what use fills."""
_OF_STRUCTS = ("__struct_defaults__", "__struct_encode_fields__", "__struct_config__")  # msgspec's
_OF_PYDANTIC = {f"__pydantic_{name}__" for name in ("fields", "decorators", "config", "generic_metadata")}
_SAYING_WHAT_COUNTS = ("__prepcache_key__", "__getstate__", "__reduce__", "__reduce_ex__")
_RANK = re.compile(
    r"(.*_)?(rank|rankid|procid|localid|nodeid|process_index)|is_(local_)?(main|master)(_process)?|is_rank_zero",
    re.IGNORECASE,
)
"""How launchers call a variable that tells the processes of a job apart, and jobs what they make of it."""
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_MOST_IDENTITIES = 1024
_identities: dict[int, tuple[Callable[[], Any], str]] = {}  # reference and name by address; the oldest go
MOST_ROWS = 1024  # attributes that are rows of their own; further objects are written where they are met


@dataclass(eq=False)
class Dependencies:
    """What the preprocessing function and the config depend on. Lives for one fingerprint."""

    graph: ImportGraph
    labels: project.Labels
    untracked: Sequence[str]
    root: str | None
    file_digest: Callable[[str], bytes]
    on_path: Callable[[Any, Encoder], bytes | None]
    counts_code: bool  # whether functions and classes are visited; without, they are names in the config
    definitions: dict[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    variables: dict[str, str | None] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # path of a file that defines some, to its module
    codes: dict[str, list[CodeType]] = field(default_factory=dict)  # path of it to what was visited of it
    ignored: set[str] = field(default_factory=set)
    unstable: dict[str, UnkeyableError] = field(default_factory=dict)  # only calls may have put it there
    objects: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    whole_files: dict[str, CodeType] = field(default_factory=dict)  # modules that functions import
    whole_modules: set[int] = field(default_factory=set)
    whole_objects: dict[int, str] = field(default_factory=dict)  # those that count with all attributes
    generators: dict[int, tuple[str, Any]] = field(default_factory=dict)  # also those that do not count
    leaves_out: bool = False
    asked: names.Questions = field(default_factory=names.Questions)
    _queue: deque[Callable[[], None]] = field(default_factory=deque)
    _rows: int = 0
    _slots: set[tuple[int, str]] = field(default_factory=set)
    _counts: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        self._answer()
        while self._queue:
            self._queue.popleft()()
            if not self._queue:
                self._answer()
        self._count_variables(self.asked.variables() if self.counts_code else ())

    def _answer(self) -> None:
        """Counts what most code does not ask for, once some code does."""
        topics = self.asked.topics
        if self.asked.finder and not self.is_untracked("sys.modules"):
            raise UnkeyableError(
                f"{self.asked.finder} looks modules up in sys.modules, or by __import__, under a name that "
                "it computes, so what it uses is unknown: call importlib.import_module(name), which is "
                "observed, or exclude the look-up with untracked=('modules',)",
                path=self.asked.finder,
            )
        named = names.names_in_texts(self.asked.texts | self.asked.held) if "frames" in topics else ()
        reached = [one for one in self.labels.definitions() if one[0] in self.definitions] if topics else ()
        for label, held in reached:
            space = project.globals_of(held)
            if "docs" in topics:
                docs = vars(held).get("__doc__") if isinstance(held, type) else held.__doc__
                self.count_value(f"{label}.__doc__", docs, held)
                inner = [] if isinstance(held, type) else [*nested(held.__code__)][1:]
                if texts := [[c for c in one.co_consts if type(c) is str] for one in inner]:
                    self.count_value(f"{label}.<locals>.__doc__", texts, held)
            if "subclasses" in topics and isinstance(held, type):
                self.count_value(f"{label}.__subclasses__()", type.__subclasses__(held), held)
            if "modules" in topics:
                resolution.whole_module(self, space)
            if isinstance(held, FunctionType) and names.all_names(held.__code__) & names.QUERIES:
                resolution.count_named(self, space, named)
        if "arguments" in topics:
            self.count_value("sys.argv", sys.argv[1:], sys)
        if "home" in topics:  # files of one name are others in another's
            self.count_value("~", os.path.expanduser("~"), sys)
        if "sources" in topics:
            for path, module in sorted(self.sources.items()):
                self.graph.add_file(module, path)

    def _visit_function(self, label: str, function: FunctionType) -> None:
        code, space = function.__code__, function.__globals__
        self.definitions[label] = fingerprint(code)
        if path := self._note_file(space, code.co_filename):
            self.codes.setdefault(path, []).append(code)
        for part, value in state_of(function):
            if names.is_attribute_bag(value) and part.startswith("["):
                chains = names.cell_chains(code, part[1:-1])
                resolution.count_bag(self, f"{label}{part}", value, chains, function)
            else:
                self.count_value(f"{label}{part}", value, function)
        if annotations := function.__annotations__:  # whatever is given the function may read them
            if all(type(one) is str for one in annotations.values()):  # as those of thousands of functions
                self.values[f"{label}.__annotations__"] = Value.of_text(repr(annotations))
            else:
                self.count_value(f"{label}.__annotations__", annotations, function)
            self._count_annotations(space, annotations)
        for name, chains in sorted(names.global_chains(code).items()):
            resolution.count_global(self, space, name, chains)
        self.asked.note_code(code)
        if names.is_dynamic(code):
            resolution.whole_module(self, space)
        resolution.follow_imports(self, code, space)

    def _note_file(self, space: dict[str, Any], filename: str) -> str | None:
        path = filename if filename in self.sources else os.path.abspath(filename)
        if path not in self.sources:
            is_file = not filename.startswith("<") and not path.endswith(EXTENSIONS) and os.path.isfile(path)
            # A template has no module, and counts by the code that was compiled from it.
            if not is_file or "__name__" not in space or self.labels.places.of(path) is not Place.PROJECT:
                return None
            self.sources[path] = self.labels.of_module(space)
        return path

    def _visit_class(self, label: str, cls: type) -> None:
        space = project.globals_of(cls)
        self.definitions[label] = "class"
        for said in (vars(cls)[way] for way in _SAYING_WHAT_COUNTS if way in vars(cls)):
            self.leaves_out |= not (isinstance(said, FunctionType) and self.labels.is_library(said))
        self._note_file(space, str(space.get("__file__")))
        self.refer_library(project.class_module(cls))
        self.count_value(f"{label}.__bases__", cls.__bases__, cls)
        self._count_variables(variables_of(cls))
        self._count_annotations(space, vars(cls).get("__annotations__", {}))
        for name, value in parts_of(cls):
            self.count_value(f"{label}.{name}", value, cls)

    def _count_annotations(self, space: dict[str, Any], annotations: dict[str, Any]) -> None:
        """Counts what is named by texts in annotations, also by those of globals that they name."""
        found: set[str] = set()
        waiting = list(annotations.values())
        while waiting:
            one = waiting.pop()
            one = one.__forward_arg__ if isinstance(one, ForwardRef) else one
            if isinstance(one, str):
                named = names.names_in_texts([one]) - found
                found |= named
                waiting += [space[name] for name in named if name in space]
            else:
                waiting += one if isinstance(one, list) else get_args(one)  # a list of a `Callable`'s
        resolution.count_named(self, space, found)

    def _count_variables(self, found: Iterable[str]) -> None:
        for name in found:
            if not self.is_untracked(f"environ.{name}"):
                self.variables[name] = os.environ.get(name)

    def is_untracked(self, label: str) -> bool:
        for name in self.untracked:
            if label.endswith((f".{name}", f"[{name}]")):  # and never `preprocess`, the function itself
                self.ignored.add(name)
                return True
        return False

    def count_value(self, label: str, value: Any, owner: Any, by: ValueEncoder | None = None) -> None:
        """Counts what a namespace, class or object holds under a label; `by` writes the object."""
        slot = (id(owner), label)
        if slot in self._slots or self.is_untracked(label):
            return
        self._slots.add(slot)
        unique = project.unique(label, self.values, self._counts)
        self.values[unique] = ABSENT
        encoder, hasher = ValueEncoder(self, is_config=by is not None and by.is_config), blake3()
        if not encoder.is_config and unique != "preprocess":  # which cannot be left out
            encoder.ways_out = f"{WAYS_OUT}, or exclude it with untracked=({unique.rpartition('.')[2]!r},)"
        try:
            # The order of dicts counts: nobody can put a global in order before the function sees it.
            encoder.write(value, hasher.update, unique, opaque_depth=1)
            digest = hasher.hexdigest()
        except UnkeyableError as error:
            digest = self.stand_in(unique, value, error)
        known = self.labels.known(value)
        is_object = known in self.objects
        self.values[unique] = Value(
            digest,
            readable(value, None if is_object else known),
            is_secret=not is_object and holds_secret(value),  # attributes are rows of their own
            kind=object if encoder.is_whole else type(value),
            holder=None if by is None else type(owner),
        )

    def note_generators(self, value: Any, by: ValueEncoder) -> None:
        for name, one in (("", value), *project.space_of(value).items()):
            if is_generator(type(one)) and global_generator(one) is None:
                bits = bits_of(one)  # which several may share
                self.generators.setdefault(id(bits), (f"{by.where}.{name}".rstrip("."), bits))

    def stand_in(self, label: str, value: Any, error: UnkeyableError) -> str:
        """What stands for a value without stable bytes, as long as it is there."""
        self.unstable.setdefault(label, error)
        refer, name = _identities.get(id(value), (None, ""))
        if refer is None or refer() is not value:
            name = f"?{secrets.token_hex(8)}"
            while len(_identities) >= _MOST_IDENTITIES:
                _identities.pop(next(iter(_identities)), None)
            # A connection, say, is kept alive: its address would be another thing's.
            refer = weakref.ref(value) if type(value).__weakrefoffset__ else lambda: value
            _identities[id(value)] = refer, name
        return name

    def refer_object(
        self, value: Any, pairs: Parts, by: ValueEncoder, place: str, *, is_whole: bool = True
    ) -> str:
        label = self.labels.known(value) or self._give(value, place, by)
        if is_whole:
            self.whole_objects[id(value)] = label
        self._rows += len(pairs)
        self.objects.add(label)
        for name, part in pairs:
            is_step = name[:1] in ("(", "[", ".")
            step = name if is_step else f".{name}" if name.isidentifier() else f"[{name!r}]"
            self._queue.append(partial(self.count_value, label + step, part, value, by))
        return label

    def number_object(self, value: Any, by: ValueEncoder) -> str | None:
        """The label of an object that `by` is to write in full, once there are many rows; before, None."""
        if self._rows < MOST_ROWS:
            return None
        label = self.labels.known(value) or self._give(value, f"object in {by.steps[0]}", by)
        return self.whole_objects.setdefault(id(value), label)

    def refer_function(self, function: FunctionType, by: ValueEncoder) -> str | None:
        if self.labels.is_library(function):
            self.asked.library.add(function.__name__)
            return None
        name = function.__code__.co_qualname
        if name.startswith("__create_fn__."):  # a dataclass made it, and gave it the name of its class
            name = function.__qualname__
        module = self.labels.of_module(function.__globals__)  # one that was loaded again has two
        return self._refer(function, f"{module}.{name}", self._visit_function, by)

    def refer_class(self, cls: type, by: ValueEncoder | None = None) -> str:
        self.leaves_out |= is_registered(cls)
        if self.labels.is_project(cls):
            return self._refer(cls, class_label(cls), self._visit_class, by)
        self.asked.library.add(cls.__name__)
        self.refer_library(project.class_module(cls))
        return class_label(cls)

    def refer_module(self, module: ModuleType) -> None:
        if self.counts_code:
            self._queue.append(partial(resolution.count_module, self, module, ()))

    def refer_library(self, module: str) -> None:
        name, file = project.file_of(module)
        if file is not None and file.endswith(EXTENSIONS) and self.labels.places.of(file) is Place.PROJECT:
            if file not in self.graph.files.values():
                self.graph.count(name, file)
        elif module.partition(".")[0] in self.labels.places.owned:
            self.graph.top_levels.add(module.partition(".")[0])

    def _refer(self, value: Any, wanted: str, visit: Callable[..., None], by: ValueEncoder | None) -> str:
        if (label := self.labels.known(value)) is None:
            label = self._give(value, wanted, by)
            if self.counts_code:
                self._queue.append(partial(visit, label, value))
        return label

    def _give(self, value: Any, wanted: str, by: ValueEncoder | None) -> str:
        label = self.labels.give(value, wanted)
        if label != wanted and by is not None and by.set_depth:
            ways_out = "use a list or a tuple, or set the __qualname__ of a class"
            raise by.refuse(f"a set gives no order to two things named {wanted}: {ways_out}")
        return label


def refer_classes(classes: Sequence[type], reach: Dependencies) -> None:
    """Counts the code of the classes of items, where they are names. Sorted by name."""
    own: dict[str, type] = {}
    for cls in filter(reach.labels.is_project, classes if reach.counts_code else ()):
        name = class_label(cls)
        if own.setdefault(name, cls) is not cls:
            raise UnkeyableError(
                f"items: two classes are named {name}: rename one, or pass plain values as items and "
                "let the function build the objects"
            )
        reach.refer_class(cls)
    reach.run()


def parts_of(cls: type) -> Iterator[tuple[str, Any]]:
    """What a class holds: its attributes, and what is kept outside of them."""
    for name, value in sorted(vars(cls).items(), key=lambda pair: str(pair[0])):
        is_kept = not (name in _SKIPPED_OF_CLASSES or name.startswith("__pydantic")) or name in _OF_PYDANTIC
        is_in_c = type(value).__module__ == "builtins" and getattr(value, "__objclass__", None) is cls
        is_made = is_in_c or type(value).__name__ == "CField"  # of ctypes' `_fields_`
        if name == "__hash__" and isinstance(value, FunctionType):  # attrs' holds a number of this process
            is_made = value.__code__.co_filename.startswith("<attrs generated")
        is_empty = name == "__annotations__" and not value  # as it is once somebody asked for it
        if is_kept and not (is_made or is_empty):
            yield name, value
    if type(cls) is not type:
        yield "__class__", type(cls)
    yield from ((name, getattr(cls, name)) for name in _OF_STRUCTS if hasattr(type(cls), name))
    for name, one in vars(cls).get("__dataclass_fields__", {}).items():
        if one.metadata:
            yield f"{name}.metadata", dict(one.metadata)
    if registered := isinstance(cls, abc.ABCMeta) and {r() for r in vars(abc)["_get_dump"](cls)[0]} - {None}:
        yield "<registered>", registered


def variables_of(cls: type) -> list[str]:
    """The variables that a class of pydantic-settings may read, by the names of its fields."""
    if not any(base.__module__.partition(".")[0] == "pydantic_settings" for base in cls.__mro__[1:]):
        return []
    ends = ("\n", "__", getattr(cls, "model_config", {}).get("env_nested_delimiter") or "\n")
    wanted = [f"{name}{end}".lower() for name in vars(cls).get("__annotations__", ()) for end in ends]
    return sorted(name for name in os.environ if any(one in f"{name.lower()}\n" for one in wanted))


def notes_on_ranks(walk: Dependencies) -> Iterator[str]:
    if not any(map(_RANK.fullmatch, os.environ)) or any(os.environ.get(size) == "1" for size in _SIZES):
        return
    labels = [label.partition("#")[0] for label in walk.values if not label.startswith("config.")]
    found = {*walk.variables, *(label.rpartition(".")[2] for label in labels)}
    codes = [code for function in walk.labels.functions() for code in nested(function.__code__)]
    places = [(code.co_filename, line) for code in codes for *_, line in code.co_lines() if line]
    for name in sorted(filter(_RANK.fullmatch, found)):
        lines = ((file, line, linecache.getline(file, line).strip()) for file, line in places)
        using = (one for one in lines if re.search(rf"\b{re.escape(name)}\b", one[2]))
        where = next((f" ({os.path.basename(file)}:{line}: {text})" for file, line, text in using), "")
        yield (
            f"{name} differs between the processes of this job and is in the key{where}, so every rank "
            f"preprocesses all items: exclude it with untracked=({name!r},), or read it outside the function"
        )
