"""Items as bytes, and the digests of many at once.

All items are written, with room for the digests of files; these are looked up in the stat cache, or read;
then the whole is hashed. Items of one shape (files, texts, numbers, tuples or dicts of those) are written
column by column, at two thirds of the cost.

Of the class of an instance an item says only the name. What that stands for counts in the recipe: each is
noted in `classes`, and `recipes.with_classes` counts those of the project by definition.

Invariants:
    1. Column by column, one by one and at once the same bytes are written (a test compares them).
    2. The stamp and the digest of a slot come from one reading.
    3. No state of an object is left out silently: what it does not give away is refused.
"""

from __future__ import annotations

import os
import pathlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from types import FunctionType
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from prepcache.digests import DIGEST_BYTES
from prepcache.keys.encoding.builtins import SIMPLE, simple_key
from prepcache.keys.encoding.encoder import ENCODING_VERSION, Encoder, Put, is_registered, length, text_bytes
from prepcache.keys.files.digest import (
    Digested,
    Trust,
    digest_file,
    digest_tree,
    is_regular,
    read_files,
    tree_stamp,
)
from prepcache.keys.files.stamps import Stamp, mix, mix_columns, stamp_of
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
_NO_STAMP = (0, 0, 0, 0, 0)


class ItemEncoder(Encoder):
    """Encodes items. Each path that it meets has a slot, whose number is written for the digest.

    Attributes:
        names, rows: of each slot the path, and the five numbers of a stamp; not of `trees`, the directories.
        known: what was digested, by slot.
    """

    ways_out = (
        "pass plain values as the item (a path, a number, a dict), give its class a "
        "`__prepcache_key__()` method, or call `register_key(type, function)`"
    )

    def __init__(self, rules: PathRules, stat_cache: StatCache | None = None, trust: Trust = "stat") -> None:
        super().__init__()
        self.rules, self.stat_cache, self.trust = rules, stat_cache, trust
        self.names: list[str | bytes] = []
        self.rows = array("q")
        self.trees: set[int] = set()
        self.known: dict[int, Digested] = {}
        self.classes: dict[type, None] = {}
        self.text_files: list[str] = []
        self._libraries: dict[type, bool] = {}

    def put_path(self, value: Any, put: Put) -> bool:
        named = self.rules.look_up(value, self)
        if named is None:
            return False
        slot, stamp = len(self.names), _NO_STAMP
        self.names.append(named.name)
        if named.info is None:
            self.known[slot] = Digested(b"", _NO_STAMP, False)
        elif named.is_tree:
            self.trees.add(slot)
        else:
            stamp = stamp_of(named.info)
        self.rows.extend(stamp)
        tag = b"P" if isinstance(value, Tree) else b"S" if isinstance(value, str) else b"p"
        put(tag + length(len(named.head) + DIGEST_BYTES * (named.info is not None)) + named.head)
        put(slot if named.info is not None else b"")
        if tag == b"S":
            self.text_files.append(str(value))
        return True

    def digest(self, slot: int) -> bytes:
        """The digest of what the path of a slot leads to."""
        if slot not in self.known:
            digest = digest_tree if slot in self.trees else digest_file
            self.known[slot] = digest(self.names[slot], self.stat_cache, self.trust)
        return self.known[slot].digest

    def joined(self, pieces: Iterable[Any]) -> bytes:
        return b"".join([self.digest(one) if type(one) is int else one for one in pieces])

    def part(self, value: Any, step: str | int) -> bytes:
        """What has to be sorted can't wait for its digests."""
        pieces: list[Any] = []
        self.step(value, step, pieces.append)
        return self.joined(pieces)

    def code_bytes(self, value: Any) -> bytes | None:
        """A class or a library's function by its name; a method or partial by what it is made of."""
        if not isinstance(value, type | FunctionType):
            return None
        name = f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, type):
            self.classes[value] = None
        elif "<" in name or value.__closure__ or vars(value) or not is_library(value):
            raise self.refuse(f"function {name}: its code would not count in an item; {self.ways_out}")
        return name.encode()

    def is_library(self, cls: type) -> bool:
        if cls not in self._libraries:
            self._libraries[cls] = is_library(cls)
        return self._libraries[cls]


