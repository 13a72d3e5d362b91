"""The encoder's hooks for what the canonical encoding leaves open: code, objects, and paths at run time.

Functions and classes of the project are written as labels, and referred to the walk that visits them;
code of libraries by name, with what it wraps; other objects by class and state.

Invariants:
    1. Equal bytes mean that the two values are made of the same labels, names and states.
    2. What has no stable bytes is written as a random name, which no other object ever has, also at the
       address of one that is gone.
    3. In a run-time value an object, list or dict that reaches itself (a child its parent) is written as the
       place where it stands above; in a config it is refused, but for methods bound to it.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import os
import secrets
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Protocol

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code import labels
from prepcache.keys.code.describe import SCALARS, readable
from prepcache.keys.code.fingerprint import fingerprint
from prepcache.keys.code.function_state import state_of
from prepcache.keys.code.object_parts import Unstable, is_lock, parts_of
from prepcache.keys.code.partial_reads import attributes_read
from prepcache.keys.encoding.builtins import float_bytes, int_bytes
from prepcache.keys.encoding.encoder import WAYS_OUT as CONFIG_WAYS_OUT
from prepcache.keys.encoding.encoder import Encoder, Put, is_registered, length
from prepcache.keys.own_state import Attribute, Attributes, place_of
from prepcache.keys.paths import looks_like_path, name_bytes
from prepcache.keys.restart import check_machine_code

WAYS_OUT = (
    "put what matters into config, give its class a `__prepcache_key__()` method, call "
    "`register_key(type, function)`, or exclude it with untracked=({name!r},)"
)
METHOD = ", or make preprocess a function that does not hold it"
DEAR_S = 0.01
"""Seconds. What took longer to encode and is plain data is known again by its marshalled bytes."""
_SHORT_BYTES = 32
"""What is written of an attribute, if it is longer, is its digest."""
_FEW = 8
"""Elements of a container that is shown."""
_MOST_TEXTS = 512
"""Attributes that a recipe can show one by one."""
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_MOST_HELD = 16
"""Objects without weak references that are held for their names; a former one gets another name."""

_identities: dict[int, tuple[Callable[[], Any], str]] = {}
"""What refers to an object, and its name, by its address."""


class Walk(Protocol):
    """What the hooks ask of the walk."""

    root: str | None
    ignored: set[str]

    def refer_function(self, function: FunctionType) -> str | None:
        """The label of a function, which will be visited; None for a library's."""

    def refer_class(self, cls: type) -> str:
        """The label of a class, which will be visited, or the name of a library's."""

    def refer_module(self, module: ModuleType) -> None:
        """Counts a module that is used as a value."""

    def refer_library(self, module: str) -> None:
        """Counts the distribution of a module, or the bytes of an extension module of the project."""

    def is_untracked(self, label: str) -> bool: ...

    def is_project(self, cls: type) -> bool:
        """Whether a class is the project's."""


