"""Items: their digests, what tells later that they changed, and what the function receives for them.

Items are written with room for the digests of files; these are looked up in the stat cache, or read; then the
whole is hashed. Items of one shape (files, texts, numbers, tuples or dicts of those) are written column by
column, at two thirds of the cost. Of an instance's class an item says only the name: `recipes.with_classes`
counts what that stands for.

Invariants:
    1. An item's digest depends on the item alone (and `root=`, `read=`): not on other items, their order,
       the working directory or the time. `tests/golden` pins it.
    2. Column by column and one by one the same bytes are written (a test compares them).
    3. The stamp and the digest of a file come from one reading.
    4. `Stamps.changed(i)` is empty only if the files of item i are those whose bytes its digest counts. Where
       the stamps alone cannot tell (they were young, or nobody trusts them) the bytes are read again.
"""

from __future__ import annotations

import logging
import os
import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from stat import S_ISREG
from types import FunctionType
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from prepcache.digests import DIGEST_BYTES
from prepcache.errors import UnkeyableError
from prepcache.keys.code.project import Labels, Places
from prepcache.keys.encoding import encoder as encoding
from prepcache.keys.encoding.builtins import SIMPLE, simple_key
from prepcache.keys.encoding.encoder import Encoder, Put, canonical_order, is_registered, length, text_bytes
from prepcache.keys.environment import Environment
from prepcache.keys.files.digest import Digested, Trust, digest_file, digest_tree, read_files
from prepcache.keys.files.stat_cache import Stamp, StatCache, mix, stamp_of, user_stat_cache
from prepcache.keys.markers import Tree, rebuild
from prepcache.keys.observation import watches
from prepcache.keys.paths import PathRules, Read, check_reading, looks_like_path

ITEM_DOMAIN = b"prepcache item v1\0"  # its number rises when what an item digest is taken over changes
BLOCK_ITEMS = 2048  # worked on together

log = logging.getLogger("prepcache")
_PREFIX = ITEM_DOMAIN + bytes([encoding.ENCODING_VERSION])
_TEXT_FILES = (
    "prepcache: %d str in the items name files, such as %r, so the bytes of these files count. Pass "
    "prepcache.plain(text) if it is only text, or a pathlib.Path to confirm it (these items are then "
    "preprocessed again)."
)


def item_digest(item: Any, *, root: str | os.PathLike[str] | None = None, read: Read = "path") -> str:
    """The digest of one item, 64 hex digits. Every file in it is read; no daemon is needed.

    Args:
        item: a path, a value, or a tuple, list or dict of those.
        root: paths under it count by their name relative to it.
        read: "bytes" or "text": the function receives a file's contents, and its name does not count.

    Raises:
        UnkeyableError: something in the item has no stable bytes.
    """
    return ItemHasher(root, read).read_again(item).hex()


def names_in(item: Any) -> list[str]:
    """The paths that count in an item, whatever holds them: none where it has no key. Reads no file."""
    try:
        return ItemHasher().probe(item)[0]
    except UnkeyableError:
        return []


def load(item: Any, read: Read = "path") -> Any:
    """What the function receives for an item: markers taken off, dicts in canonical order, files read."""

    def filled(inner: Any) -> Any:
        if not isinstance(inner, os.PathLike):
            return rebuild(inner, filled)
        file = pathlib.Path(os.fspath(inner))  # the one whose bytes count
        return file.read_bytes() if read == "bytes" else file.read_text(encoding="utf-8")

    if read == "path":
        return canonical_order(item)
    return canonical_order(filled(pathlib.Path(item) if isinstance(item, str) else item))


