"""Items: their digests, in bulk, and what the preprocessing function receives for them.

Invariants:
    1. An item's digest depends on the item alone (and `root=`, `read=`): not on other items, their order,
       the working directory or the time. `tests/golden` pins it.
    2. A digest and its stamp come from one reading; `Stamps.changed` compares with that stamp.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from prepcache.errors import UnkeyableError
from prepcache.keys.encoding.encoder import canonical_order, is_registered
from prepcache.keys.files.digest import Trust, is_regular, stamp_of
from prepcache.keys.files.segments import mix
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.item_batches import Block, Walk, digest_one
from prepcache.keys.marks import rebuild
from prepcache.keys.options import check_reading
from prepcache.keys.paths import PathRules, Read, looks_like_path
from prepcache.keys.records import NOT_THERE, PATH_KINDS
from prepcache.keys.snapshot import Stamps, StampsBuilder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK_ITEMS = 16_384
"""Items worked on together: enough for numpy to pay, little enough to keep memory small."""

log = logging.getLogger("prepcache")


def item_digest(item: Any, *, root: str | os.PathLike[str] | None = None, read: Read = "path") -> str:
    """The digest of one item, 64 hex digits. Every file in it is read; no daemon is needed.

    Args:
        item: a path, a value, or a tuple, list or dict of those.
        root: paths under it count by their name relative to it.
        read: "bytes" or "text": the function receives a file's contents, and its name does not count.

    Raises:
        UnkeyableError: something in the item has no stable bytes.
    """
    hasher = ItemHasher(root, read)
    hasher.says_text_files = False
    digests, _ = hasher.digest_many([item])
    return bytes(digests[0]).hex()


def names_in(item: Any) -> list[str]:
    """The paths that count in an item, whatever holds them; reads no file. None where it cannot be keyed."""
    walk = Walk(PathRules(), is_probe=True)
    with contextlib.suppress(UnkeyableError):
        walk.write(item, _ignore, "item")
    return [os.fsdecode(name) for name in walk.names]


def load(item: Any, read: Read = "path") -> Any:
    """What the function receives for an item: marks taken off, dicts in canonical order, files read."""
    if read == "path":
        return canonical_order(item)
    if isinstance(item, str):
        return _contents(item, read)
    return canonical_order(_with_contents(item, read))


def _with_contents(item: Any, read: Read) -> Any:
    if isinstance(item, os.PathLike):
        return _contents(item, read)
    return rebuild(item, lambda inner: _with_contents(inner, read))


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
        memo: StatCache | None = None,
        threads: int | None = None,
    ) -> None:
        check_reading(read, trust)
        self.root = root
        self.read = read
        self.trust = trust
        self.memo = memo
        self.threads = threads
        self.rules = PathRules(root, read)
        self.says_text_files = True
        """Whether to say that str name files; said once."""
        self.classes: dict[type | FunctionType, None] = {}
        """Of the instances in all items so far, and functions that they hold."""

    def digest_many(
        self, items: Sequence[Any], first: int = 0, step: int = 1
    ) -> tuple[NDArray[np.uint8], Stamps]:
        """The digests of items, and what tells later whether they changed.

        Args:
            first, step: the number of the first item, and from each to the next, for messages.

        Shape:
            returns uint8[n, 32] and the stamps of n items.

        Raises:
            UnkeyableError: something in an item has no stable bytes; the message says where.
        """
        if self.memo is not None:
            self.memo.refresh()
        snapshot = StampsBuilder()
        for start in range(0, len(items), BLOCK_ITEMS):
            stop = min(start + BLOCK_ITEMS, len(items))
            some = items[start:stop] if type(items) is list else [items[i] for i in range(start, stop)]
            walk = Walk(self.rules, self.memo, self.trust)
            block = Block(walk, first + start * step, self.threads, step)
            block.collect(some)
            self.classes.update(block.walk.classes)
            stamps, files, is_racy = block.read()
            snapshot.add(block, stamps, is_racy, block.finish(files.tobytes()))
        if self.memo is not None:
            self.memo.flush()
        digests, stamps_of_all = snapshot.build(items, self)
        self._say_text_files(stamps_of_all)
        return digests, stamps_of_all

    def _say_text_files(self, stamps: Stamps) -> None:
        if stamps.text_files and self.says_text_files:
            self.says_text_files = False
            log.warning(
                "prepcache: %d str in the items name files, such as %r: their bytes count as well. "
                "Pass a pathlib.Path to say so (such items count as other ones, and are made once more), or "
                "prepcache.plain(text) where it is only text.",
                stamps.text_files,
                stamps.text_file,
            )

    def classes_of(self, item: Any) -> frozenset[type | FunctionType]:
        """Of the instances in an item, and functions that it holds; reads no file."""
        walk = Walk(self.rules, is_probe=True)
        walk.write(item, _ignore, "item")
        return frozenset(walk.classes)

    def probe(self, item: Any) -> tuple[list[str | bytes], list[int]]:
        """The names in an item, and the hashes of their stamps as they are now; reads no file."""
        kind = type(item)
        if kind in PATH_KINDS and self.read == "path" and not is_registered(kind):
            if kind is str and not looks_like_path(item):
                return [], []
            name = os.fspath(item)
            try:
                info = os.stat(name)
            except (OSError, ValueError) as error:
                if kind is str and type(error) in NOT_THERE:
                    return [], []
            else:
                if is_regular(info):
                    return [name], [mix(stamp_of(info))]
        walk = Walk(self.rules, is_probe=True)
        walk.write(item, _ignore, "item")
        return walk.names, walk.stamp_hashes()

    def digests_now(self, items: Sequence[Any]) -> list[bytes]:
        """The digests of some items as they are now; reads only files that the memo does not know.

        Raises:
            UnkeyableError: something in an item has no stable bytes any more.
        """
        if self.memo is None:
            self.memo = user_stat_cache()  # it was left behind when this was pickled
        if len(items) == 1:
            return [digest_one(items[0], self.rules, self.memo)]
        block = Block(Walk(self.rules, self.memo), 0)
        block.collect(items)
        _, files, _ = block.read()
        return block.finish(files.tobytes())

    def read_again(self, item: Any) -> bytes:
        """The digest of an item by the bytes that its files have now."""
        hasher = ItemHasher(self.root, self.read, "content")
        hasher.says_text_files = False
        digests, _ = hasher.digest_many([item])
        return bytes(digests[0])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "memo": None, "classes": {}}


def _ignore(_: Any) -> None:
    """Where the bytes go when only paths are asked for."""
