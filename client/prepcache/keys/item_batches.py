"""Blocks: some thousand items on their way to their digests.

A block goes in three steps: stat every path and write every item, leaving room for file digests; look
all stamps up in the memo at once, and read the files that it does not know; fill the room and hash.

Invariants:
    1. Runs of items of one shape go column by column (`records`), which writes the same bytes as the
       general way (a test compares them).
    2. A slot is one path met in an item. Its stamp and its digest come from one reading.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from itertools import chain
from operator import add
from types import FunctionType
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from prepcache.digests import DIGEST_BYTES
from prepcache.keys.encoding.encoder import ENCODING_VERSION, Encoder, Put, is_registered, length, text_bytes
from prepcache.keys.files.digest import (
    Digested,
    Trust,
    digest_file,
    digest_tree,
    is_regular,
    read_files,
    stamp_of,
    tree_stamp,
)
from prepcache.keys.files.segments import mix
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.marks import Tree
from prepcache.keys.observation import context
from prepcache.keys.paths import PathRules, looks_like_path
from prepcache.keys.records import NOT_THERE, PATH_KINDS, Column, Files, columns, names_file, path_body
from prepcache.keys.snapshot import hash_stamps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ITEM_DOMAIN = b"prepcache item v1\0"
"""Starts what an item digest is taken over; its number rises when the inputs change."""

_PREFIX = ITEM_DOMAIN + bytes([ENCODING_VERSION])
_RUN_ITEMS = 1024
"""Items tried together on the short way."""
_FEW_NUMBERS = 5 * 16
"""Of stamps, for which arrays do not pay."""
_LARGE_BYTES = 1 << 20
"""Larger items are hashed piece by piece rather than joined."""
_WHOLE, _IN_CHUNKS = -1, -2
_WAYS_OUT = (
    "let the item be what it is made of (a path, a number, a dict of plain values), give its class "
    "`__prepcache_key__()`, or teach prepcache with `register_key(type, function)`"
)
_NO_STAMP = (0, 0, 0, 0, 0)


class Walk(Encoder):
    """Encodes items, putting the number of a slot where the digest of a file belongs.

    `names` and `rows` (the five numbers of a stamp) hold every slot.

    Args:
        rules: what paths stand for.
        memo, trust: for digests that cannot wait: of trees, and of what has to be sorted.
        is_probe: read nothing; digests are left zero.
    """

    def __init__(
        self,
        rules: PathRules,
        memo: StatCache | None = None,
        trust: Trust = "stat",
        *,
        is_probe: bool = False,
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
        self.classes: dict[type | FunctionType, None] = {}
        """Of instances that were met, and functions that they hold; their code counts in the recipe."""
        self.above: list[int] = []
        """Ids of the objects that are being written, the outermost first."""
        self.ways_out = _WAYS_OUT
        self.text_files = 0
        self.text_file = ""
        self._is_inner = False
        self._is_short = rules.read == "path" and not is_probe

    def put_path(self, value: Any, put: Put) -> bool:
        kind = type(value)
        if kind is str and self._is_short and not looks_like_path(value):
            return False
        if self._is_short and not self._is_inner and kind in PATH_KINDS:
            name = os.fspath(value)
            try:
                info = os.stat(name)
            except (OSError, ValueError) as error:
                if kind is str and type(error) in NOT_THERE:
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

    def put_class_of(self, value: Any, put: Put) -> None:
        self.classes[type(value)] = None
        super().put_class_of(value, put)

    def put_code(self, value: Any, put: Put) -> None:
        from prepcache.keys.objects import code_of

        payload = code_of(self, value)
        if payload is None:
            super().put_code(value, put)
        else:
            put(b"C" + length(len(payload)))
            put(payload)

    def put_object(self, value: Any, put: Put) -> None:
        from prepcache.keys.objects import put_object  # few items are objects, and it imports much

        put_object(self, value, put)

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

    def stamp_hashes(self) -> list[int]:
        """One number for each stamp: what a snapshot keeps of it."""
        rows = self.rows
        if len(rows) > _FEW_NUMBERS:
            return list(map(int, hash_stamps(self.stamps())))
        return [mix(rows[at : at + 5]) for at in range(0, len(rows), 5)]


class Block:
    """Some items and what is known of them so far.

    Args:
        walk: a new one; its slots are this block's.
        first, step: the number of the first item, and from each to the next, for messages.
    """

    def __init__(self, walk: Walk, first: int, threads: int | None = None, step: int = 1) -> None:
        self.walk = walk
        self.first = first
        self.step = step
        self.threads = threads
        self.memoised = 0
        self.hashed = 0
        self.hashed_bytes = 0
        self.ends: list[int] = []
        """For each item, the number of slots up to its end."""
        self._bodies: list[bytes] = []
        self._slots: list[int] = []
        """For each item the slot whose digest follows its body, or one of the numbers above."""
        self._tails: list[bytes] = []
        """What follows that digest."""
        self._chunks: dict[int, list[Any]] = {}

    def collect(self, items: Sequence[Any]) -> None:
        """Stat every path and write every item."""
        for start in range(0, len(items), _RUN_ITEMS):
            run = items[start : start + _RUN_ITEMS]
            written = columns(run, self.walk.rules)
            if written is None:
                self._collect_each(run)
            else:
                self._collect_columns(written, len(run))

    def _collect_columns(self, written: list[Column], count: int) -> None:
        groups: list[list[list[bytes]]] = [[[_PREFIX] * count]]
        files: list[Files] = []
        for column in written:
            groups[-1].append(column.bodies)
            if column.files is not None:
                files.append(column.files)
                groups.append([])
        bodies = [_joined(group) for group in groups if group]
        walk, width = self.walk, len(files)
        base = len(walk.names)
        self.ends.extend(range(base + width, base + width * count + 1, width) if width else [base] * count)
        if width == 1:
            walk.names.extend(files[0].names)
            walk.rows.extend(files[0].rows)
        elif width:
            walk.names.extend(chain.from_iterable(zip(*(some.names for some in files), strict=True)))
            for i in range(0, 5 * count, 5):
                for some in files:
                    walk.rows.extend(some.rows[i : i + 5])
        for some in files:
            if some.is_text:
                walk.say_text(some.names[0], count)
        first = len(self._slots)
        if width <= 1:
            self._bodies.extend(bodies[0])
            self._slots.extend(range(base, base + count) if width else [_WHOLE] * count)
            self._tails.extend(bodies[1] if len(bodies) == 2 else [b""] * count)
            return
        for i, pieces in enumerate(zip(*bodies, strict=True)):
            slots = range(base + i * width, base + (i + 1) * width)
            chunks = list(chain.from_iterable(zip(pieces, slots, strict=False)))
            self._chunks[first + i] = [*chunks, pieces[-1]] if len(pieces) > width else chunks
        self._bodies.extend([b""] * count)
        self._slots.extend([_IN_CHUNKS] * count)
        self._tails.extend([b""] * count)

    def _collect_each(self, run: Sequence[Any]) -> None:
        is_short = self.walk.rules.read == "path" and not is_registered(str)
        slots, ends, names = self._slots, self.ends, self.walk.names
        for item in run:
            if is_short and type(item) is str and not names_file(item):
                self._bodies.append(_PREFIX + text_bytes(item))
                slots.append(_WHOLE)
            else:
                i = len(slots)
                chunks: list[Any] = [_PREFIX]
                self.walk.write(item, chunks.append, f"items[{self.first + i * self.step}]")
                self._chunks[i] = chunks
                self._bodies.append(b"")
                slots.append(_IN_CHUNKS)
            self._tails.append(b"")
            ends.append(len(names))

    def read(self) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.bool_]]:
        """Learn the digests of all slots.

        Returns:
            stamps int64[slots, 5], digests uint8[slots, 32], and whether a stamp is young.
        """
        import numpy as np

        walk = self.walk
        context.depend_on(walk.names)
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
        if self._slots == list(range(len(self._slots))):
            starts = range(0, len(files), DIGEST_BYTES)
            rows_of_files = zip(self._bodies, starts, self._tails, strict=True)
            return [blake3(body + files[at : at + 32] + tail).digest() for body, at, tail in rows_of_files]
        whole: list[bytes] = []
        rows = zip(self._bodies, self._slots, self._tails, strict=True)
        for i, (body, slot, tail) in enumerate(rows):
            if slot >= 0:
                at = DIGEST_BYTES * slot
                whole.append(blake3(body + files[at : at + DIGEST_BYTES] + tail).digest())
            elif slot == _WHOLE:
                whole.append(blake3(body).digest())
            else:
                whole.append(_digest_chunks(self._chunks[i], files))
        return whole


def digest_one(item: Any, rules: PathRules, memo: StatCache) -> bytes:
    """The digest of one item, without the arrays that only pay for many."""
    walk = Walk(rules, memo)
    chunks: list[Any] = [_PREFIX]
    walk.write(item, chunks.append, "item")
    for i, part in enumerate(chunks):
        if type(part) is int:
            chunks[i] = digest_file(walk.names[part], memo, "stat").digest
    return _digest_chunks(chunks, b"")


def _joined(group: list[list[bytes]]) -> list[bytes]:
    """The columns of a group, item by item."""
    if len(group) == 1:
        return group[0]
    if len(group) == 2:
        return list(map(add, *group))
    return list(map(b"".join, zip(*group, strict=True)))


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