def is_library(held: type | FunctionType) -> bool:
    """Whether a class or function is a library's, and counts by name."""
    from prepcache.keys.code import project
    from prepcache.keys.code.project import Place

    places = _places(tuple(sys.path))
    if isinstance(held, FunctionType):
        return project.Labels(places).is_library(held)
    return project.Labels(places).place_of_class(held) is not Place.PROJECT


@lru_cache(maxsize=1)
def _places(path: tuple[str, ...]) -> Places:
    from prepcache.keys.code.project import Places
    from prepcache.keys.environment import Environment

    return Places(Environment(path).installed)


def digest_of(item: Any, encoder: ItemEncoder) -> bytes:
    pieces: list[Any] = [_PREFIX]
    encoder.write(item, pieces.append, "items[0]")
    return blake3(encoder.joined(pieces)).digest()


def digests_of(
    items: Sequence[Any], encoder: ItemEncoder, positions: range, first: int = 0, step: int = 1
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """The digests of the items at some positions, uint8[n, 32], by a new encoder, and the hashes of their
    stamps, 0 where a later write could leave one as it is.

    An item is written before the next is asked for, unless it cannot change: a sequence may give each in the
    same memory. Messages count from `first` in steps of `step`.
    """
    import numpy as np

    written: list[Sequence[Any]] | None = None
    if type(items) in (list, tuple) or (positions and _is_fixed(items[positions[0]])):
        written = _by_columns([items[position] for position in positions], encoder)
    if written is not None:
        ends = len(encoder.names) // len(positions) * np.arange(1, len(positions) + 1)
    else:
        written, slots = [], []
        for position in positions:
            pieces: list[Any] = [_PREFIX]
            before = len(encoder.names)
            encoder.write(items[position], pieces.append, f"items[{first + position * step}]")
            slots.append(len(encoder.names))
            if slots[-1] > before:
                written.append([bytes(one) if type(one) is memoryview else one for one in pieces])
            else:
                written.append(blake3(b"".join(pieces)).digest())
        ends = np.array(slots, np.int64)
    digests, hashes = _read(encoder, ends)
    if encoder.names:
        rows = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
        for at, one in enumerate(written):
            if type(one) is not bytes:
                written[at] = [rows[part] if type(part) is int else part for part in one]
    found = b"".join([one if type(one) is bytes else blake3(b"".join(one)).digest() for one in written])
    return np.frombuffer(found, np.uint8).reshape(-1, DIGEST_BYTES), hashes


def stamps_hash(encoder: ItemEncoder) -> int:
    """The hash of all stamps of the one item that an encoder has written, as they are now."""
    rows: list[Sequence[int]] = [encoder.rows[at : at + 5] for at in range(0, len(encoder.rows), 5)]
    for slot in encoder.trees:
        rows[slot] = tree_stamp(encoder.names[slot])
    return sum((2 * at + 1) * mix(row) for at, row in enumerate(rows)) + 1 & (1 << 64) - 1


def _read(encoder: ItemEncoder, ends: NDArray[np.int64]) -> tuple[bytes, NDArray[np.uint64]]:
    """The digests of all slots, 32 bytes each, and for each item the hash of the stamps of its own. `ends`:
    the number of slots up to its end."""
    import numpy as np

    stamps = np.array(encoder.rows, np.int64).reshape(-1, 5)
    context.depend_on(encoder.names)
    is_racy, is_known = np.zeros(len(stamps), np.bool_), np.zeros(len(stamps), np.bool_)
    digests = np.zeros((len(stamps), DIGEST_BYTES), np.uint8)
    if encoder.stat_cache is not None and encoder.trust == "stat":
        is_known, digests = encoder.stat_cache.lookup(stamps)
    for slot in encoder.trees:
        encoder.digest(slot)
    is_known[list(encoder.known)] = True
    to_read = np.flatnonzero(~is_known).tolist()
    names = list(dict.fromkeys(encoder.names[slot] for slot in to_read))
    read = dict(zip(names, read_files(names, encoder.stat_cache), strict=True))
    encoder.known |= {slot: read[encoder.names[slot]] for slot in to_read}
    for slot, (digest, stamp, is_young) in encoder.known.items():
        digests[slot] = np.frombuffer(digest or bytes(DIGEST_BYTES), np.uint8)
        stamps[slot], is_racy[slot] = stamp, is_young
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
    places = np.arange(len(stamps)) - np.repeat(starts, ends - starts)
    weighed = mix_columns(list(stamps.T)) * (2 * places + 1).astype(np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighed)])
    young = np.concatenate([[0], np.cumsum(is_racy | (encoder.trust == "content"))])
    hashes = sums[ends] - sums[starts] + np.uint64(1)
    hashes[young[ends] > young[starts]] = 0
    return digests.tobytes(), hashes