class Hooks:
    """The hooks of one fingerprint.

    Args:
        walk: visits what is referred to.
        file_digest: path -> digest of the file's bytes.
    """

    def __init__(self, walk: Walk, file_digest: Callable[[str], bytes]) -> None:
        self._walk: Walk = weakref.proxy(walk)  # in a ring, all that it holds would wait for a collection
        self._file_digest = file_digest
        self._stack: list[int] = []
        self._objects: dict[tuple[int, str], tuple[Any, bytes]] = {}
        self.plain: dict[str, tuple[str, str]] = {}
        """Large plain data by label: what it is known again by, in a tenth of the time, and its digest."""
        self.is_again = False
        """Whether what was counted is only looked at again: then what has no stable bytes now has changed."""
        self.texts: set[str] = set()
        """What stands as text in values: any of it may name an environment variable, or a module."""
        self.circles = 0
        """Lists and dicts inside themselves that were met."""
        self.places: Attributes = {}
        """What is written of attributes, by the place of their object."""
        self.outlines: dict[str, bytes] = {}
        """The outlines of values that hold such objects, by label; see `Attribute`."""
        self._is_outline = False
        """Whether an outline is being written: objects that have places are written as their class there."""
        self._noted = 0
        """Objects whose attributes were noted, to tell what holds some."""
        self.unstable: dict[str, UnkeyableError] = {}
        """What has no stable bytes: only calls of the function may have put it there."""
        self._visited: dict[str, Any] = {}
        self._shown = 0
        self._files = 0

    def digest(self, label: str, value: Any) -> str:
        """The digest of a run-time value's bytes, the order of its dicts counted."""
        if type(value) is int:
            return blake3(int_bytes(value)).hexdigest()
        if type(value) is float:
            return blake3(float_bytes(value)).hexdigest()
        if label in self.plain and self.plain[label][0] == _marshalled(value):
            return self.plain[label][1]
        if type(value) is FunctionType and (name := self._walk.refer_function(value)) is not None:
            payload = f"function:{name}".encode()
            return blake3(b"C" + length(len(payload)) + payload).hexdigest()
        encoder = _RuntimeEncoder(self)
        encoder.steps = [label]
        # Nobody can put a global into canonical order before the function sees it.
        encoder.opaque_depth = 1
        hasher = blake3()
        began, files, noted = time.perf_counter(), self._files, self._noted
        try:
            encoder.walk(value, hasher.update)
            if self._noted > noted:
                self.outlines[label] = self._outline(encoder, value)
        except RecursionError:
            raise UnkeyableError(f"{label}: it is nested too deeply", path=label) from None
        except UnkeyableError as error:
            self.unstable[label] = error
            return _identity(value)
        digest = hasher.hexdigest()
        is_dear = time.perf_counter() - began > DEAR_S
        if is_dear and files == self._files and _is_plain(value) and (state := _marshalled(value)):
            self.plain[label] = state, digest
        return digest

    def encoded(self, encoder: Encoder, value: Any, path: str) -> bytes:
        """The bytes of a part of the config; none, where it is looked at again and has no stable ones."""
        noted = self._noted
        try:
            raw = encoder.encode(value, path)
            if self._noted > noted:
                self.outlines[path] = self._outline(encoder, value)
            return raw
        except UnkeyableError:
            if not self.is_again:
                raise
            return b""

    def forget(self) -> None:
        """Lets go of what was met: who holds the hooks may wait for a collection."""
        self._visited.clear()
        self._objects.clear()

    @contextlib.contextmanager
    def inside(self, value: Any) -> Iterator[None]:
        """While an object is being written, by a key of its own."""
        self._stack.append(id(value))
        try:
            yield
        finally:
            self._stack.pop()

    def place_above(self, value: Any) -> int | None:
        """How deep an object that is being written stands above the present one; None if it is none."""
        return self._stack.index(id(value)) if id(value) in self._stack else None

    # -- paths ---------------------------------------------------------------------------------------

    def on_path(self, value: Any, encoder: Encoder) -> bytes | None:
        """A path counts by its place in the checkout, if it lies there, and by the file's bytes."""
        text = os.fsdecode(value)
        is_text = isinstance(value, str)
        if is_text and not looks_like_path(text):
            return None
        root, name, is_inside = self._walk.root, text, False
        if root is not None and (text == root or text.startswith(root + os.sep)):
            name, is_inside = os.path.relpath(text, root), True
        digest = b""
        with contextlib.suppress(OSError, ValueError):
            if os.path.isfile(text):
                with contextlib.suppress(UnkeyableError):  # unreadable, or growing: observation sees its use
                    digest = self._file_digest(text)
                self._files += 1
                check_machine_code(text)
        if is_text and not is_inside and not digest:
            return None
        return b"%d:%d:" % (is_inside, len(digest)) + digest + name_bytes(name)

    # -- code ----------------------------------------------------------------------------------------

    def on_code(self, value: Any, encoder: Encoder) -> bytes | None:
        """Functions and classes by label, what wraps them by its parts."""
        if isinstance(value, FunctionType):
            label = self._walk.refer_function(value)
            if label is None:
                return self._library_function(value, encoder)
            return f"function:{label}".encode()
        if isinstance(value, type):
            return f"class:{self._walk.refer_class(value)}".encode()
        if isinstance(value, ModuleType):
            self._walk.refer_module(value)
            return f"module:{value.__name__}".encode()
        if isinstance(value, types.MethodType):
            if (name := self._held_by_library(value)) is not None:
                return name
            read = self._read_of_owner(value, encoder)
            owner = self._owner(value.__self__, encoder) if read is None else b"reads:" + read
            return b"method:" + owner + encoder.part(value.__func__, "__func__")
        if isinstance(value, functools.partial):
            steps = ("func", "args", "keywords", "__dict__")
            parts = (value.func, value.args, value.keywords, vars(value))
            return b"partial:" + b"".join(map(encoder.part, parts, steps))
        if isinstance(value, types.BuiltinFunctionType):
            return self._builtin(value, encoder)
        return None

    def _builtin(self, value: types.BuiltinFunctionType, encoder: Encoder) -> bytes:
        owner = value.__self__
        name = f"builtin:{value.__module__}.{value.__qualname__}".encode()
        labels.note_module(owner)
        if value.__module__:
            self._walk.refer_library(value.__module__)
        home = labels.module_named(str(value.__module__))
        if owner is None or isinstance(owner, ModuleType | type) or _is_held_in_c(value, home):
            return name
        if home is None and value.__module__ and _is_of_pybind(owner):
            raise encoder.refuse(
                f"the extension module {value.__module__}, which defines {value.__qualname__}, is neither in "
                f"sys.modules nor reached by the code: put it there, or call it as an attribute of the module"
            )
        if (held := self._held_by_library(value)) is not None:
            return held
        return name + b":" + self._owner(owner, encoder)

    def _held_by_library(self, method: types.MethodType | types.BuiltinFunctionType) -> bytes | None:
        """The name of a method that a library's module holds by name (`random.randint`), owner and all."""
        owner: Any = method.__self__
        module = type(owner).__module__
        if vars(sys.modules.get(module, types)).get(method.__name__) is not method:
            return None
        if self._walk.is_project(type(owner)):
            return None
        self._walk.refer_library(module)
        return f"library:{module}.{method.__name__}".encode()

    def _owner(self, owner: Any, encoder: Encoder) -> bytes:
        above = self.place_above(owner)
        return b"self%d" % above if above is not None else encoder.part(owner, "__self__")

    def _read_of_owner(self, method: types.MethodType, encoder: Encoder) -> bytes | None:
        """What a method of the project's reads of its object; None where all of it counts."""
        owner = method.__self__
        if isinstance(owner, type) or not self._walk.is_project(type(owner)):
            return None
        if is_registered(type(owner)) or hasattr(type(owner), "__prepcache_key__"):
            return None
        if self.place_above(owner) is not None or (read := attributes_read(owner, method.__func__)) is None:
            return None
        chunks: list[Any] = []
        encoder.put_class_of(owner, chunks.append)
        self._stack.append(id(owner))
        encoder.steps.append("__self__")
        encoder.opaque_depth += 1
        self.put_attributes(encoder, owner, read, chunks.append)
        encoder.opaque_depth -= 1
        encoder.steps.pop()
        self._stack.pop()
        return b"".join(chunks)

    def _library_function(self, function: FunctionType, encoder: Encoder) -> bytes:
        """Code of a library counts by name; what a decorator of a library wraps, by what it is."""
        module = str(function.__globals__.get("__name__"))
        self._walk.refer_library(module)
        name = f"library:{module}.{function.__code__.co_qualname}"
        if "<" in name:
            name += f":{fingerprint(function.__code__)}"
        raw = name.encode()
        if id(function) in self._stack:
            return raw
        self._stack.append(id(function))
        registry, compiled = vars(function).get("registry"), vars(function).get("_torchdynamo_orig_callable")
        if compiled is not None:  # torch.compile, whose cells hold what it compiled so far
            raw += encoder.part(compiled, "compiled")
            self._stack.pop()
            return raw
        if isinstance(registry, types.MappingProxyType):  # functools.singledispatch, which also holds a cache
            raw += encoder.part(dict(registry), "registry")
        else:
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            for cell_name, cell in cells:
                with contextlib.suppress(ValueError):
                    raw += encoder.part(cell.cell_contents, cell_name)
            for part, value in state_of(function) if "<locals>" in name else ():
                is_held = part[0] == "(" or (part[0] == "." and self._is_project_code(value))
                if is_held and part != ".__wrapped__":
                    raw += encoder.part(value, part)
        if "__wrapped__" in vars(function):
            raw += encoder.part(vars(function)["__wrapped__"], "__wrapped__")
        self._stack.pop()
        return raw

    def _is_project_code(self, value: Any) -> bool:
        """Whether a value is a function of the project's, or bound to some arguments."""
        while isinstance(value, functools.partial | types.MethodType):
            value = value.func if isinstance(value, functools.partial) else value.__func__
        return isinstance(value, FunctionType) and self._walk.refer_function(value) is not None

    # -- objects -------------------------------------------------------------------------------------

    def on_object(self, value: Any, encoder: Encoder) -> bytes | None:
        """An object by its class and state."""
        if value is os.environ or value is os.environb:
            return b"environ"  # the variables that the code names count one by one
        at = encoder.where
        if self._is_outline and at in self.places:
            chunks: list[Any] = []
            encoder.put_class_of(value, chunks.append)
            return b"".join(chunks)
        known = self._objects.get((id(value), at))
        if known is not None and not self._is_outline:
            self._noted += 1
            return known[1]
        circles = self.circles
        self._stack.append(id(value))
        encoder.opaque_depth += 1
        try:
            raw = self._object(value, encoder)
        finally:
            self._stack.pop()
            encoder.opaque_depth -= 1
        if not self._stack and circles == self.circles and not self._is_outline:
            # Inside another object the bytes may speak of that one; alone they are the object's own.
            self._objects[id(value), at] = (value, raw)
        return raw

    def _object(self, value: Any, encoder: Encoder) -> bytes:
        if len(self._stack) == 1 and not isinstance(encoder, _RuntimeEncoder) and is_lock(value):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise encoder.refuse(f"{kind} has no stable value; {encoder.ways_out}")
        chunks: list[Any] = []
        encoder.put_class_of(value, chunks.append)
        is_project = self._walk.is_project(type(value))
        try:
            parts = parts_of(value, is_library=not is_project)
        except Unstable as error:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            ways = _ways_out(encoder.steps)
            raise encoder.refuse(f"{kind} has no stable bytes ({error}); {ways}") from error
        if len(parts) == 1 and parts[0][0] == "name":
            self._walk.refer_library(str(getattr(value, "__module__", "")))  # a compiled function, mostly
        self.put_attributes(encoder, value, parts, chunks.append)
        return b"".join(chunks)

    # -- attributes ----------------------------------------------------------------------------------

    def put_attributes(self, encoder: Encoder, owner: Any, pairs: list[tuple[str, Any]], put: Put) -> None:
        """Writes attributes of an object, and notes what is written of each by its place."""
        at = encoder.where
        if self._is_outline and at in self.places:
            return
        pairs = [pair for pair in pairs if not self._walk.is_untracked(f"{at}.{pair[0]}")]
        is_library = not self._walk.is_project(type(owner))
        found: dict[str, Attribute] = {}
        put(b"%d:" % len(pairs))
        for name, part in pairs:
            written, outline = self._written(encoder, name, part)
            if not self._is_outline:
                text = self._text_of(part)
                found[name] = Attribute(written, outline, id(part), type(part), is_library, text)
            raw = name.encode("utf-8", "surrogatepass")
            put(b"%d:%s" % (len(raw), raw))
            put(written)
        if self._is_outline:
            return
        self._noted += 1
        if self._visited.setdefault(at, owner) is owner and len(found) == len(pairs):
            self.places[at] = found
        else:  # keys of a dict that are objects, which have no names of their own
            self._visited[at] = None
            self.places.pop(at, None)

    def _outline(self, encoder: Encoder, value: Any) -> bytes:
        """The digest of a value without the attributes that `places` has of objects in it."""
        hasher = blake3()
        self._is_outline = True
        try:
            encoder.walk(value, hasher.update)
        finally:
            self._is_outline = False
        return hasher.digest()

    def _written(self, encoder: Encoder, name: str, part: Any) -> tuple[bytes, bytes]:
        """What is written of an attribute, and its outline: if it has no stable bytes, which object it is."""
        depth = encoder.opaque_depth
        kept = [(entries, len(entries)) for entries in (encoder.steps, self._stack)]
        active, noted = len(encoder.active), self._noted
        outline = b""
        try:
            raw = encoder.part(part, name)
            if self._noted > noted:
                encoder.steps.append(name)
                outline = self._outline(encoder, part)
                encoder.steps.pop()
        except UnkeyableError as error:
            encoder.opaque_depth = depth
            for entries, count in kept:
                del entries[count:]
            while len(encoder.active) > active:
                encoder.active.popitem()
            self.unstable[place_of(encoder.where, name)] = error
            raw = _identity(part).encode()
        written = raw if len(raw) <= _SHORT_BYTES else b"#" + blake3(raw).digest()
        return written, outline or written

    def _text_of(self, part: Any) -> str:
        """A readable form of an attribute, for the first ones; no longer for what is large."""
        self._shown += 1
        if self._shown > _MOST_TEXTS:
            return ""
        is_short = isinstance(part, list | tuple | dict | set) and len(part) <= _FEW
        is_small = is_short or type(part) in SCALARS
        return readable(part) if is_small else type(part).__qualname__


