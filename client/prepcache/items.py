"""Items: their digests, in bulk, and the snapshot by which a later change is seen.

Invariants:
    1. An item's digest depends on the item alone (and `root=`, `read=`): not on other items, their order,
       the working directory or the time. `tests/golden` pins it.
    2. A digest and its stamp come from one reading; `Stamps.changed` compares with that stamp.
    3. The fast way for items that are one path or one number, and the general way, write the same bytes.
"""

from __future__ import annotations

import logging
import os
import pathlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from prepcache.builtin_types import int_bytes, text_bytes
from prepcache.canonical import ENCODING_VERSION, Encoder, Put, canonical_order, length
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
from prepcache.marks import Plain, Tree
from prepcache.memo import Memo
from prepcache.paths import LONGEST, PathRules, Read
from prepcache.stamps import Stamps, StampsBuilder, hash_stamps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ITEM_DOMAIN = b"prepcache item v1\0"
"""Starts what an item digest is taken over; its number rises when the inputs change."""
BLOCK_ITEMS = 16_384
"""Items worked on together: enough for numpy to pay, little enough to keep memory small."""

_PREFIX = ITEM_DOMAIN + bytes([ENCODING_VERSION])
_WHOLE, _IN_CHUNKS = -1, -2
_LARGE = 1 << 20
"""Bytes; larger items are hashed piece by piece rather than joined."""
_NO_STAMP = (0, 0, 0, 0, 0)
_PATH_KINDS = (str, pathlib.PosixPath)
_NOT_THERE = (FileNotFoundError, NotADirectoryError, ValueError, UnicodeEncodeError)

log = logging.getLogger("prepcache")


def item_digest(
    item: Any, *, root: str | os.PathLike[str] | None = None, read: Read = "path", memo: Memo | None = None
) -> str:
    """The digest of one item, 64 hex digits; needs no daemon.

    Args:
        item: a path, a value, or a tuple, list or dict of those.
        root: paths under it count by their name relative to it.
        read: "bytes" or "text": the function receives a file's contents, and its name does not count.

    Raises:
        UnkeyableError: something in the item has no stable bytes.
    """
    digests, _ = ItemHasher(root, read, memo=memo).digest_many([item])
    return digests[0].tobytes().hex()


def load(item: Any, read: Read = "path") -> Any:
    """What the function receives for an item: marks taken off, dicts in canonical order, files read."""
    if read == "path":
        return canonical_order(item)
    if isinstance(item, str):
        return _contents(item, read)
    return canonical_order(_with_contents(item, read))


def _with_contents(item: Any, read: Read) -> Any:
    kind = type(item)
    if kind is tuple or kind is list:
        return kind(_with_contents(x, read) for x in item)
    if kind is dict:
        return {key: _with_contents(x, read) for key, x in item.items()}
    if isinstance(item, os.PathLike):
        return _contents(item, read)
    return item


def _contents(path: str | os.PathLike[str], read: Read) -> bytes | str:
    if read == "bytes":
        return pathlib.Path(path).read_bytes()
    return pathlib.Path(path).read_text(encoding="utf-8")


