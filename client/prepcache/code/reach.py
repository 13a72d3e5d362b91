"""The functions, classes and globals that a function reaches at run time.

The walk starts from values (the preprocessing function, the config) and keeps two tables:
`definitions`, label to digest of the syntax tree, and `values`, label to digest of the value. A function
or class inside a value is written as its label, and queued; so the two tables together describe the
graph, however it is knotted.

NOTE [ Lazy modules ]
    A module that only function-local imports bring in may be loaded or not when the recipe is made, and
    the recipe must not depend on that. Its files count as in `code="script"`, and of its globals, if it
    is loaded, only those that differ from the literal in its text (`cfg.SIZE = 512` in the job).

Invariants:
    1. No attribute is read that may run code: `vars()` and `__dict__`, never `getattr`, on what is walked.
    2. What is visited, and in which order, depends on the code alone, not on hashes or addresses.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import enum
import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from blake3 import blake3

from prepcache.builtin_types import float_bytes, int_bytes
from prepcache.canonical import Encoder
from prepcache.code import labels
from prepcache.code.closure import Closure, resolve
from prepcache.code.memory import Memory
from prepcache.code.names import all_names, global_chains
from prepcache.code.parsed import Definition, Import
from prepcache.code.project import Place, Places, root_of
from prepcache.code.source import Sources, Unit, code_digest
from prepcache.code.values import Unstable, parts_of
from prepcache.errors import UnkeyableError

WAYS_OUT = (
    "put what matters of it in config, give its class `__prepcache_key__()`, teach prepcache with "
    "`register_key(type, function)`, or leave it out with untracked=({name!r},)"
)

_SKIPPED_GLOBALS = frozenset(
    {
        "__builtins__", "__name__", "__file__", "__path__", "__spec__", "__loader__", "__package__",
        "__cached__", "__doc__", "__annotations__", "__warningregistry__", "__debug__", "__class__",
    }
)  # fmt: skip
_SKIPPED_ATTRIBUTES = frozenset(
    {
        "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__",
        "__firstlineno__", "__static_attributes__", "__orig_bases__", "__parameters__", "__match_args__",
        "__abstractmethods__", "__dataclass_fields__", "__dataclass_params__", "__attrs_attrs__",
        "__attrs_own_setattr__", "__protocol_attrs__", "__non_callable_proto_members__", "__final__",
        "__annotate__", "__annotate_func__", "__annotations_cache__", "__classcell__", "__attrs_props__",
        "__type_params__", "_abc_impl", "_is_protocol", "_is_runtime_protocol", "__signature__",
    }
)  # fmt: skip
_C_DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_DOC_READERS = frozenset({"__doc__", "getdoc", "getsource", "getcomments"})
_ABSENT = b"absent"
_TEXT_LIMIT = 120


@dataclass(frozen=True, slots=True)
class Value:
    """A value that counts: the digest of its bytes, and a short readable form."""

    digest: str
    text: str


class Reach:
    """What the preprocessing function and the config reach. Lives for one fingerprint.

    Args:
        closure: counts files; the walk adds those that whole-module uses and lazy imports bring in.
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
        self.variables: dict[str, str | None] = {}
        self.top_levels: set[str] = set()
        self.sources: dict[str, str] = {}
        """Path of each project file that holds a definition reached, to its module's label."""
        self.ignored: set[str] = set()
        self.literal_paths: set[str] = set()
        self.is_debug = False
        self._docs: dict[str, str] = {}
        self._reads_docs = False
        self._closure = closure
        self._sources = Sources(memory)
        self._memory = memory
        self._places = places
        self._untracked = tuple(untracked)
        self._root = root
        self._file_digest = file_digest
        self._labels = labels.Labels()
        self._queue: list[tuple[str, Any, bool]] = []
        self._stack: list[int] = []
        self._objects: dict[int, tuple[Any, bytes]] = {}
        self._is_lazy = False

    # -- the walk ------------------------------------------------------------------------------------

    def add(self, label: str, value: Any) -> None:
        """Counts a value under a label, and all that it reaches."""
        self._value(label, value)
        self.run()

    def run(self) -> None:
        """Visits what is queued, until nothing is."""
        while self._queue:
            label, value, self._is_lazy = self._queue.pop(0)
            if isinstance(value, FunctionType):
                self._visit_function(label, value)
            else:
                self._visit_class(label, value)
        self._is_lazy = False
        if self._reads_docs:
            self.definitions.update({f"{label}.__doc__": digest for label, digest in self._docs.items()})

    def _visit_function(self, label: str, function: FunctionType) -> None:
        code = function.__code__
        found = self._sources.definition(function)
        module = labels.module_label(function.__globals__)
        if not self._is_lazy:
            self.definitions[label] = found[1].digest if found else f"code:{code_digest(code)}"
        if found:
            unit, definition = found
            self._docs[label] = definition.doc_digest
            self._facts(unit, definition, module, function.__globals__)
        if not self._reads_docs and not _DOC_READERS.isdisjoint(all_names(code)):
            self._reads_docs = True
        if self._root is not None:
            inside = self._root + os.sep
            self.literal_paths.update(text for text in _texts(code) if text.startswith(inside))
        self._state_of_function(label, function)
        chains = global_chains(code)
        for name in sorted(chains):
            self._global(function.__globals__, module, name, chains[name])

    def _state_of_function(self, label: str, function: FunctionType) -> None:
        code = function.__code__
        named = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        for name, value in zip(named[len(named) - len(defaults) :], defaults, strict=True):
            self._value(f"{label}({name}=)", value)
        for name, value in sorted((function.__kwdefaults__ or {}).items()):
            self._value(f"{label}({name}=)", value)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._cell(f"{label}[{name}]", cell)
        for name, value in sorted(vars(function).items()):
            self._value(f"{label}.{name}", value)

    def _cell(self, label: str, cell: types.CellType) -> None:
        try:
            content = cell.cell_contents
        except ValueError:
            self.values[label] = Value(blake3(_ABSENT).hexdigest(), "empty")
        else:
            self._value(label, content)

    def _visit_class(self, label: str, cls: type) -> None:
        found = self._sources.class_definitions(cls)
        module = labels.class_module_label(cls)
        if found and found[1] and not self._is_lazy:
            unit, definitions = found
            self.definitions[label] = "+".join(d.digest for d in definitions)
            self._docs[label] = "+".join(d.doc_digest for d in definitions)
            namespace = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
            for definition in definitions:
                self._facts(unit, definition, module, namespace)
        elif not self._is_lazy:
            self.definitions[label] = "made at run time"
        self._value(f"{label}.__bases__", cls.__bases__)
        if type(cls) is not type:
            self._value(f"{label}.__class__", type(cls))
        if issubclass(cls, enum.Enum):
            self._value(f"{label}.__members__", {n: m._value_ for n, m in cls.__members__.items()})
        is_tuple = issubclass(cls, tuple) and "_fields" in vars(cls)
        for name, value in sorted(vars(cls).items(), key=lambda pair: str(pair[0])):
            if not self._is_skipped(cls, name, value, is_tuple):
                self._value(f"{label}.{name}", value)
        self._model_fields(label, cls)

    def _is_skipped(self, cls: type, name: str, value: Any, is_tuple: bool) -> bool:
        if name in _SKIPPED_ATTRIBUTES or isinstance(value, _C_DESCRIPTORS):
            return True
        if name.startswith(("__pydantic", "__private_attributes__", "__class_vars__", "__attrs_")):
            return True
        if issubclass(cls, enum.Enum):
            # Members are counted; the rest is bookkeeping that the enum machinery puts there.
            inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            is_code = isinstance(inner, FunctionType | property)
            return not is_code or (isinstance(inner, FunctionType) and self._is_library(inner))
        if is_tuple and isinstance(value, FunctionType | classmethod | types.BuiltinFunctionType):
            inner = getattr(value, "__func__", value)
            return (
                not isinstance(inner, FunctionType)
                or inner.__code__.co_filename.startswith("<")
                or (self._is_library(inner))
            )
        return is_tuple and type(value).__name__ == "_tuplegetter"

    def _is_library(self, function: FunctionType) -> bool:
        return labels.place_of_function(function, self._places) is not Place.PROJECT

    def _model_fields(self, label: str, cls: type) -> None:
        """pydantic keeps field defaults in a table of its own."""
        fields = vars(cls).get("__pydantic_fields__") or vars(cls).get("model_fields")
        if isinstance(fields, dict):
            for name, info in sorted(fields.items()):
                for part in ("default", "default_factory"):
                    value = getattr(info, part, None)
                    if value is not None and type(value).__name__ != "PydanticUndefinedType":
                        self._value(f"{label}.{name}.{part}", value)

    def _facts(self, unit: Unit, definition: Definition, module: str, namespace: dict[str, Any]) -> None:
        """Counts what the text of a definition tells and its code does not."""
        self.is_debug |= definition.is_debug
        if unit.path is not None and not self._is_lazy:
            self.sources.setdefault(unit.path, module)
            if definition.is_dynamic:
                self._closure.add_file(module, unit.path)
        for name in definition.variables:
            self.variables[name] = os.environ.get(name)
        for constant in definition.variable_names:
            name = namespace.get(constant)
            if isinstance(name, str):
                self.variables[name] = os.environ.get(name)
        is_package = unit.path is not None and os.path.basename(unit.path).startswith("__init__.")
        self._closure.add_imports(definition.imports, module, is_package)
        for statement in definition.imports:
            self._lazy_import(statement, module, is_package)

    # -- names ---------------------------------------------------------------------------------------

    def _is_untracked(self, label: str) -> bool:
        for name in self._untracked:
            if label == name or label.endswith((f".{name}", f"[{name}]")):
                self.ignored.add(name)
                return True
        return False

    def _global(
        self, namespace: dict[str, Any], module: str, name: str, chains: set[tuple[str, ...]]
    ) -> None:
        label = f"{module}.{name}"
        if name in _SKIPPED_GLOBALS or self._is_untracked(label):
            return
        if name not in namespace:
            if not hasattr(builtins, name):
                self.values.setdefault(label, Value(blake3(_ABSENT).hexdigest(), "absent"))
            return
        value = namespace[name]
        if isinstance(value, ModuleType):
            for chain in sorted(chains):
                self._module(value, chain)
        elif _is_attribute_bag(value) and () not in chains:
            for attribute in sorted({chain[0] for chain in chains}):
                if attribute in vars(value):
                    self._value(f"{label}.{attribute}", vars(value)[attribute])
                else:
                    self._value(f"{label}.{attribute}", type(value))
        else:
            self._value(label, value)

    def _module(self, module: ModuleType, chain: tuple[str, ...]) -> None:
        """Counts what a chain of attributes, read from a module, arrives at."""
        name = module.__name__
        place = labels.place_of_module(module, self._places)
        if place is Place.SITE:
            self.top_levels.add(name.partition(".")[0])
        if place is Place.SELF:
            return
        namespace = vars(module)
        if place is not Place.PROJECT:
            self._library_attribute(name, namespace, chain)
        elif not chain:
            self._whole_module(module)
        elif chain[0] in namespace:
            self._global(namespace, name, chain[0], {chain[1:]})
        else:
            submodule = sys.modules.get(f"{name}.{chain[0]}")
            if submodule is not None:
                self._module(submodule, chain[1:])
            elif "__getattr__" in namespace:
                self._value(f"{name}.__getattr__", namespace["__getattr__"])
            else:
                self._global(namespace, name, chain[0], {chain[1:]})

    def _library_attribute(self, name: str, namespace: dict[str, Any], chain: tuple[str, ...]) -> None:
        """Of libraries, settings count by value (`ImageFile.LOAD_TRUNCATED_IMAGES`), and what was patched."""
        if not chain or chain[0] not in namespace or chain[0] in _SKIPPED_GLOBALS:
            return
        value = namespace[chain[0]]
        label = f"{name}.{chain[0]}"
        if isinstance(value, ModuleType):
            self._module(value, chain[1:])
        elif (
            type(value) in _SCALARS or (isinstance(value, FunctionType) and not self._is_library(value))
        ) and not self._is_untracked(label):
            self._value(label, value)

    def _whole_module(self, module: ModuleType) -> None:
        """A module used as a value: any of its names may be looked up in it."""
        name, file = module.__name__, getattr(module, "__file__", None)
        label = f"module {name}"
        if label in self.values:
            return
        self.values[label] = Value("", "whole module")
        if isinstance(file, str) and file.endswith(".py"):
            self._closure.add_file(name, file)
        for attribute, value in sorted(vars(module).items()):
            if not isinstance(value, ModuleType) and not attribute.startswith("__"):
                self._global(vars(module), name, attribute, {()})

    # -- lazy modules --------------------------------------------------------------------------------

    def _lazy_import(self, statement: Import, module: str, is_package: bool) -> None:
        """See NOTE [ Lazy modules ]."""
        base = resolve(statement, module, is_package)
        loaded = sys.modules.get(base) if base else None
        if loaded is None or base is None:
            return
        place = labels.place_of_module(loaded, self._places)
        if place is Place.SITE:
            self.top_levels.add(base.partition(".")[0])
        if place is not Place.PROJECT:
            return
        names = statement.names or statement.uses
        before, self._is_lazy = self._is_lazy, True
        for name in sorted(vars(loaded)) if names is None or "*" in names else names:
            value = vars(loaded).get(name)
            if name.startswith("__") or (value is None and name not in vars(loaded)):
                continue
            if isinstance(value, ModuleType):
                if labels.place_of_module(value, self._places) is Place.PROJECT and names is not None:
                    self._lazy_import(Import(0, value.__name__, ()), module, is_package)
            else:
                self._global(vars(loaded), base, name, {()})
        self._is_lazy = before

    def _is_as_written(self, label: str, value: Any) -> bool:
        """Whether a lazy module's global is still the literal that its text binds it to."""
        module, _, name = label.rpartition(".")
        path = self._closure.modules.get(module)
        parsed = self._closure.parsed.get(path) if path else None
        text = parsed.literals.get(name) if parsed else None
        return text is not None and repr(ast.literal_eval(text)) == repr(value)

    # -- values --------------------------------------------------------------------------------------

    def _value(self, label: str, value: Any) -> None:
        if label in self.values or self._is_untracked(label):
            return
        if self._is_lazy:
            if isinstance(value, FunctionType | type):
                self._code(value, None)
                return
            if self._is_as_written(label, value):
                return
        self.values[label] = Value("", "")
        raw = _scalar_bytes(value) or self.encoded(label, value)
        self.values[label] = Value(blake3(raw).hexdigest(), readable(value, self._labels))

    def encoded(self, label: str, value: Any) -> bytes:
        """The bytes of a run-time value, its order counted; what it reaches is queued."""
        encoder = Encoder(on_path=self._on_path, on_code=self.on_code, on_object=self.on_object)
        encoder.steps = [label]
        # Nobody can put a global into canonical order before the function sees it.
        encoder.opaque_depth = 1
        chunks: list[Any] = []
        try:
            encoder.walk(value, chunks.append)
        except RecursionError:
            raise UnkeyableError(f"{label}: it is nested too deeply", path=label) from None
        return b"".join(chunks)

    def _on_path(self, value: Any, encoder: Encoder) -> bytes | None:
        """Paths in run-time values: relative to the checkout, with the bytes of the file they name."""
        text = os.fsdecode(value)
        is_text = isinstance(value, str)
        if is_text and (not text or len(text) > 4096 or not ({"/", "."} & set(text)) or "\n" in text):
            return None
        name, is_inside = text, False
        if self._root is not None and (text == self._root or text.startswith(self._root + os.sep)):
            name, is_inside = os.path.relpath(text, self._root), True
        digest = b""
        with contextlib.suppress(OSError, ValueError):
            if os.path.isfile(text):
                digest = self._file_digest(text)
        if is_text and not is_inside and not digest:
            return None
        return repr((name, is_inside, digest.hex())).encode("utf-8", "surrogatepass")

    def on_code(self, value: Any, encoder: Encoder) -> bytes | None:
        """The `on_code` hook: functions and classes by label, what wraps them by its parts."""
        return self._code(value, encoder)

    def _code(self, value: Any, encoder: Encoder | None) -> bytes | None:
        if isinstance(value, FunctionType):
            return self._function(value, encoder)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, ModuleType):
            self._module(value, ())
            return f"module:{value.__name__}".encode()
        if encoder is None:
            return None
        if isinstance(value, types.MethodType):
            return (
                b"method:" + self._bound(value.__self__, encoder) + encoder.part(value.__func__, "__func__")
            )
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords, vars(value))
            return b"partial:" + b"".join(
                encoder.part(part, step)
                for step, part in zip(("func", "args", "keywords", "__dict__"), parts, strict=True)
            )
        if isinstance(value, types.BuiltinFunctionType):
            return self._builtin(value, encoder)
        return None

    def _builtin(self, value: Any, encoder: Encoder) -> bytes:
        owner = value.__self__
        name = f"builtin:{value.__module__}.{value.__qualname__}".encode()
        if value.__module__:
            self._add_library(value.__module__)
        if owner is None or isinstance(owner, ModuleType | type):
            return name
        return name + b":" + self._bound(owner, encoder)

    def _bound(self, owner: Any, encoder: Encoder) -> bytes:
        if id(owner) in self._stack:
            return b"self%d" % self._stack.index(id(owner))
        return encoder.part(owner, "__self__")

    def _add_library(self, module: str) -> None:
        top = module.partition(".")[0]
        if top in self._places.owned:
            self.top_levels.add(top)

    def _function(self, function: FunctionType, encoder: Encoder | None) -> bytes:
        known = self._labels.known(function)
        if known is not None:
            return f"function:{known}".encode()
        module = labels.module_label(function.__globals__)
        qualname = function.__code__.co_qualname
        if self._is_library(function):
            return self._library_function(function, f"{module}.{qualname}", encoder)
        label = self._labels.give(function, f"{module}.{qualname}")
        self._queue.append((label, function, self._is_lazy))
        return f"function:{label}".encode()

    def _library_function(self, function: FunctionType, name: str, encoder: Encoder | None) -> bytes:
        """Code of a library counts by name; what a decorator of a library wraps, by what it is."""
        self._add_library(labels.module_label(function.__globals__))
        payload = f"library:{name}"
        if "<" in name:
            payload += f":{code_digest(function.__code__)}"
        raw = payload.encode()
        if id(function) in self._stack or encoder is None:
            return raw
        self._stack.append(id(function))
        registry = vars(function).get("registry")
        if isinstance(registry, types.MappingProxyType):  # functools.singledispatch
            raw += encoder.part(dict(registry), "registry")
        else:
            for cell_name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            ):
                with contextlib.suppress(ValueError):
                    raw += encoder.part(cell.cell_contents, cell_name)
        if "__wrapped__" in vars(function):
            raw += encoder.part(vars(function)["__wrapped__"], "__wrapped__")
        self._stack.pop()
        return raw

    def _class(self, cls: type) -> bytes:
        known = self._labels.known(cls)
        if known is not None:
            return f"class:{known}".encode()
        name = f"{labels.class_module_label(cls)}.{cls.__qualname__}"
        place = labels.place_of_class(cls, self._places)
        if place is not Place.PROJECT:
            self._add_library(labels.class_module(cls))
            return f"class:{name}".encode()
        label = self._labels.give(cls, name)
        self._queue.append((label, cls, self._is_lazy))
        return f"class:{label}".encode()

    def on_object(self, value: Any, encoder: Encoder) -> bytes | None:
        """The `on_object` hook: an object's class and state."""
        known = self._objects.get(id(value))
        if known is not None:
            return known[1]
        self._stack.append(id(value))
        encoder.opaque_depth += 1
        try:
            raw = self._object(value, encoder)
        finally:
            self._stack.pop()
            encoder.opaque_depth -= 1
        if not self._stack:
            self._objects[id(value)] = (value, raw)
        return raw

    def _object(self, value: Any, encoder: Encoder) -> bytes:
        chunks: list[Any] = []
        encoder.put_class_of(value, chunks.append)
        try:
            parts = parts_of(value)
        except Unstable as error:
            cls = type(value)
            ways = WAYS_OUT.format(name=_root_name(encoder))
            raise encoder.refuse(
                f"{cls.__module__}.{cls.__qualname__} has no stable bytes ({error}); {ways}"
            ) from error
        chunks.append(b"%d:" % len(parts))
        for name, part in parts:
            raw = name.encode("utf-8", "surrogatepass")
            chunks.append(b"%d:%s" % (len(raw), raw))
            if self._is_untracked(f"{encoder.where}.{name}"):
                chunks.append(b"untracked")
            else:
                encoder.step(part, name, chunks.append)
        return b"".join(chunks)


