"""The canonical encoding: one byte string for each value, typed and length-prefixed.

Every value is a tag (one byte) and a payload. Payloads of variable length start with their length, and
containers with their number of elements, as eight bytes, big end first: no encoding is another's prefix.

Invariants:
    1. Equal bytes mean equal values of equal types. `1`, `1.0`, `True` and `"1"` differ, as do `0.0` and
       `-0.0`; all NaN of a Python float are one.
    2. Nothing that varies between processes gets in: no `repr`, `id`, `hash`, pickle or random fallback.
       What has no stable bytes raises `UnkeyableError`.
    3. A change of the bytes of any value raises `ENCODING_VERSION`; `tests/golden` pins them.
    4. The order of a plain dict does not count exactly where `canonical_order` can put it right before
       the function sees it; inside objects that cannot be rebuilt the order counts.
    5. By itself an encoder knows no disk and no code: a str is text, a path is refused, functions and classes
       count by name. Derived ones know more (`items`, `code/values`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from types import FunctionType
from typing import Any

from prepcache.errors import UnkeyableError
from prepcache.keys import markers
from prepcache.namedtuples import is_namedtuple

ENCODING_VERSION = 18

MOST_ENTERED = 1 << 23  # containers and objects of one value
MOST_STEPS = 16  # in the name of a place

Parts = list[tuple[str, Any]]
Put = Callable[[Any], object]
Writer = Callable[["Encoder", Any, Put], object]
Make = Callable[[Any, Callable[[type], bool]], Parts | None]
"""The parts of an object, given what tells whether a class is a library's; None: it is written as a value."""

length = struct.Struct(">Q").pack

SAY_WHAT_COUNTS = "give its class a `__prepcache_key__()` method, or call `register_key(type, function)`"
WAYS_OUT = f"put what matters into config as plain values, {SAY_WHAT_COUNTS}"

CONTENT = "<content>"  # the part that is what a built-in base holds, or what a key function made of an object

_registered: dict[type, Callable[[Any], Any]] = {}
_writers: dict[type, Writer] = {}


def register_key(kind: type, function: Callable[[Any], Any]) -> None:
    """Key values of a type, and of its subclasses, by what a function makes of them.

    Args:
        kind: the type; it may be any, also one that is keyable without help.
        function: value -> a keyable value that holds all that matters. A dict with str keys counts as
            attributes do: in any order, reports name each, and `untracked=` may leave one out.
    """
    if not isinstance(kind, type):
        raise TypeError(f"register_key() takes a type, not {kind!r}")
    if not callable(function):
        raise TypeError(f"register_key() takes a function, not {function!r}")
    _registered[kind] = function
    _writers.clear()


def _key_of(kind: type) -> tuple[Any, type | None]:
    """What makes the key of a type's values or why they are refused; the base that has to be a library's."""
    from prepcache.keys.encoding.objects import KEYS

    for base in kind.__mro__:
        if base in _registered or "__prepcache_key__" in vars(base):
            return _registered.get(base) or kind.__prepcache_key__, None  # type: ignore[attr-defined]
        if (key := KEYS.get((str(base.__module__).partition(".")[0], base.__name__))) is not None:
            return key, base
    return None, None


def is_registered(kind: type) -> bool:
    """Whether a user has said what makes its key."""
    key, base = _key_of(kind)
    return key is not None and base is None


