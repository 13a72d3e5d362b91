"""Blocks: some thousand items on their way to their digests.

A block goes in three steps: stat every path and write every item, leaving room for file digests; look
all stamps up in the memo at once, and read the files that it does not know; fill the room and hash.

Invariants:
    1. Items that are all paths, all str or all int take a shorter way that writes the same bytes as
       the general one (a test compares them).
    2. A slot is one path met in an item. Its stamp and its digest come from one reading.
"""

from __future__ import annotations

import os
import pathlib
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from prepcache.builtin_types import int_bytes, text_bytes
from prepcache.canonical import ENCODING_VERSION, Encoder, Put, is_registered, length
from prepcache.digests import DIGEST_BYTES
from prepcache.files import (
    Digested,
    Trust,
    digest_file,
    digest_tree,
    is_regular,
    read_files,
    stamp_of,
    tree_stamp,
)
from prepcache.marks import Tree
from prepcache.memo import Memo
from prepcache.paths import LONGEST, PathRules

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ITEM_DOMAIN = b"prepcache item v1\0"
"""Starts what an item digest is taken over; its number rises when the inputs change."""

_PREFIX = ITEM_DOMAIN + bytes([ENCODING_VERSION])
_RUN_ITEMS = 1024
"""Items tried together on the short way."""
_LARGE_BYTES = 1 << 20
"""Larger items are hashed piece by piece rather than joined."""
_WHOLE, _IN_CHUNKS = -1, -2
_NO_STAMP = (0, 0, 0, 0, 0)
_PATH_KINDS = (str, pathlib.PosixPath)
_NOT_THERE = (FileNotFoundError, NotADirectoryError)
_stamp = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
_mode = attrgetter("st_mode")


class Walk(Encoder):
    """Encodes items, putting the number of a slot where the digest of a file belongs.

    `names` and `rows` (the five numbers of a stamp) hold every slot.

    Args:
        rules: what paths stand for.
        memo, trust: for digests that cannot wait: of trees, and of what has to be sorted.
        is_probe: read nothing; digests are left zero.
    """

    def __init__(
        self, rules: PathRules, memo: Memo | None = None, trust: Trust = "stat", *, is_probe: bool = False
    ) -> None:
        super().__init__()
        self.rules = rules
        self.memo = memo
        self.trust = trust
        self.is_probe = is_probe
        self.names: list[str | bytes] = []
        self.rows = array("q")
        self.known: dict[int, Digested] = {}
        """What was digested on the way, by slot."""
        self.missing: list[str | bytes] = []
        self.text_files = 0
        self.text_file = ""
        self._is_inner = False
        self._is_short = rules.read == "path" and not is_probe

    def put_path(self, value: Any, put: Put) -> bool:
        kind = type(value)
        if self._is_short and not self._is_inner and kind in _PATH_KINDS:
            name = os.fspath(value)
            try:
                info = os.stat(name)
            except (OSError, ValueError) as error:
                if kind is str and type(error) in _NOT_THERE:
                    return False
            else:
                if is_regular(info):
                    put(path_body(kind, self.rules.named(name)))
                    put(self.new_slot(name, info))
                    if kind is str:
                        self.say_text(name, 1)
                    return True
        named = self.rules.look_up(value, self)
        if named is None:
            return False
        tag = b"P" if isinstance(value, Tree) else b"S" if isinstance(value, str) else b"p"
        if named.info is None:
            self.known[len(self.names)] = Digested(b"", _NO_STAMP, False)
            self.missing.append(named.name)
            self.names.append(named.name)
            self.rows.extend(_NO_STAMP)
            put(tag + length(len(named.head)) + named.head)
            return True
        if tag == b"S":
            self.say_text(str(value), 1)
        put(tag + length(len(named.head) + DIGEST_BYTES) + named.head)
        if self.is_probe:
            self.rows.extend(tree_stamp(named.name) if named.is_tree else stamp_of(named.info))
            self.names.append(named.name)
            put(bytes(DIGEST_BYTES))
        elif named.is_tree or self._is_inner:
            digest = digest_tree if named.is_tree else digest_file
            digested = digest(named.name, self.memo, self.trust)
            self.known[len(self.names)] = digested
            self.names.append(named.name)
            self.rows.extend(digested.stamp)
            put(digested.digest)
        else:
            put(self.new_slot(named.name, named.info))
        return True

    def part(self, value: Any, step: str | int) -> bytes:
        before, self._is_inner = self._is_inner, True
        raw = super().part(value, step)
        self._is_inner = before
        return raw

    def new_slot(self, name: str | bytes, info: os.stat_result) -> int:
        """Make a slot for a regular file; its number."""
        self.names.append(name)
        self.rows.extend(stamp_of(info))
        return len(self.names) - 1

    def say_text(self, name: str, count: int) -> None:
        """Note that str name files."""
        self.text_file = self.text_file or name
        self.text_files += count

    def stamps(self) -> NDArray[np.int64]:
        """int64[slots, 5]."""
        import numpy as np

        return np.array(self.rows, np.int64).reshape(-1, 5)


