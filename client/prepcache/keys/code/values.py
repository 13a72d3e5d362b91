"""The encoder of what code reaches and of the config, and what a recipe says of each value.

Functions and classes of the project are written as labels, and the walk visits them. So is an object: as its
class and a label, the place where it was met first. Its attributes are rows (`preprocess.reader.size`).
Beyond a number of rows, an object is written in full where it is met first.

Invariants:
    1. Equal bytes, with equal rows of what they refer to, mean values made of the same code and state.
    2. Nothing in a set is referred to: there is no order in which its elements would get their labels.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.code import project
from prepcache.keys.code.fingerprint import fingerprint
from prepcache.keys.code.names import SCALARS, attributes_read
from prepcache.keys.encoding.encoder import Encoder, Parts, Put, is_registered, length, text_bytes
from prepcache.keys.encoding.objects import is_lock, parts_of, state_of
from prepcache.keys.environment import check_rebuilt
from prepcache.keys.markers import Tree
from prepcache.keys.paths import looks_like_path, name_bytes

if TYPE_CHECKING:
    from prepcache.keys.code.dependencies import Dependencies

SECRET = "secret"  # all that parts say of one, as protocol/explain.py knows
_WORDS = re.compile(
    r"(?:^|_)(?:token|(?:secret|password|passwd|pwd|passphrase|api_key|apikey|access_key|private_key"
    r"|credential|auth|authorization|bearer|cookie|dsn)s?)\d*(?:$|_)"
)
"""In the name of a secret (`hf_token`, `AWS_SECRET_ACCESS_KEY`, `api_key2`); "tokens" are those of texts."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_SECRET = re.compile(r"(?:^|_)(?:max|min|num|n|pad|unk|bos|eos|cls|sep|mask|special)_")
_LOOKED_INTO, _READ_CHARS = 64, 1024
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_NAMED = re.compile(r"(?:^|[?&])-*([\w.-]+)=|^-+([\w.-]+)$")
"""Parameters of a URL, and options of a command line: `--hf-token`, `--hf-token=x`, `hub.token=x`."""
_BY_NAME = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)  # what has a name, and is code
TEXT_LIMIT = 120
LEAF_LIMIT, DEPTH_LIMIT = 64, 32
"""Of a list or dict in a config whose elements are shown one by one; a longer or deeper one is one leaf."""
_LABEL_WORDS = re.compile(r"[\w-]+")
_SHOWN_ELEMENTS = 8
_OF_DISPATCH = ("register", "dispatch", "_clear_cache")


class Value(NamedTuple):
    """A value that counts; `holder`: the class of the object that holds it, if one does."""

    digest: str
    text: str
    is_secret: bool = False
    kind: type = object
    holder: type | None = None

    @classmethod
    def of_text(cls, text: str) -> Value:
        return cls(blake3(text.encode("utf-8", "surrogatepass")).hexdigest(), readable(text, text))


ABSENT = Value(blake3(b"absent").hexdigest(), "(undefined)")