class Encoder:
    """Writes values, for one thread. Of one that raised, use another."""

    ways_out = WAYS_OUT

    def __init__(self) -> None:
        self.steps: list[str | int] = []
        self.opaque_depth = 0  # objects around the present value, in which the order of dicts counts
        self.inline_depth = self.set_depth = 0  # sets, enum members and `plain()` around it; sets alone
        self.is_plain = False  # whether it is inside `plain()`, where nothing is looked up on the disk
        self.active: dict[int, None] = {}
        self._entered = 0
        self._classes: dict[type, bytes] = {}

    def encode(self, value: Any, path: str = "config") -> bytes:
        found = bytearray([ENCODING_VERSION])
        self.write(value, found.extend, path)
        return bytes(found)

    def write(self, value: Any, put: Put, path: str, *, opaque_depth: int = 0) -> None:
        """Writes the bytes by `put(bytes-like)`, without the version byte."""
        self.steps, self.opaque_depth, self._entered = [path], opaque_depth, 0
        try:
            self.walk(value, put)
        except RecursionError:
            raise self.refuse("it is nested too deeply") from None

    def walk(self, value: Any, put: Put) -> None:
        kind = type(value)
        (_writers.get(kind) or _find_writer(kind))(self, value, put)

    def step(self, value: Any, step: str | int, put: Put) -> None:
        self.steps.append(step)
        self.walk(value, put)
        self.steps.pop()

    def part(self, value: Any, step: str | int) -> bytes:
        chunks: list[Any] = []
        self.step(value, step, chunks.append)
        return self.joined(chunks)

    def joined(self, chunks: list[Any]) -> bytes:
        return b"".join(chunks)

    def put_attributes(self, owner: Any, pairs: Parts, put: Put) -> None:
        put(length(len(pairs)))
        for name, value in pairs:
            put(text_bytes(name))
            self.step(value, name, put)

    def put_known(self, value: Any, put: Put) -> bool:
        """Writes an object that is met inside itself by how deep it stands above; whether it did so."""
        if id(value) not in self.active:
            return False
        put(b"Y" + length(list(self.active).index(id(value))))
        return True

    def enter(self, value: Any) -> None:
        if id(value) in self.active:
            raise self.refuse(f"this {type(value).__name__} contains itself")
        self.count_entered()
        self.active[id(value)] = None

    def count_entered(self) -> None:
        # In a set, objects that refer to one another are written in full along every path through them.
        self._entered += len(self.active) ** 2 + 1 if self.inline_depth else 1
        if self._entered > MOST_ENTERED:
            raise self.refuse(f"it holds too many objects, or the same ones too often; {self.ways_out}")

    def leave(self, value: Any) -> None:
        self.active.pop(id(value), None)

    @property
    def where(self) -> str:
        """The place of the present value, as `config.sizes[3]`."""
        steps = [one for one in self.steps[1:MOST_STEPS] if one != CONTENT]
        shown = (f".{one}" if str(one).isidentifier() else f"[{one!r}]" for one in steps)
        return str(self.steps[0]) + "".join(shown)

    def refuse(self, why: str) -> UnkeyableError:
        place = self.where
        return UnkeyableError(f"{place}: {why}", path=place)

    def note_text(self, text: str) -> None:
        """Notes a text or path that was met."""

    def put_unstable(self, value: Any, error: UnkeyableError, put: Put) -> bool:
        """Writes an object that has no stable bytes; False refuses it."""
        return False

    def path_bytes(self, value: Any) -> bytes | None:
        """What a str or path names on the disk; None where it names nothing."""
        return None

    def code_bytes(self, value: Any) -> bytes | None:
        """What a function, class or module counts by; None where it counts as any object does."""
        is_made = isinstance(value, FunctionType) and "<" in value.__qualname__
        if is_made or not isinstance(value, type | FunctionType):
            return None
        return f"{value.__module__}.{value.__qualname__}".encode()

    def is_library(self, cls: type) -> bool:
        return True

    def put_path(self, value: Any, put: Put) -> bool:
        payload = self.path_bytes(value)
        if payload is None:
            return False
        tag = b"P" if isinstance(value, markers.Tree) else b"S" if isinstance(value, str) else b"p"
        put(tag + length(len(payload)) + payload)
        return True

    def put_code(self, value: Any, put: Put) -> None:
        """Writes a function, class or module. The order of what it holds counts: nobody can put it right."""
        self.opaque_depth += 1
        payload = self.code_bytes(value)
        self.opaque_depth -= 1
        if payload is None:
            from prepcache.keys.encoding.objects import parts_of

            self.put_object(value, put, parts_of)
        else:
            put(b"C" + length(len(payload)) + payload)

    def put_class_of(self, value: Any, put: Put) -> None:
        cls = type(value)
        if (written := self._classes.get(cls)) is None:
            payload = self.code_bytes(cls) or b""
            written = self._classes[cls] = b"C" + length(len(payload)) + payload
        put(written)

    def put_object(self, value: Any, put: Put, make: Make, own: Any = None) -> None:
        """Writes an object by its class and its parts; by its type's `own` writer where `make` gives none."""
        if self.put_known(value, put):
            return
        try:
            parts = make(value, self.is_library)
        except RecursionError:
            raise
        except Exception as error:
            why = error.message if isinstance(error, UnkeyableError) else f"{type(error).__name__}: {error}"
            refused = self.refuse(f"{kind_of(value)} has no stable bytes ({why}); {self.ways_out}")
            if not self.put_unstable(value, refused, put):
                raise refused from error
            return
        if parts is None:
            own(self, value, put)
            return
        is_member = issubclass(type(value), enum.Enum)
        self.inline_depth += is_member
        self.enter(value)
        put(b"O")
        self.put_class_of(value, put)
        can_rebuild = len(parts) == 1 and is_namedtuple(type(value))
        self.opaque_depth += not can_rebuild
        self.put_attributes(value, parts, put)
        self.opaque_depth -= not can_rebuild
        self.leave(value)
        self.inline_depth -= is_member


def kind_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def text_bytes(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"s" + length(len(raw)) + raw


def canonical_order(value: Any) -> Any:
    """A value as the function receives it: markers taken off, plain dicts in canonical order."""
    from prepcache.keys.encoding.builtins import has_free_order, simple_key

    if type(value) in (markers.Plain, markers.Tree):
        return canonical_order(value.value)
    value = markers.rebuild(value, canonical_order)
    if type(value) is dict and has_free_order(value):
        keys = sorted(value, key=simple_key)
        if keys != list(value):
            return {key: value[key] for key in keys}
    return value


def _find_writer(kind: type) -> Writer:
    from prepcache.keys.encoding import builtins, objects

    own = builtins.WRITERS.get(kind) or (Encoder.put_code if issubclass(kind, type) else None)
    key, base = _key_of(kind)
    if own is not None and key is None:
        return _writers.setdefault(kind, own)
    make: Make = builtins.parts_of if issubclass(kind, builtins.BASES) else objects.parts_of

    # To what an adapter says of a base, attributes are added.
    added = kind.__mro__[: kind.__mro__.index(base)] if base is not None else ()
    has_state = base is not None and bool(kind.__dictoffset__ or [*builtins.slots_of(*added)])

    def made_by_key(value: Any, is_library: Callable[[type], bool]) -> Parts | None:
        is_theirs = base is None or is_library(base)  # the project may have a class of a library's name
        if base is not None and is_theirs and isinstance(key, str):
            raise UnkeyableError(key)
        made = key(value) if is_theirs else NotImplemented
        if made is NotImplemented or made is value:
            return None if own else make(value, is_library)
        if type(made) is dict and all(type(name) is str for name in made):
            return sorted(made.items())
        state = builtins.attributes_of(value) if has_state else {}
        return [(CONTENT, made), *sorted(state.items())]

    by = make if key is None else made_by_key
    return _writers.setdefault(kind, lambda encoder, value, put: encoder.put_object(value, put, by, own))
