"""Items: their digests, what tells later that they changed, and what the function receives for them.

Invariants:
    1. An item's digest depends on the item alone (and `root=`, `read=`): not on other items, their order,
       the working directory or the time. `tests/golden` pins it.
    2. `Stamps.changed(i)` is empty only if the files of item i are those whose bytes its digest counts. Where
       the stamps alone cannot tell (they were young, or nobody trusts them) the bytes are read again.
    3. Stamps take 8 bytes for each item, beside the digest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prepcache.digests import DIGEST_BYTES
from prepcache.errors import UnkeyableError
from prepcache.keys.encoding.encoder import canonical_order
from prepcache.keys.files.digest import Trust
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.item_batches import ItemEncoder, digest_of, digests_of, is_library, stamps_hash
from prepcache.keys.markers import rebuild
from prepcache.keys.paths import PathRules, Read, check_reading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK_ITEMS = 2048
"""Items worked on together: enough for numpy to pay, few enough for the caches of a processor."""

log = logging.getLogger("prepcache")
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
    with contextlib.suppress(UnkeyableError):
        return ItemHasher().probe(item)[0]
    return []


def load(item: Any, read: Read = "path") -> Any:
    """What the function receives for an item: markers taken off, dicts in canonical order, files read."""

    def contents(path: str | os.PathLike[str]) -> bytes | str:
        file = pathlib.Path(os.fspath(path))  # the one whose bytes count
        return file.read_bytes() if read == "bytes" else file.read_text(encoding="utf-8")

    def filled(inner: Any) -> Any:
        return contents(inner) if isinstance(inner, os.PathLike) else rebuild(inner, filled)

    if read == "path":
        return canonical_order(item)
    return contents(item) if isinstance(item, str) else canonical_order(filled(item))


class ItemHasher:
    """Digests items in bulk. Without a stat cache it reads every file."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        read: Read = "path",
        trust: Trust = "stat",
        stat_cache: StatCache | None = None,
    ) -> None:
        check_reading(read, trust)
        self.trust = trust
        self.stat_cache = stat_cache
        self.rules = PathRules(root, read)
        self.classes: dict[type, None] = {}
        """Of the project's instances in all items so far."""

    def digest_many(self, items: Sequence[Any], first: int = 0, step: int = 1) -> Stamps:
        """The digests of items. Messages count from `first` in steps of `step`."""
        import numpy as np

        if self.stat_cache is not None:
            self.stat_cache.refresh()
        digests, hashes = [np.empty((0, DIGEST_BYTES), np.uint8)], [np.empty(0, np.uint64)]
        missing: list[str | bytes] = []
        text_files: list[str] = []
        for start in range(0, len(items), BLOCK_ITEMS):
            block = range(start, min(start + BLOCK_ITEMS, len(items)))
            encoder = ItemEncoder(self.rules, self.stat_cache, self.trust)
            found = digests_of(items, encoder, block, first, step)
            digests.append(found[0])
            hashes.append(found[1])
            missing += [encoder.names[slot] for slot, one in encoder.known.items() if not one.digest]
            text_files += encoder.text_files
            self.classes.update(dict.fromkeys(one for one in encoder.classes if not is_library(one)))
        if self.stat_cache is not None:
            self.stat_cache.flush()
        typed = [os.fsdecode(name) for name in missing]
        note = _TEXT_FILES % (len(text_files), text_files[0]) if text_files else ""
        return Stamps(np.concatenate(digests), np.concatenate(hashes), typed, note, items, self)

    def probe(self, item: Any) -> tuple[list[str], int]:
        """The names in an item, and the hash of their stamps as they are now."""
        encoder = ItemEncoder(self.rules, self.stat_cache)
        encoder.write(item, lambda raw: None, "item")
        return [os.fsdecode(name) for name in encoder.names], stamps_hash(encoder)

    def digests_now(self, items: Sequence[Any]) -> list[bytes]:
        """The digests of some items as they are now; reads only files that the stat cache does not know."""
        if self.stat_cache is None:
            self.stat_cache = user_stat_cache()  # it was left behind when this was pickled
        encoder = ItemEncoder(self.rules, self.stat_cache)
        if len(items) == 1:  # as a lazy data set asks: no arrays for that
            return [digest_of(items[0], encoder)]
        return [row.tobytes() for row in digests_of(items, encoder, range(len(items)))[0]]

    def read_again(self, item: Any) -> bytes:
        return digest_of(item, ItemEncoder(self.rules))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stat_cache": None, "classes": {}}


@dataclass(frozen=True, eq=False)
class Stamps:
    """Items as they were digested, and what tells whether they changed since.

    Args:
        digests: uint8[n, 32].
        hashes: uint64[n], of the stamps of the files in each; 0 where they alone do not tell.
        typed_names: paths in items that named nothing when the data set was opened.
        note: what the user should be told once; "" for nothing.
    """

    digests: NDArray[np.uint8]
    hashes: NDArray[np.uint64]
    typed_names: list[str]
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
            names, now = self.hasher.probe(self.items[i])
            before = int(self.hashes[i])
            if now == before:
                return []
            if not before and self.hasher.read_again(self.items[i]) == self.digests[i].tobytes():
                return []
        except UnkeyableError as error:
            return [error.data.get("name") or f"item {i}"]
        return list(dict.fromkeys(names)) or [f"item {i}"]