class ItemHasher:
    """Digests items in bulk.

    Args:
        root: paths under it count by their name relative to it.
        read: what the function receives for a path: the path, or the file's contents.
        trust: "content" reads every byte, whatever the memo knows.
        memo: digests of files by stamp; None reads every file.
        threads: for hashing; by default the cores this process may use.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        read: Read = "path",
        trust: Trust = "stat",
        memo: Memo | None = None,
        threads: int | None = None,
    ) -> None:
        self.root = root
        self.read = read
        self.trust = trust
        self.memo = memo
        self.threads = threads
        self.rules = PathRules(root, read)
        self._has_said = False

    def digest_many(self, items: Sequence[Any]) -> tuple[NDArray[np.uint8], Stamps]:
        """The digests of items, and what tells later whether they changed.

        Shape:
            returns uint8[n, 32] and the stamps of n items.

        Raises:
            UnkeyableError: something in an item has no stable bytes; the message says where.
        """
        if self.memo is not None:
            self.memo.refresh()
        snapshot = StampsBuilder()
        digests: list[bytes] = []
        for start in range(0, len(items), BLOCK_ITEMS):
            block = [items[i] for i in range(start, min(start + BLOCK_ITEMS, len(items)))]
            digests.extend(_Block(self, start, snapshot).digests(block))
        if self.memo is not None:
            self.memo.flush()
        if snapshot.text_files and not self._has_said:
            self._has_said = True
            log.warning(
                "%d str in the items name files, such as %r: their bytes count (pass a pathlib.Path to say so, "
                "or prepcache.plain(text) if it is only text)",
                snapshot.text_files,
                snapshot.text_file,
            )
        return snapshot.build(digests, items, self)

    def probe(self, item: Any, place: str = "item") -> tuple[list[str | bytes], NDArray[np.uint64]]:
        """The names that an item holds and the hashes of their stamps as they are now, reading no file."""
        walk = _Walk(self.rules, None)
        walk.write(item, _ignore, place)
        return walk.names, walk.stamp_hashes()

    def read_again(self, item: Any) -> bytes:
        """The digest of an item by the bytes that its files have now."""
        digests, _ = ItemHasher(self.root, self.read, "content").digest_many([item])
        return digests[0].tobytes()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "memo": None}


class _Walk(Encoder):
    """Encodes items by stats alone: for a digest that is not known yet it puts the number of its slot.

    `names` and `rows` (five numbers of a stamp each) hold a slot for every path met.
    """

    def __init__(self, rules: PathRules, hasher: ItemHasher | None) -> None:
        super().__init__()
        self.rules = rules
        self.hasher = hasher
        self.names: list[str | bytes] = []
        self.rows = array("q")
        self.known: dict[int, Digested] = {}
        """Digests by slot that were taken on the way: of trees, and of files in sets."""
        self.missing: list[str | bytes] = []
        self.text_files: list[str] = []
        self._is_inner = False

    def put_path(self, value: Any, put: Put) -> bool:
        named = self.rules.look_up(value, self)
        if named is None:
            return False
        tag = b"P" if isinstance(value, Tree) else b"S" if isinstance(value, str) else b"p"
        slot = len(self.names)
        self.names.append(named.name)
        if named.info is None:
            self.rows.extend(_NO_STAMP)
            self.known[slot] = Digested(b"", _NO_STAMP, False)
            self.missing.append(named.name)
            put(tag + length(len(named.head)) + named.head)
            return True
        if tag == b"S":
            self.text_files.append(value)
        put(tag + length(len(named.head) + 32) + named.head)
        if named.is_tree and self.hasher is None:
            self.rows.extend(tree_stamp(named.name))
            put(bytes(32))
        elif self.hasher is not None and (named.is_tree or self._is_inner):
            digest = digest_tree if named.is_tree else digest_file
            digested = digest(named.name, self.hasher.memo, self.hasher.trust)
            self.known[slot] = digested
            self.rows.extend(digested.stamp)
            put(digested.digest)
        else:
            self.rows.extend(stamp_of(named.info))
            put(bytes(32) if self.hasher is None else slot)
        return True

    def part(self, value: Any, step: str | int) -> bytes:
        before, self._is_inner = self._is_inner, True
        raw = super().part(value, step)
        self._is_inner = before
        return raw

    def stamps(self) -> NDArray[np.int64]:
        import numpy as np

        return np.array(self.rows, np.int64).reshape(-1, 5)

    def stamp_hashes(self) -> NDArray[np.uint64]:
        return hash_stamps(self.stamps())


class _Block:
    """Some items on their way: first stats, then all unknown digests at once, then the items' digests."""

    def __init__(self, hasher: ItemHasher, start: int, snapshot: StampsBuilder) -> None:
        self.hasher = hasher
        self.start = start
        self.snapshot = snapshot
        self.walk = _Walk(hasher.rules, hasher)
        self.bodies: list[bytes] = []
        self.slots: list[int] = []
        """For each item the slot of the digest that its body lacks at the end, or one of those below."""
        self.chunks: dict[int, list[Any]] = {}
        self.ends = array("Q")

    def digests(self, items: list[Any]) -> list[bytes]:
        self._collect(items)
        stamps, file_digests, is_racy = self._read_files()
        self.snapshot.add(self.walk, self.ends, stamps, is_racy)
        return self._finish(file_digests.tobytes())

    def _collect(self, items: list[Any]) -> None:
        walk, bodies, slots = self.walk, self.bodies, self.slots
        names, rows, ends = walk.names, walk.rows, self.ends
        named, stat, fspath = walk.rules.named, os.stat, os.fspath
        is_path_read = self.hasher.read == "path"
        has_root = walk.rules.root is not None
        heads: dict[tuple[type, int], bytes] = {}
        for i, item in enumerate(items):
            kind = type(item)
            if kind is int:
                bodies.append(_PREFIX + int_bytes(item))
                slots.append(_WHOLE)
            elif is_path_read and kind in _PATH_KINDS and (kind is not str or len(item) < LONGEST):
                name = item if kind is str else fspath(item)
                try:
                    info = stat(name)
                except (OSError, ValueError) as error:
                    if kind is str and type(error) in _NOT_THERE:
                        bodies.append(_PREFIX + text_bytes(item))
                        slots.append(_WHOLE)
                    else:
                        self._collect_any(i, item)
                    ends.append(len(names))
                    continue
                if is_regular(info):
                    slots.append(len(names))
                    names.append(name)
                    row = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
                    try:
                        rows.extend(row)
                    except OverflowError:
                        del rows[5 * (len(names) - 1) :]
                        rows.extend(stamp_of(info))
                    if kind is str:
                        walk.text_files.append(name)
                    if has_root:
                        tail = named(name)
                        bodies.append(_path_head(kind, len(tail) + 33) + b"f" + tail)
                    else:
                        raw = name.encode("utf-8", "surrogatepass")
                        size = len(raw)
                        head = heads.get((kind, size))
                        if head is None:
                            head = _path_head(kind, size + 42) + b"fn" + length(size)
                            heads[kind, size] = head
                        bodies.append(head + raw)
                else:
                    self._collect_any(i, item)
            else:
                self._collect_any(i, item)
            ends.append(len(names))

    def _collect_any(self, i: int, item: Any) -> None:
        chunks: list[Any] = [_PREFIX]
        self.walk.write(item, chunks.append, f"items[{self.start + i}]")
        self.chunks[i] = chunks
        self.bodies.append(b"")
        self.slots.append(_IN_CHUNKS)

    def _read_files(self) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.bool_]]:
        """Stamps, digests and whether the stamp is young, for every slot."""
        import numpy as np

        walk, hasher = self.walk, self.hasher
        stamps = walk.stamps()
        is_racy = np.zeros(len(stamps), np.bool_)
        if hasher.memo is not None and hasher.trust == "stat":
            is_known, digests = hasher.memo.lookup(stamps)
        else:
            is_known = np.zeros(len(stamps), np.bool_)
            digests = np.zeros((len(stamps), DIGEST_BYTES), np.uint8)
        self.snapshot.memoised += int(is_known.sum())
        for slot, digested in walk.known.items():
            is_known[slot], is_racy[slot] = True, digested.is_racy
        first_slots: dict[str | bytes, int] = {}
        to_read = np.flatnonzero(~is_known).tolist()
        for slot in to_read:
            first_slots.setdefault(walk.names[slot], slot)
        read = dict(zip(first_slots, read_files(list(first_slots), hasher.memo, hasher.threads), strict=True))
        for slot in to_read:
            digested = read[walk.names[slot]]
            digests[slot] = np.frombuffer(digested.digest, np.uint8)
            stamps[slot], is_racy[slot] = digested.stamp, digested.is_racy
        self.snapshot.hashed += len(read)
        self.snapshot.hashed_bytes += sum(digested.stamp[2] for digested in read.values())
        return stamps, digests, is_racy

    def _finish(self, files: bytes) -> list[bytes]:
        whole: list[bytes] = []
        for i, (body, slot) in enumerate(zip(self.bodies, self.slots, strict=True)):
            if slot >= 0:
                at = DIGEST_BYTES * slot
                whole.append(blake3(body + files[at : at + DIGEST_BYTES]).digest())
            elif slot == _WHOLE:
                whole.append(blake3(body).digest())
            else:
                hasher = blake3()
                parts = [
                    files[DIGEST_BYTES * part : DIGEST_BYTES * (part + 1)] if type(part) is int else part
                    for part in self.chunks[i]
                ]
                if sum(map(len, parts)) < _LARGE:
                    parts = [b"".join(parts)]
                for part in parts:
                    hasher.update(part)
                whole.append(hasher.digest())
        return whole


def _path_head(kind: type, size: int) -> bytes:
    return _PREFIX + (b"S" if kind is str else b"p") + length(size)


def _ignore(_: Any) -> None:
    """Where the bytes go when only paths are asked for."""