@dataclass(eq=False)
class ItemHasher:
    """Digests items in bulk. Without a stat cache it reads every file."""

    root: str | os.PathLike[str] | None = None
    read: Read = "path"
    trust: Trust = "stat"
    stat_cache: StatCache | None = None

    def __post_init__(self) -> None:
        check_reading(self.read, self.trust)
        self.rules = PathRules(self.root, self.read)
        self.classes: dict[type, None] = {}  # of the project's instances in all items so far

    def digest_many(self, items: Sequence[Any], first: int = 0, step: int = 1) -> Stamps:
        """Messages count from `first` in steps of `step`."""
        if self.stat_cache is not None:
            self.stat_cache.refresh()
        found = [(np.empty((0, DIGEST_BYTES), np.uint8), np.empty(0, np.uint64))]
        missing: list[str] = []
        text_files: list[str] = []
        for start in range(0, len(items), BLOCK_ITEMS):
            block = range(start, min(start + BLOCK_ITEMS, len(items)))
            encoder = ItemEncoder(self.rules, self.stat_cache, self.trust)
            found.append(digests_of(items, encoder, block, first, step))
            missing += [encoder.names[slot] for slot, one in encoder.known.items() if not one.digest]
            text_files += encoder.text_files
            self.classes.update(dict.fromkeys(one for one in encoder.classes if not encoder.is_library(one)))
        if self.stat_cache is not None:
            self.stat_cache.flush()
        note = _TEXT_FILES % (len(text_files), text_files[0]) if text_files else ""
        digests, hashes = map(np.concatenate, zip(*found, strict=True))
        return Stamps(digests, hashes, missing, note, items, self)

    def probe(self, item: Any) -> tuple[list[str], int]:
        """Its names, and the hash of their stamps as they are now."""
        encoder = ItemEncoder(self.rules, self.stat_cache)
        encoder.write(item, lambda raw: None, "item")
        summed = sum((2 * at + 1) * int(mix(stamp)) for at, stamp in enumerate(encoder.stamps))
        return encoder.names, summed + 1 & (1 << 64) - 1

    def digests_now(self, items: Sequence[Any]) -> list[bytes]:
        """The digests of some items as they are now; reads only files that the stat cache does not know."""
        self.stat_cache = self.stat_cache or user_stat_cache()  # it was left behind when this was pickled
        if len(items) == 1:
            return [self.read_again(items[0], self.stat_cache)]
        encoder = ItemEncoder(self.rules, self.stat_cache)
        return [row.tobytes() for row in digests_of(items, encoder, range(len(items)))[0]]

    def read_again(self, item: Any, stat_cache: StatCache | None = None) -> bytes:
        """The digest of one item, without arrays: a lazy data set asks for one at a time."""
        encoder = ItemEncoder(self.rules, stat_cache)
        pieces: list[Any] = [_PREFIX]
        encoder.write(item, pieces.append, "items[0]")
        return blake3(encoder.joined(pieces)).digest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stat_cache": None, "classes": {}}


@dataclass(frozen=True, eq=False)
class Stamps:
    """Items as they were digested, and what tells whether they changed since."""

    digests: NDArray[np.uint8]  # [n, 32]
    hashes: NDArray[np.uint64]  # [n], of the stamps of the files in each; 0 where they alone do not tell
    typed_names: list[str]  # paths that named nothing when the data set was opened
    note: str
    items: Sequence[Any]
    hasher: ItemHasher

    def warn(self) -> None:
        if self.note:
            log.warning(self.note)

    def changed(self, i: int) -> list[str]:
        """The names in item i, if one of its files is no longer what it was; else none."""
        if not self.hasher.rules.has_looked:
            return []  # no item can name a file
        try:
            before = int(self.hashes[i])
            if not before and self.hasher.read_again(self.items[i]) == self.digests[i].tobytes():
                return []
            names, now = self.hasher.probe(self.items[i])
            if before and now == before:
                return []
        except UnkeyableError as error:
            return [error.data.get("name") or f"item {i}"]
        return list(dict.fromkeys(names)) or [f"item {i}"]


class ItemEncoder(Encoder):
    """Encodes items. Each path that it meets has a slot, whose number is written for the digest."""

    ways_out = f"pass plain values as the item (a path, a number, a dict), {encoding.SAY_WHAT_COUNTS}"

    def __init__(self, rules: PathRules, stat_cache: StatCache | None = None, trust: Trust = "stat") -> None:
        super().__init__()
        self.rules, self.stat_cache, self.trust = rules, stat_cache, trust
        self.names: list[str] = []  # by slot
        self.stamps: list[Stamp] = []
        self.known: dict[int, Digested] = {}  # what is digested already: directories, and what is not there
        self.classes: dict[type, None] = {}
        self.text_files: list[str] = []

    def put_path(self, value: Any, put: Put) -> bool:
        named = self.rules.look_up(value, self)
        if named is None:
            return False
        slot = len(self.names)
        self.names.append(named.name)
        stamp = (0, 0, 0, 0, 0) if named.info is None else stamp_of(named.info)
        if named.info is None:
            self.known[slot] = Digested(b"", stamp, False)
        elif named.is_tree:
            self.known[slot] = digest_tree(named.name, self.stat_cache, self.trust)
            stamp = self.known[slot].stamp
        self.stamps.append(stamp)
        tag = b"P" if isinstance(value, Tree) else b"S" if isinstance(value, str) else b"p"
        put(tag + length(len(named.head) + DIGEST_BYTES * (named.info is not None)) + named.head)
        put(slot if named.info is not None else b"")
        if tag == b"S":
            self.text_files.append(str(value))
        return True

    def joined(self, chunks: list[Any]) -> bytes:
        for slot in (one for one in chunks if type(one) is int):
            if slot not in self.known:
                self.known[slot] = digest_file(self.names[slot], self.stat_cache, self.trust)
        return b"".join([self.known[one].digest if type(one) is int else one for one in chunks])

    def code_bytes(self, value: Any) -> bytes | None:
        if isinstance(value, type):
            self.classes[value] = None
        elif isinstance(value, FunctionType):
            name = f"{value.__module__}.{value.__qualname__}"
            if "<" in name or value.__closure__ or vars(value) or not self.is_library(value):
                raise self.refuse(f"function {name}: its code would not count in an item; {self.ways_out}")
        return super().code_bytes(value)

    def is_library(self, held: type | FunctionType) -> bool:
        by = _labels(tuple(sys.path))
        return by.is_library(held) if isinstance(held, FunctionType) else not by.is_project(held)