class ValueEncoder(Encoder):
    """Encodes one run-time value; `is_whole`: it holds objects that have no rows."""

    def __init__(self, walk: Dependencies, *, is_config: bool) -> None:
        super().__init__()
        self.is_config = is_config
        self.is_whole = False
        self._walk = walk

    def is_library(self, cls: type) -> bool:
        return not self._walk.labels.is_project(cls)

    def note_text(self, text: str) -> None:
        self._walk.asked.held.add(text)

    def path_bytes(self, value: Any) -> bytes | None:
        """Outside the config a path counts by the file's bytes and, in the checkout, by its place there."""
        if self.is_config or isinstance(value, Tree):
            return self._walk.on_path(value, self)
        text, is_text = os.fsdecode(value), isinstance(value, str)
        if is_text and not looks_like_path(text):
            return None
        root, digest = self._walk.root, b""
        is_inside = root is not None and f"{text}{os.sep}".startswith(f"{root}{os.sep}")
        name = os.path.relpath(text, root) if is_inside else text
        if os.path.isfile(text):
            with contextlib.suppress(UnkeyableError):  # unreadable, or growing: observation sees its use
                digest = self._walk.file_digest(text)
            check_rebuilt(text)
        if is_text and not is_inside and not digest:
            return None
        return b"%d:%d:" % (is_inside, len(digest)) + digest + name_bytes(name)

    def code_bytes(self, value: Any) -> bytes | None:
        if isinstance(value, FunctionType):
            label = self._walk.refer_function(value, self)
            return self._library_function(value) if label is None else f"function:{label}".encode()
        if isinstance(value, type):
            return f"class:{self._walk.refer_class(value, self)}".encode()
        if isinstance(value, ModuleType):
            self._walk.refer_module(value)
            return f"module:{value.__name__}".encode()
        if not isinstance(value, MethodType | BuiltinFunctionType):
            return None
        owner = value.__self__
        module = value.__module__ or type(owner).__module__
        project.note_module(owner)
        self._walk.refer_library(module)
        is_theirs = self.is_library(owner if isinstance(owner, type) else type(owner))
        is_in_c = isinstance(value, BuiltinFunctionType)
        short = getattr(value, "__name__", "")  # any callable may be that of a method
        name = f"{module}.{value.__qualname__ if is_in_c else short}"
        spaces = [project.space_of(project.module_named(one)) for one in (module, type(owner).__module__)]
        if spaces[0].get(short) is value:
            # An object that the library does not hold itself is one that a job put there.
            is_held = any(one is owner for space in spaces for one in space.values())
            if (is_in_c and value.__module__ is not None) or (is_held and is_theirs):
                return f"library:{name}".encode()
        if not is_in_c:
            return b"method:" + self._owner(value) + self.part(value.__func__, "__func__")
        if owner is None or isinstance(owner, ModuleType) or (isinstance(owner, type) and is_theirs):
            return f"builtin:{name}".encode()  # a class of the project's may be called
        return f"builtin:{name}:".encode() + self.part(owner, "__self__")

    def _owner(self, method: MethodType) -> bytes:
        owner, cls = method.__self__, type(method.__self__)
        is_whole = isinstance(owner, type) or is_registered(cls) or self.is_library(cls) or self.inline_depth
        read = None if is_whole else attributes_read(owner, method.__func__)
        if read is None:
            return self.part(owner, "__self__")
        chunks: list[Any] = [b"reads"]
        self.put_class_of(owner, chunks.append)
        label = self._walk.refer_object(owner, read, self, f"{self.where}.__self__", is_whole=False)
        return b"".join(chunks) + text_bytes(label)

    def _library_function(self, function: FunctionType) -> bytes:
        """By name; what a decorator of a library wraps and holds, by what it is."""
        module, own = str(function.__globals__.get("__name__")), vars(function)
        self._walk.refer_library(module)
        name = f"library:{module}.{function.__code__.co_qualname}"
        if "_torchdynamo_orig_callable" in own:  # torch.compile, whose cells hold what it compiled so far
            parts = [("compiled", own["_torchdynamo_orig_callable"])]
        elif "_clear_cache" in own:  # singledispatch, whose cells hold what was dispatched so far
            parts = sorted((n, part) for n, part in own.items() if n not in _OF_DISPATCH)
        elif "<" in name:
            name += f":{fingerprint(function.__code__)}"
            parts = state_of(function)
        else:
            parts = [pair for pair in own.items() if pair[0] == "__wrapped__"]
        if not parts:
            return name.encode()
        known = self._walk.whole_objects.get(id(function))  # whose rows are counted once
        return name.encode() + text_bytes(known or self._walk.refer_object(function, parts, self, self.where))

    def put_known(self, value: Any, put: Put) -> bool:
        label = None if self.inline_depth else self._walk.whole_objects.get(id(value))
        if label is None:
            return super().put_known(value, put)
        self.count_entered()
        self.is_whole |= label not in self._walk.objects
        put(b"Y" + text_bytes(label))
        return True

    def put_unstable(self, value: Any, error: UnkeyableError, put: Put) -> bool:
        """Calls may have put it there: it goes by its identity, beside what has bytes."""
        label = str(self.steps[0])
        if label not in self._walk.values:  # a leaf of the config
            return False
        put(b"?" + text_bytes(self._walk.stand_in(label, value, error)))
        return True

    def put_object(self, value: Any, put: Put, make: Any, own: Any = None) -> None:
        if value is os.environ or value is os.environb:
            put(b"OE")  # the variables that the code names count one by one
            return
        if make is parts_of and self.is_config and self.opaque_depth == 0 and is_lock(value):
            raise self.refuse(f"{_text(value)} has no stable value; {self.ways_out}")
        self._walk.note_generators(value, self)
        super().put_object(value, put, make, own)

    def put_attributes(self, owner: Any, pairs: Parts, put: Put) -> None:
        """Attributes become rows, if all parts are such and more rows fit."""
        is_here = self.inline_depth > 0 or any(name[:1] == "<" for name, _ in pairs)
        number = None if is_here else self._walk.number_object(owner, self)
        if is_here or number is not None:
            self.is_whole = True
            put(text_bytes(number or ""))
            kept = [pair for pair in pairs if not self._walk.is_untracked(f".{pair[0]}")]
            super().put_attributes(owner, kept, put)
        else:
            put(b"@" + text_bytes(self._walk.refer_object(owner, pairs, self, self.where)))