def _identity(value: Any) -> str:
    """The name of an object that has no stable bytes: its own for as long as it lives."""
    at, pop = id(value), _identities.pop  # at the interpreter's end the module's names are gone
    refer, name = _identities.get(at, (None, ""))
    if refer is None or refer() is not value:
        try:
            refer = weakref.ref(value, lambda _: pop(at, None))
        except TypeError:
            held = [key for key, (one, _) in list(_identities.items()) if not isinstance(one, weakref.ref)]
            for key in held[: 1 - _MOST_HELD]:  # all but the last ones
                pop(key, None)

            def refer() -> Any:
                return value

        name = f"?{secrets.token_hex(8)}"
        _identities[at] = refer, name
    return name


def _ways_out(steps: list[str | int]) -> str:
    """What to do about a value that has no stable bytes, of the steps that lead to it.

    What the function is given cannot be left out, nor the function itself, but an attribute of the object
    that it is a method of, or that a method which made it is of: without the whole object, nothing that the
    function takes from it would count.
    """
    first, *rest = [str(step) for step in steps] or [""]
    name = next((step for step in rest if step != "__self__"), "")
    if first == "config" or (first == "preprocess" and name in ("func", "args", "keywords", "__func__", "")):
        return CONFIG_WAYS_OUT
    if first == "preprocess":
        return WAYS_OUT.format(name=name) + METHOD
    if first.endswith("[self]") and rest:
        return WAYS_OUT.format(name=rest[0])
    return WAYS_OUT.format(name=first.rpartition(".")[2] or first)