def _columns_of(run: Sequence[Any]) -> tuple[bytes, list[tuple[bytes, Sequence[Any]]]]:
    """What all items of a run begin with, and columns of their elements, each with what stands before it."""
    first = run[0]
    if type(first) is tuple and not is_registered(tuple):
        if first and all(type(item) is tuple and len(item) == len(first) for item in run):
            return b"t" + length(len(first)), [(b"", column) for column in zip(*run, strict=True)]
    elif type(first) is dict and not (is_registered(dict) or is_registered(str)):
        keys = tuple(first)
        are_labels = all(type(key) is str and key.isidentifier() for key in keys)
        if are_labels and all(type(item) is dict and tuple(item) == keys for item in run):
            keys = tuple(sorted(keys, key=simple_key))
            return b"d" + length(len(keys)), [(text_bytes(key), [one[key] for one in run]) for key in keys]
    return b"", [(b"", run)]


def _by_columns(run: Sequence[Any], encoder: ItemEncoder) -> list[Sequence[Any]] | None:
    """The pieces of each item of a run; None unless all are of one shape, of values and of regular files."""
    rules = encoder.rules
    texts: list[str] = []
    names: list[list[str]] = []
    stamps: list[list[Stamp]] = []
    head, columns = _columns_of(run)
    pieces: list[Sequence[Any]] = [[_PREFIX + head] * len(run)]
    for label, column in columns:
        kinds = set(map(type, column))
        if any(map(is_registered, kinds)) or (rules.read != "path" and kinds & {str, pathlib.PosixPath}):
            return None
        if is_of_files := any(map(_may_be_path, column)):
            if len(kinds) > 1 or not all(map(_may_be_path, column)) or (found := _stamps_of(column)) is None:
                return None
            rules.has_looked = True
            stamps.append(found)
            names.append(list(map(os.fspath, column)))
            texts += names[-1] if str in kinds else ()
            tag, heads = b"S" if str in kinds else b"p", map(rules.named, names[-1])
            written = [tag + length(1 + len(one) + DIGEST_BYTES) + b"f" + one for one in heads]
        elif kinds <= SIMPLE.keys():
            written = [SIMPLE[type(value)](value) for value in column]
        else:
            return None
        pieces[-1] = [before + label + value for before, value in zip(pieces[-1], written, strict=True)]
        if is_of_files:
            pieces += [(), [b""] * len(run)]
    slot, width = len(encoder.names), len(names)
    for at in range(width):
        pieces[2 * at + 1] = range(slot + at, slot + width * len(run), width)
    encoder.names += chain.from_iterable(zip(*names, strict=True))
    encoder.text_files += texts
    encoder.rows.extend(chain.from_iterable(chain.from_iterable(zip(*stamps, strict=True))))
    return list(zip(*pieces, strict=True))


def _is_fixed(item: Any) -> bool:
    """Whether nothing can change in an item: a path, a number, a text, or a tuple of those."""
    return all(type(one) in SIMPLE or _may_be_path(one) for one in (item if type(item) is tuple else (item,)))


def _may_be_path(value: Any) -> bool:
    return type(value) is pathlib.PosixPath or (type(value) is str and looks_like_path(value))


def _stamps_of(paths: Sequence[Any]) -> list[Stamp] | None:
    """The stamps of files; None unless all are regular ones."""
    try:
        infos = list(map(os.stat, paths))
    except (OSError, ValueError):
        return None
    return list(map(stamp_of, infos)) if all(map(is_regular, infos)) else None