def readable(value: Any, label: str | None = None) -> str:
    text = label or _text(value)
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


def _text(value: Any) -> str:
    cls = type(value)
    with contextlib.suppress(ValueError):  # an int may be too long for decimals
        if cls in (dict, list, tuple, set, frozenset):
            elements = itertools.chain(value, value.values() if cls is dict else ())
            is_short = len(value) <= _SHOWN_ELEMENTS and cls not in (set, frozenset)
            is_shown = is_short and all(type(one) in SCALARS for one in elements)
            return repr(value) if is_shown else f"{cls.__name__} of {len(value)}"
        if cls in SCALARS:
            return repr(value[:TEXT_LIMIT] if isinstance(value, str | bytes) else value)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, _BY_NAME):
        return f"{value.__module__}.{getattr(value, '__qualname__', cls.__qualname__)}"  # Boost's have none
    if issubclass(cls, os.PathLike):  # its `__class__` may raise
        return os.fsdecode(value)
    return f"{cls.__module__}.{cls.__qualname__}"


def config_part(given: dict[str, Any], walk: Dependencies) -> tuple[dict[str, Value], str]:
    """The leaves of a config by their paths, as `augment.sizes[0]`, and the digest of it all."""
    leaves: dict[str, Value] = {}
    hasher, encoder = blake3(), ValueEncoder(walk, is_config=True)

    def add(value: Any, path: str, above: tuple[int, ...] = (), is_hidden: bool = False) -> None:
        hasher.update(text_bytes(path))
        kind = type(value)
        is_dict = kind is dict and all(type(key) is str for key in value)
        is_hidden |= not is_dict and holds_secret(value)
        is_split = len(above) < DEPTH_LIMIT and id(value) not in above  # encoding refuses a circle
        if not (is_split and (is_dict or kind in (list, tuple)) and 0 < len(value) <= LEAF_LIMIT):
            raw = encoder.encode(value, f"config.{path}")
            hasher.update(length(len(raw)) + raw)
            digest = blake3(raw).hexdigest()
            is_file = isinstance(value, str | os.PathLike) and os.path.isfile(value)
            contents = f"contents {digest[:8]} of " if is_file else ""
            leaves[path] = Value(digest, contents + readable(value), is_hidden or holds_secret(value))
            return
        hasher.update(f"{kind.__name__} {len(value)}:".encode())
        for key in sorted(value) if is_dict else range(len(value)):
            if is_dict:
                hasher.update(encoder.encode(key, f"config.{path}"))
            add(value[key], f"{path}.{key}" if is_dict else f"{path}[{key}]", (*above, id(value)), is_hidden)

    for key in sorted(given):
        add(given[key], key)
    return leaves, hasher.hexdigest()


def shown(label: str, value: Value) -> dict[str, str]:
    if value.is_secret or any(is_secret(word) for word in _LABEL_WORDS.findall(label)):
        return {"digest": SECRET, "text": SECRET}
    return {"digest": value.digest, "text": value.text}


@functools.lru_cache(maxsize=16384)
def is_secret(name: str) -> bool:
    """Whether a config name looks like that of a secret; `max_token_length` and `pad_token` do not."""
    words = _CAMEL.sub("_", name).replace("-", "_").lower()
    return _WORDS.search(words) is not None and _NOT_SECRET.search(words) is None


def holds_secret(value: Any, depth: int = 4) -> bool:
    """Whether something in a value has a secret's name, or is a URL with a password."""
    if isinstance(value, str | bytes):
        text = os.fsdecode(value[:_READ_CHARS])
        names = [name.replace(".", "_") for both in _NAMED.findall(text) for name in both]
        return _PASSWORD_IN_URL.search(text) is not None or any(map(is_secret, names))
    if depth == 0 or isinstance(value, _BY_NAME):
        return False
    if type(value) in (list, tuple):
        is_pair = len(value) == 2 and isinstance(value[0], str) and is_secret(value[0])
        return is_pair or any(holds_secret(one, depth - 1) for one in value[:_LOOKED_INTO])
    named = value if isinstance(value, dict) else project.space_of(value)
    if isinstance(value, functools.partial):
        named = {**value.keywords, "": [*value.args]}
    return any(
        (isinstance(name, str) and is_secret(name)) or holds_secret(part, depth - 1)
        for name, part in itertools.islice(named.items(), _LOOKED_INTO)
    )