def _is_of_pybind(owner: Any) -> bool:
    """Whether a function's owner is what pybind11 keeps of it: a pointer, since version 3 in its own type."""
    return type(owner).__name__ == "PyCapsule" or type(owner).__module__ == "pybind11_builtins"


def _is_held_in_c(function: types.BuiltinFunctionType, home: ModuleType | None) -> bool:
    """Whether a function is one of its module's, and owned by what pybind11 keeps of it."""
    is_there = home is not None and vars(home).get(function.__name__) is function
    return is_there and _is_of_pybind(function.__self__)


def _is_plain(value: Any) -> bool:
    """Whether a value is built-in containers of numbers and text all the way down."""
    rest = [value]
    while rest:
        one = rest.pop()
        if type(one) is dict:
            rest += [*one, *one.values()]
        elif type(one) in (list, tuple, set, frozenset):
            rest += one
        elif type(one) not in _PLAIN:
            return False
    return True


def _marshalled(value: Any) -> str:
    """What tells a state of plain data from others; empty for what is none."""
    try:
        return blake3(marshal.dumps(value, 2)).hexdigest()  # version 2 does not depend on reference counts
    except ValueError:
        return ""


class ConfigEncoder(Encoder):
    """The encoder of a config: what it leaves open is for the hooks.

    Args:
        on_path: what paths stand for.
    """

    def __init__(self, hooks: Hooks, on_path: Callable[[Any, Encoder], bytes | None]) -> None:
        super().__init__(on_path=on_path, on_code=hooks.on_code, on_object=hooks.on_object)
        self._hooks, self.texts = hooks, hooks.texts

    def put_attributes(self, owner: Any, pairs: list[tuple[str, Any]], put: Put) -> None:
        self._hooks.put_attributes(self, owner, pairs, put)

    def put_key(self, value: Any, key: Any, put: Put) -> None:
        with self._hooks.inside(value):
            super().put_key(value, key, put)


class _RuntimeEncoder(ConfigEncoder):
    """The encoder of run-time values: objects there may refer to those that hold them."""

    def __init__(self, hooks: Hooks) -> None:
        super().__init__(hooks, hooks.on_path)

    def refers_above(self, value: Any, put: Put) -> bool:
        if id(value) not in self.active:
            return False
        put(b"Z" + length(list(self.active).index(id(value))))
        self._hooks.circles += 1
        return True

    def put_object(self, value: Any, put: Put) -> None:
        above = self._hooks.place_above(value)
        if above is None:
            super().put_object(value, put)
        else:
            put(b"Y" + length(above))
