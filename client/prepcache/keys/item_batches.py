"""Items as bytes, one at a time or in batches.

A batch goes in three steps: stat every path and write every item, leaving room for the digests of files;
look all stamps up in the stat cache at once, and read the files that it does not know; fill in and hash.
Runs of items of one shape (paths, values, tuples or dicts of those) are written column by column, at a third
of the cost.

An item that holds an instance or a function says only its name. What that name stands for counts in the
recipe: each is noted in `classes`, and `recipes.with_classes` counts those of the project by definition.

Invariants:
    1. Column by column, one by one and at once the same bytes are written (a test compares them).
    2. The stamp and the digest of a slot come from one reading.
    3. No state of an object is left out silently: what it does not give away is refused.
"""

from __future__ import annotations

import os
import pathlib
import stat
import sys
import types
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from operator import add, attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from blake3 import blake3

from prepcache.digests import DIGEST_BYTES
from prepcache.keys.encoding.builtins import float_bytes, int_bytes, simple_key
from prepcache.keys.encoding.encoder import (
    ENCODING_VERSION,
    Encoder,
    Put,
    is_registered,
    length,
    text_bytes,
)
from prepcache.keys.files.digest import Digested, Trust, digest_file, digest_tree, read_files, tree_stamp
from prepcache.keys.files.stamps import mix_columns, stamp_of
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.markers import Tree
from prepcache.keys.observation import context
from prepcache.keys.paths import PathRules, looks_like_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prepcache.keys.code.project import Places

ITEM_DOMAIN = b"prepcache item v1\0"
"""Prefix of what an item digest is taken over. Its number rises when the inputs change."""

_PREFIX = ITEM_DOMAIN + bytes([ENCODING_VERSION])
_RUN_ITEMS = 1024
"""Items tried together column by column."""
_NO_STAMP = (0, 0, 0, 0, 0)
_NOT_THERE = (FileNotFoundError, NotADirectoryError)
_MODE = attrgetter("st_mode")


class ItemEncoder(Encoder):
    """Encodes items. `names` and `rows` (five numbers of a stamp) hold a slot for each path that it meets.

    Args:
        rules: what paths stand for.
        stat_cache, trust: for digests of files.
        digests: when a file's digest is written: "now"; "later", a batch looks it up by the number of its
            slot, which is written instead; "never", zeros stand for it and no file is read.
    """

    ways_out = (
        "pass plain values as the item (a path, a number, a dict), give its class a "
        "`__prepcache_key__()` method, or call `register_key(type, function)`"
    )

    def __init__(
        self,
        rules: PathRules,
        stat_cache: StatCache | None = None,
        trust: Trust = "stat",
        *,
        digests: Literal["now", "later", "never"] = "now",
    ) -> None:
        super().__init__()
        self.rules, self.stat_cache, self.trust = rules, stat_cache, trust
        self.digests = digests
        self.names: list[str | bytes] = []
        self.rows = array("q")
        self.known: dict[int, Digested] = {}
        """What was digested at once, by slot."""
        self.missing: list[str | bytes] = []
        """Paths that named nothing."""
        self.classes: dict[type | FunctionType, None] = {}
        """Of instances that were met, and functions that they hold."""
        self.text_files: list[str] = []
        """Str that name files."""

    def put_path(self, value: Any, put: Put) -> bool:
        named = self.rules.look_up(value, self)
        if named is None:
            return False
        tag = b"P" if isinstance(value, Tree) else b"S" if isinstance(value, str) else b"p"
        slot, stamp = len(self.names), _NO_STAMP
        self.names.append(named.name)
        if named.info is None:
            put(tag + length(len(named.head)) + named.head)
            self.known[slot] = Digested(b"", _NO_STAMP, False)
            self.missing.append(named.name)
        else:
            put(tag + length(len(named.head) + DIGEST_BYTES) + named.head)
            if self.digests == "never":
                stamp = tree_stamp(named.name) if named.is_tree else stamp_of(named.info)
                put(bytes(DIGEST_BYTES))
            elif self.digests == "later" and not named.is_tree:
                stamp = stamp_of(named.info)
                put(slot)
            else:
                if named.is_tree:
                    digested = digest_tree(named.name, self.stat_cache, self.trust)
                else:
                    digested = digest_file(named.name, self.stat_cache, self.trust, named.info)
                self.known[slot], stamp = digested, digested.stamp
                put(digested.digest)
        self.rows.extend(stamp)
        if tag == b"S":
            self.text_files.append(str(value))
        return True

    def part(self, value: Any, step: str | int) -> bytes:
        """What has to be sorted can't wait for its digests."""
        before, self.digests = self.digests, "now" if self.digests == "later" else self.digests
        raw = super().part(value, step)
        self.digests = before
        return raw

    def put_class_of(self, value: Any, put: Put) -> None:
        self.classes[type(value)] = None
        super().put_class_of(value, put)

    def put_code(self, value: Any, put: Put) -> None:
        """Write a function or class by its name; a method or partial as any object, by what it is made of."""
        if getattr(value, "__module__", None) == "builtins" or isinstance(value, types.ModuleType):
            super().put_code(value, put)
        elif isinstance(value, type | FunctionType):
            self.classes[value] = None
            kind = "class" if isinstance(value, type) else "function"
            payload = f"{kind}:{value.__module__}.{value.__qualname__}".encode()
            put(b"C" + length(len(payload)) + payload)
        else:
            self.put_object(value, put)

    def is_library(self, cls: type) -> bool:
        return is_library(cls)