def _scalar_bytes(value: Any) -> bytes | None:
    """The canonical bytes of the commonest values, without an encoder."""
    kind = type(value)
    if kind is int:
        return int_bytes(value)
    return float_bytes(value) if kind is float else None


def _texts(code: types.CodeType) -> Iterator[str]:
    for const in code.co_consts:
        if isinstance(const, str):
            yield const
        elif isinstance(const, types.CodeType):
            yield from _texts(const)


def _root_name(encoder: Encoder) -> str:
    first = str(encoder.steps[0]) if encoder.steps else ""
    return first.rpartition(".")[2] or first


def _is_attribute_bag(value: Any) -> bool:
    cls = type(value)
    return cls is types.SimpleNamespace or (cls.__module__ == "argparse" and cls.__name__ == "Namespace")


def readable(value: Any, names: labels.Labels | None = None) -> str:
    """A short form of a value for people: never an address, never more than a line."""
    label = names.known(value) if names is not None else None
    if label is not None:
        return label
    if type(value) in _SCALARS:
        text = repr(value)
    elif isinstance(value, dict | list | tuple | set | frozenset):
        if len(value) <= 8 and all(
            type(v) in _SCALARS for v in (value.values() if isinstance(value, dict) else value)
        ):
            text = repr(value) if not isinstance(value, set | frozenset) else repr(sorted(value, key=repr))
        else:
            text = f"{type(value).__name__} of {len(value)}"
    elif hasattr(type(value), "shape") and hasattr(type(value), "dtype"):
        text = f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    elif isinstance(value, FunctionType | type | types.BuiltinFunctionType):
        text = f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, ModuleType):
        text = value.__name__
    elif isinstance(value, os.PathLike):
        text = os.fsdecode(value)
    else:
        text = f"{type(value).__module__}.{type(value).__qualname__}"
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 3] + "..."


def checkout_of(function: FunctionType | None) -> str | None:
    """The root of the checkout that a function's file stands in."""
    if function is None:
        return None
    filename = function.__code__.co_filename
    file = function.__globals__.get("__file__")
    path = filename if os.path.isabs(filename) else file
    return root_of(path) if isinstance(path, str) and os.path.isfile(path) else None
