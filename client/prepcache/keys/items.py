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
from prepcache.keys.encoding.encoder import canonical_order
from prepcache.keys.files.digest import Trust
from prepcache.keys.files.stamps import mix
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.item_batches import Batch, Digests
from prepcache.keys.item_encoder import ItemEncoder, without_libraries
from prepcache.keys.markers import rebuild
from prepcache.keys.options import check_reading
from prepcache.keys.paths import PathRules, Read
from prepcache.keys.snapshot import Stamps

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
    with contextlib.suppress(UnkeyableError):
        return [os.fsdecode(name) for name in _probed(item, PathRules()).names]
    return []


def load(item: Any, read: Read = "path") -> Any:
    """What the function receives for an item: markers taken off, dicts in canonical order, files read."""
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
        trust: "content" reads every byte, whatever the stat cache knows.
        stat_cache: digests of files by stamp; None reads every file.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        read: Read = "path",
        trust: Trust = "stat",
        stat_cache: StatCache | None = None,
    ) -> None:
        check_reading(read, trust)
        self.root = root
        self.read = read
        self.trust = trust
        self.stat_cache = stat_cache
        self.rules = PathRules(root, read)
        self.says_text_files = True
        """Whether to say that str name files; said once."""
        self.classes: dict[type | FunctionType, None] = {}
        """Of the project's instances in all items so far, and functions that they hold."""

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
        if self.stat_cache is not None:
            self.stat_cache.refresh()
        batches: list[Digests] = []
        text_file, text_files = "", 0
        for start in range(0, len(items), BLOCK_ITEMS):
            stop = min(start + BLOCK_ITEMS, len(items))
            some = items[start:stop] if type(items) is list else [items[i] for i in range(start, stop)]
            encoder = ItemEncoder(self.rules, self.stat_cache, self.trust)
            batch = Batch(encoder, first + start * step, step)
            batch.collect(some)
            batches.append(batch.read())
            self.classes.update(dict.fromkeys(without_libraries(encoder.classes)))
            text_file, text_files = text_file or encoder.text_file, text_files + encoder.text_files
        if self.stat_cache is not None:
            self.stat_cache.flush()
        if text_files and self.says_text_files:
            self.says_text_files = False
            log.warning(
                "prepcache: %d str in the items name files, such as %r, so the bytes of these files count. "
                "Pass prepcache.plain(text) if it is only text, or a pathlib.Path to confirm it (these items "
                "are then preprocessed again).",
                text_files,
                text_file,
            )
        stamps = Stamps(batches, items, self)
        return stamps.digests, stamps

    def probe(self, item: Any) -> tuple[list[str | bytes], list[int]]:
        """The names in an item, and the hashes of their stamps as they are now; reads no file."""
        encoder = _probed(item, self.rules)
        return encoder.names, [mix(encoder.rows[at : at + 5]) for at in range(0, len(encoder.rows), 5)]

    def digests_now(self, items: Sequence[Any]) -> list[bytes]:
        """The digests of some items as they are now; reads only files that the stat cache does not know.

        Raises:
            UnkeyableError: something in an item has no stable bytes any more.
        """
        if self.stat_cache is None:
            self.stat_cache = user_stat_cache()  # it was left behind when this was pickled
        batch = Batch(ItemEncoder(self.rules, self.stat_cache))
        batch.collect(items)
        return [row.tobytes() for row in batch.read().of_items]

    def read_again(self, item: Any) -> bytes:
        """The digest of an item by the bytes that its files have now."""
        batch = Batch(ItemEncoder(self.rules))
        batch.collect([item])
        return bytes(batch.read().of_items[0])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stat_cache": None, "classes": {}}


def _probed(item: Any, rules: PathRules) -> ItemEncoder:
    """What an item holds; reads no file."""
    encoder = ItemEncoder(rules, is_probe=True)
    encoder.write(item, lambda raw: None, "item")
    return encoder