def is_library(cls: type) -> bool:
    """Whether a class is a library's, and counts by name."""
    from prepcache.keys.code import labels
    from prepcache.keys.code.project import Place

    return labels.place_of_class(cls, _places(tuple(sys.path))) is not Place.PROJECT


@lru_cache(maxsize=1)
def _places(path: tuple[str, ...]) -> Places:
    from prepcache.keys.code.project import Places
    from prepcache.keys.environment import Environment

    return Places(Environment(path).installed)


def digest_of(item: Any, encoder: ItemEncoder) -> bytes:
    """The digest of one item, by a new encoder that writes digests now."""
    pieces: list[Any] = [_PREFIX]
    encoder.write(item, pieces.append, "items[0]")
    return blake3(b"".join(pieces)).digest()


class Digests(NamedTuple):
    """What was learned of a batch.

    Args:
        of_items: uint8[n, 32].
        hashes: of the stamps of all slots; 0 where a later write could leave the stamp as it is.
        ends: for each item, the number of slots up to its end.
        missing: paths that named nothing.
    """

    of_items: NDArray[np.uint8]
    hashes: NDArray[np.uint64]
    ends: NDArray[np.int64]
    missing: list[str | bytes]


class Batch:
    """Some items and what is known of them so far.

    Args:
        encoder: a new one that writes digests later; its slots are those of this batch.
        first, step: the number of the first item, and from each to the next, for messages.
    """

    def __init__(self, encoder: ItemEncoder, first: int = 0, step: int = 1) -> None:
        self.encoder = encoder
        self.first, self.step = first, step
        self.ends: list[int] = []
        """For each item, the number of slots up to its end."""
        self._written: list[Sequence[Any]] = []
        """For each item, its pieces, and numbers of slots in place of the digests of files."""

    def collect(self, items: Sequence[Any]) -> None:
        """Stat every path and write every item."""
        for start in range(0, len(items), _RUN_ITEMS):
            run = items[start : start + _RUN_ITEMS]
            written = columns(run, self.encoder.rules)
            if written is not None:
                self._collect_columns(written, len(run))
                continue
            for item in run:
                pieces: list[Any] = [_PREFIX]
                number = self.first + len(self.ends) * self.step
                self.encoder.write(item, pieces.append, f"items[{number}]")
                self._written.append(pieces)
                self.ends.append(len(self.encoder.names))

    def _collect_columns(self, written: Sequence[Column | bytes], count: int) -> None:
        encoder = self.encoder
        base = len(encoder.names)
        files = [column for column in written if isinstance(column, Column) and column.names is not None]
        width, slot = len(files), base
        pieces: list[Sequence[Any]] = [[_PREFIX] * count]
        for column in written:
            if isinstance(column, bytes):
                pieces[-1] = [before + column for before in pieces[-1]]
                continue
            pieces[-1] = list(map(add, pieces[-1], column.bodies))
            if column.names is not None:
                pieces += [range(slot, base + width * count, width), [b""] * count]
                slot += 1
        self._written.extend(zip(*pieces, strict=True))
        self.ends.extend([base + width * (i + 1) for i in range(count)])
        pairs = (zip(some.names or (), some.rows, strict=True) for some in files)
        for name, stamp in chain.from_iterable(zip(*pairs, strict=True)):
            encoder.names.append(name)
            encoder.rows.extend(stamp)
        for some in files:
            encoder.text_files.extend((some.names or ()) if some.are_text else ())

    def read(self) -> Digests:
        """Learn the digests of all files, and with them those of the items."""
        import numpy as np

        encoder = self.encoder
        stamps = np.array(encoder.rows, np.int64).reshape(-1, 5)
        context.depend_on(encoder.names)
        is_racy = np.zeros(len(stamps), np.bool_)
        if encoder.stat_cache is not None and encoder.trust == "stat":
            is_known, digests = encoder.stat_cache.lookup(stamps)
        else:
            is_known = np.zeros(len(stamps), np.bool_)
            digests = np.zeros((len(stamps), DIGEST_BYTES), np.uint8)
        for slot, digested in encoder.known.items():
            is_known[slot], is_racy[slot] = True, digested.is_racy
        to_read = np.flatnonzero(~is_known).tolist()
        names = list(dict.fromkeys(encoder.names[slot] for slot in to_read))
        read = dict(zip(names, read_files(names, encoder.stat_cache), strict=True))
        for slot in to_read:
            digested = read[encoder.names[slot]]
            digests[slot] = np.frombuffer(digested.digest, np.uint8)
            stamps[slot], is_racy[slot] = digested.stamp, digested.is_racy
        hashes = mix_columns(list(stamps.T))
        hashes[is_racy | (encoder.trust == "content")] = 0
        found = np.frombuffer(b"".join(self._digests(digests.tobytes())), np.uint8).reshape(-1, DIGEST_BYTES)
        return Digests(found, hashes, np.array(self.ends, np.int64), encoder.missing)

    def _digests(self, files: bytes) -> list[bytes]:
        """The digests of the items, given those of all slots, 32 bytes each."""
        rows = [files[at : at + DIGEST_BYTES] for at in range(0, len(files), DIGEST_BYTES)]
        whole = (
            b"".join([rows[piece] if type(piece) is int else piece for piece in one]) for one in self._written
        )
        return [blake3(raw).digest() for raw in whole]