class Block:
    """Some items and what is known of them so far.

    Args:
        walk: a new one; its slots are this block's.
        first: the number of the first item, for messages.
    """

    def __init__(self, walk: Walk, first: int, threads: int | None = None) -> None:
        self.walk = walk
        self.first = first
        self.threads = threads
        self.memoised = 0
        self.hashed = 0
        self.hashed_bytes = 0
        self.ends: list[int] = []
        """For each item, the number of slots up to its end."""
        self._bodies: list[bytes] = []
        self._slots: list[int] = []
        """For each item the slot whose digest ends it, or one of the numbers above."""
        self._chunks: dict[int, list[Any]] = {}

    def collect(self, items: Sequence[Any]) -> None:
        """Stat every path and write every item."""
        for start in range(0, len(items), _RUN_ITEMS):
            run = items[start : start + _RUN_ITEMS]
            kinds = set(map(type, run))
            kind = kinds.pop() if len(kinds) == 1 else None
            if kind is None or is_registered(kind):
                self._collect_each(run)
            elif kind is int:
                self._add_whole([_PREFIX + int_bytes(item) for item in run])
            elif kind not in _PATH_KINDS or not self._collect_files(kind, run):
                self._collect_each(run)

    def _collect_files(self, kind: type, run: Sequence[Any]) -> bool:
        """Add a run of paths or str that all name regular files; False if they do not."""
        walk = self.walk
        if walk.rules.read != "path":
            return False
        names = run if kind is str else list(map(os.fspath, run))
        try:
            infos = list(map(os.stat, names))
            rows = array("q", chain.from_iterable(map(_stamp, infos)))
        except (OSError, ValueError, OverflowError):
            return False
        if any(mode & 0o170000 != 0o100000 for mode in set(map(_mode, infos))):
            return False
        self._bodies.extend(path_bodies(kind, names, walk.rules))
        start = len(walk.names)
        self._slots.extend(range(start, start + len(names)))
        self.ends.extend(range(start + 1, start + 1 + len(names)))
        walk.names.extend(names)
        walk.rows.extend(rows)
        if kind is str:
            walk.say_text(names[0], len(names))
        return True

    def _collect_each(self, run: Sequence[Any]) -> None:
        is_short = self.walk.rules.read == "path" and not is_registered(str)
        stat, slots, ends, names = os.stat, self._slots, self.ends, self.walk.names
        for item in run:
            if is_short and type(item) is str:
                if len(item) < LONGEST:
                    try:
                        stat(item)
                        is_text = False
                    except (OSError, ValueError) as error:
                        is_text = type(error) in _NOT_THERE
                else:
                    is_text = True
                if is_text:
                    self._bodies.append(_PREFIX + text_bytes(item))
                    slots.append(_WHOLE)
                    ends.append(len(names))
                    continue
            i = len(slots)
            chunks: list[Any] = [_PREFIX]
            self.walk.write(item, chunks.append, f"items[{self.first + i}]")
            self._chunks[i] = chunks
            self._bodies.append(b"")
            slots.append(_IN_CHUNKS)
            ends.append(len(names))

    def _add_whole(self, bodies: list[bytes]) -> None:
        self._bodies.extend(bodies)
        self._slots.extend([_WHOLE] * len(bodies))
        self.ends.extend([len(self.walk.names)] * len(bodies))

    def read(self) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.bool_]]:
        """Learn the digests of all slots.

        Returns:
            stamps int64[slots, 5], digests uint8[slots, 32], and whether a stamp is young.
        """
        import numpy as np

        walk = self.walk
        stamps = walk.stamps()
        is_racy = np.zeros(len(stamps), np.bool_)
        if walk.memo is not None and walk.trust == "stat":
            is_known, digests = walk.memo.lookup(stamps)
        else:
            is_known = np.zeros(len(stamps), np.bool_)
            digests = np.zeros((len(stamps), DIGEST_BYTES), np.uint8)
        self.memoised = int(is_known.sum())
        for slot, digested in walk.known.items():
            is_known[slot], is_racy[slot] = True, digested.is_racy
        to_read = np.flatnonzero(~is_known).tolist()
        if to_read:
            names = list(dict.fromkeys(walk.names[slot] for slot in to_read))
            read = dict(zip(names, read_files(names, walk.memo, self.threads), strict=True))
            for slot in to_read:
                digested = read[walk.names[slot]]
                digests[slot] = np.frombuffer(digested.digest, np.uint8)
                stamps[slot], is_racy[slot] = digested.stamp, digested.is_racy
            self.hashed = len(read)
            self.hashed_bytes = sum(digested.stamp[2] for digested in read.values())
        return stamps, digests, is_racy

    def finish(self, files: bytes) -> list[bytes]:
        """The digests of the items.

        Args:
            files: the digests of all slots, 32 bytes each.
        """
        bodies, slots = self._bodies, self._slots
        if slots == list(range(len(slots))):
            ends = range(0, len(files), DIGEST_BYTES)
            return [
                blake3(body + files[at : at + 32]).digest() for body, at in zip(bodies, ends, strict=True)
            ]
        whole: list[bytes] = []
        for i, (body, slot) in enumerate(zip(bodies, slots, strict=True)):
            if slot == _WHOLE:
                whole.append(blake3(body).digest())
            elif slot == _IN_CHUNKS:
                whole.append(_digest_chunks(self._chunks[i], files))
            else:
                at = DIGEST_BYTES * slot
                whole.append(blake3(body + files[at : at + DIGEST_BYTES]).digest())
        return whole


def _digest_chunks(chunks: list[Any], files: bytes) -> bytes:
    parts = [
        files[DIGEST_BYTES * part : DIGEST_BYTES * (part + 1)] if type(part) is int else part
        for part in chunks
    ]
    if sum(map(len, parts)) < _LARGE_BYTES:
        return blake3(b"".join(parts)).digest()
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def path_body(kind: type, named: bytes) -> bytes:
    """The bytes of a path or str that names a regular file, but for its digest."""
    return (b"S" if kind is str else b"p") + length(len(named) + 33) + b"f" + named


def path_bodies(kind: type, names: Sequence[str], rules: PathRules) -> list[bytes]:
    """`path_body` of many items, with what starts an item's digest."""
    if rules.root is not None:
        return [_PREFIX + path_body(kind, rules.named(name)) for name in names]
    heads = _Heads(lambda size: _PREFIX + path_body(kind, b"n" + length(size) + bytes(size))[:-size])
    return [heads[len(raw)] + raw for raw in [name.encode("utf-8", "surrogatepass") for name in names]]


class _Heads(dict[int, bytes]):
    """What comes before a name, by the length of the name."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> bytes:
        head = self[size] = self._make(size)
        return head