@lru_cache(maxsize=1)
def _labels(path: tuple[str, ...]) -> Labels:
    return Labels(Places(Environment(path).installed))


def digests_of(
    items: Sequence[Any], encoder: ItemEncoder, positions: range, first: int = 0, step: int = 1
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """The digests of the items at some positions, by a new encoder, and the hashes of their stamps, as in
    `Stamps`. An item is written before the next is asked for, unless it cannot change: a sequence may give
    each in the same memory."""
    is_given = type(items) in (list, tuple) or (positions and _is_fixed(items[positions[0]]))
    written: list[Any] | None = _by_columns([items[at] for at in positions], encoder) if is_given else None
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
    rows = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
    for at, one in enumerate(written):
        if type(one) is not bytes:
            found = [rows[part] if type(part) is int else part for part in one] if rows else one
            written[at] = blake3(b"".join(found)).digest()
    return np.frombuffer(b"".join(written), np.uint8).reshape(-1, DIGEST_BYTES), hashes


def _read(encoder: ItemEncoder, ends: NDArray[np.int64]) -> tuple[bytes, NDArray[np.uint64]]:
    """The digests of all slots, and for each item the hash of its stamps. `ends`: of its slots."""
    if not encoder.names:
        return b"", np.ones(len(ends), np.uint64)
    stamps = np.fromiter(chain.from_iterable(encoder.stamps), np.int64).reshape(-1, 5)
    watches.depend_on(encoder.names)
    is_racy, is_known = np.zeros(len(stamps), np.bool_), np.zeros(len(stamps), np.bool_)
    digests = np.zeros((len(stamps), DIGEST_BYTES), np.uint8)
    if encoder.stat_cache is not None and encoder.trust == "stat":
        is_known, digests = encoder.stat_cache.lookup(stamps)
    is_known[list(encoder.known)] = True
    to_read = np.flatnonzero(~is_known).tolist()
    names = list(dict.fromkeys(encoder.names[slot] for slot in to_read))
    read = dict(zip(names, read_files(names, encoder.stat_cache), strict=True))
    encoder.known |= {slot: read[encoder.names[slot]] for slot in to_read}
    for slot, (digest, stamp, is_young) in encoder.known.items():
        digests[slot] = np.frombuffer(digest or bytes(DIGEST_BYTES), np.uint8)
        stamps[slot], is_racy[slot] = stamp, is_young
    counts = np.diff(ends, prepend=0)
    owners, starts = np.arange(len(ends)).repeat(counts), (ends - counts).repeat(counts)
    weights = 2 * (np.arange(len(stamps)) - starts) + 1
    hashes = np.ones(len(ends), np.uint64)
    np.add.at(hashes, owners, mix(stamps.T.view(np.uint64)) * weights.astype(np.uint64))
    hashes[owners[is_racy | (encoder.trust == "content")]] = 0
    return digests.tobytes(), hashes


def _columns_of(run: Sequence[Any]) -> tuple[bytes, list[tuple[bytes, Sequence[Any]]]]:
    """What all items of a run begin with, and columns, each with what stands before its elements."""
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
    are_of_files = [any(map(_may_be_path, column)) for _, column in columns]
    slot, width = len(encoder.names), sum(are_of_files)
    for (label, column), is_of_files in zip(columns, are_of_files, strict=True):
        kinds = set(map(type, column))
        if any(map(is_registered, kinds)) or (rules.read != "path" and kinds & {str, pathlib.PosixPath}):
            return None
        if is_of_files:
            if len(kinds) > 1 or not all(map(_may_be_path, column)):
                return None
            try:
                infos = list(map(os.stat, column))
            except (OSError, ValueError):
                return None
            if not all(S_ISREG(info.st_mode) for info in infos):
                return None
            rules.has_looked = True
            stamps.append(list(map(stamp_of, infos)))
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
            pieces += [range(slot + len(names) - 1, slot + width * len(run), width), [b""] * len(run)]
    encoder.names += chain.from_iterable(zip(*names, strict=True))
    encoder.text_files += texts
    encoder.stamps += chain.from_iterable(zip(*stamps, strict=True))
    return list(zip(*pieces, strict=True))


def _is_fixed(item: Any) -> bool:
    """Whether nothing can change in an item: a path, a number, a text, or a tuple of those."""
    return all(type(one) in SIMPLE or _may_be_path(one) for one in (item if type(item) is tuple else (item,)))


def _may_be_path(value: Any) -> bool:
    return type(value) is pathlib.PosixPath or (type(value) is str and looks_like_path(value))