class Column(NamedTuple):
    """The bytes of one element of every item; of files without the digest that comes last.

    Args:
        names: of files that all are regular ones, with the stamp of each.
        are_text: they are str.
    """

    bodies: list[bytes]
    names: Sequence[str] | None = None
    rows: Sequence[Sequence[int]] = ()
    are_text: bool = False


def columns(run: Sequence[Any], rules: PathRules) -> list[Column | bytes] | None:
    """What a run of items is written as, in order: bytes that all have in common, and columns.

    None where the items are not of one shape, or hold anything that asks for more care.
    """
    written: list[Column | bytes] = []
    for part in _parts(run):
        column = part if type(part) is bytes else _column(part, rules)
        if column is None:
            return None
        written.append(column)
    return written


def _parts(run: Sequence[Any]) -> list[Any]:
    """What the items of a run have in common, as bytes, and where they differ, as columns."""
    kind = type(run[0])
    if kind is tuple and not is_registered(tuple):
        width = len(run[0])
        if width and all(type(item) is tuple and len(item) == width for item in run):
            return [b"t" + length(width), *zip(*run, strict=True)]
    elif kind is dict and not is_registered(dict):
        keys = tuple(run[0])
        are_labels = all(type(key) is str and key.isidentifier() for key in keys) and not is_registered(str)
        if are_labels and all(type(item) is dict and tuple(item) == keys for item in run):
            parts: list[Any] = [b"d" + length(len(keys))]
            for key in sorted(keys, key=simple_key):
                parts += [text_bytes(key), [item[key] for item in run]]
            return parts
    return [run]


def _column(values: Sequence[Any], rules: PathRules) -> Column | None:
    kinds = set(map(type, values))
    if any(map(is_registered, kinds)):
        return None
    if kinds <= _SIMPLE.keys():
        return Column([_SIMPLE[type(value)](value) for value in values])
    if rules.read != "path":
        return None
    if kinds == {pathlib.PosixPath}:
        return _files(list(map(os.fspath, values)), b"p", rules)
    if kinds != {str}:
        return None
    looking = list(filter(looks_like_path, values))
    first = next(filter(_may_name_a_file, looking), None)
    if first is None:
        return Column(list(map(text_bytes, values)))
    return _files(values, b"S", rules) if len(looking) == len(values) and first is values[0] else None


def _may_name_a_file(text: str) -> bool:
    try:
        os.stat(text)
    except (OSError, ValueError) as error:
        return type(error) not in _NOT_THERE
    return True


def _files(names: Sequence[str], tag: bytes, rules: PathRules) -> Column | None:
    try:
        infos = list(map(os.stat, names))
    except (OSError, ValueError):
        return None
    if not all(map(stat.S_ISREG, set(map(_MODE, infos)))):
        return None
    rows = list(map(stamp_of, infos))
    bodies = [tag + length(1 + len(name) + DIGEST_BYTES) + b"f" + name for name in map(rules.named, names)]
    return Column(bodies, names, rows, tag == b"S")


_SIMPLE: dict[type, Callable[[Any], bytes]] = {
    int: int_bytes,
    float: float_bytes,
    bool: lambda value: b"T" if value else b"F",
    type(None): lambda value: b"n",
    bytes: lambda value: b"b" + length(len(value)) + value,
}
