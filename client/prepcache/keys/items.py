"""Items: their digests, what tells later that they changed, and what the function receives for them.

Invariants:
    1. An item's digest depends on the item alone (and `root=`, `read=`): not on other items, their order,
       the working directory or the time. `tests/golden` pins it.
    2. `Stamps.changed(i)` is empty only if the files of item i are those whose bytes its digest counts. Where
       the stamps alone cannot tell (they were young, or nobody trusts them) the bytes are read again.
    3. Stamps take 4 bytes for each item and 8 for each path in it, beside the digest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prepcache.digests import DIGEST_BYTES
from prepcache.errors import UnkeyableError
from prepcache.keys.encoding.encoder import canonical_order
from prepcache.keys.files.digest import Trust
from prepcache.keys.files.stamps import mix
from prepcache.keys.files.stat_cache import StatCache, user_stat_cache
from prepcache.keys.item_batches import ItemEncoder, digest_of, digests_of, is_library
from prepcache.keys.markers import rebuild
from prepcache.keys.paths import PathRules, Read, check_reading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prepcache.keys.item_batches import Digests

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
    return ItemHasher(root, read).read_again(item).hex()


def names_in(item: Any) -> list[str]:
    """The paths that count in an item, whatever holds them: none where it has no key. Reads no file."""
    with contextlib.suppress(UnkeyableError):
        return [os.fsdecode(name) for name in ItemHasher().probe(item)[0]]
    return []


def load(item: Any, read: Read = "path") -> Any:
    """What the function receives for an item: markers taken off, dicts in canonical order, files read."""

    def contents(path: str | os.PathLike[str]) -> bytes | str:
        file = pathlib.Path(path)
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
        self.says_text_files = True
        self.classes: dict[type, None] = {}
        """Of the project's instances in all items so far."""

    def digest_many(
        self, items: Sequence[Any], first: int = 0, step: int = 1
    ) -> tuple[NDArray[np.uint8], Stamps]:
        """The digests of items, uint8[n, 32], and what tells later whether they changed. Messages count from
        `first` in steps of `step`."""
        if self.stat_cache is not None:
            self.stat_cache.refresh()
        found = []
        missing: list[str | bytes] = []
        text_files: list[str] = []
        for start in range(0, len(items), BLOCK_ITEMS):
            block = range(start, min(start + BLOCK_ITEMS, len(items)))
            encoder = ItemEncoder(self.rules, self.stat_cache, self.trust, digests="later")
            found.append(digests_of(items, encoder, block, first, step))
            missing += encoder.missing
            text_files += encoder.text_files
            self.classes.update(dict.fromkeys(one for one in encoder.classes if not is_library(one)))
        if self.stat_cache is not None:
            self.stat_cache.flush()
        if text_files and self.says_text_files:
            self.says_text_files = False
            log.warning(
                "prepcache: %d str in the items name files, such as %r, so the bytes of these files count. "
                "Pass prepcache.plain(text) if it is only text, or a pathlib.Path to confirm it (these items "
                "are then preprocessed again).",
                len(text_files),
                text_files[0],
            )
        stamps = Stamps(found, [os.fsdecode(name) for name in missing], items, self)
        return stamps.digests, stamps

    def probe(self, item: Any) -> tuple[list[str | bytes], list[int]]:
        """The names in an item, and the hashes of their stamps as they are now; reads no file."""
        encoder = ItemEncoder(self.rules, digests="never")
        encoder.write(item, lambda raw: None, "item")
        return encoder.names, [mix(encoder.rows[at : at + 5]) for at in range(0, len(encoder.rows), 5)]

    def digests_now(self, items: Sequence[Any]) -> list[bytes]:
        """The digests of some items as they are now; reads only files that the stat cache does not know."""
        if self.stat_cache is None:
            self.stat_cache = user_stat_cache()  # it was left behind when this was pickled
        if len(items) == 1:  # as a lazy data set asks: no arrays for that
            return [digest_of(items[0], ItemEncoder(self.rules, self.stat_cache))]
        found = digests_of(
            items, ItemEncoder(self.rules, self.stat_cache, digests="later"), range(len(items))
        )
        return [row.tobytes() for row in found.of_items]

    def read_again(self, item: Any) -> bytes:
        return digest_of(item, ItemEncoder(self.rules))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stat_cache": None, "classes": {}}


class Stamps:
    """What tells whether items changed since they were digested.

    Attributes:
        digests: uint8[n, 32].
        typed_names: paths in items that named nothing when the data set was opened.
    """

    def __init__(
        self, found: Sequence[Digests], typed_names: list[str], items: Sequence[Any], hasher: ItemHasher
    ) -> None:
        import numpy as np

        none = np.empty((0, DIGEST_BYTES), np.uint8)
        self.digests = np.concatenate([none, *(some.of_items for some in found)])
        self._hashes = np.concatenate([np.empty(0, np.uint64), *(some.hashes for some in found)])
        slots = np.cumsum([0, *(len(some.hashes) for some in found)])
        ends = [some.ends + before for some, before in zip(found, slots.tolist(), strict=False)]
        self._ends = np.concatenate([np.empty(0, np.int64), *ends]).astype(np.uint32)
        self._items, self._hasher = items, hasher
        self.typed_names = typed_names

    def __len__(self) -> int:
        return len(self.digests)

    def digests_now(self, items: Sequence[Any]) -> list[bytes]:
        return self._hasher.digests_now(items)

    def changed(self, i: int) -> list[str]:
        """The names of files of item i that are no longer what they were; empty if all are."""
        if not (len(self._hashes) or self._hasher.rules.has_looked):
            return []  # no item can name a file
        before = self._hashes[self._ends[i - 1] if i else 0 : self._ends[i]].tolist()
        item = self._items[i]
        try:
            names, now = self._hasher.probe(item)
            if now == before:
                return []
            differ = [pair for pair in zip(names, before, now, strict=False) if pair[1] != pair[2]]
            is_untold = len(now) == len(before) and all(then == 0 for _, then, _ in differ)
            if is_untold and self._hasher.read_again(item) == self.digests[i].tobytes():
                return []
        except UnkeyableError as error:
            return [error.data.get("name") or f"item {i}"]
        if len(now) != len(before):
            return [os.fsdecode(name) for name in names] or [f"item {i}"]
        return [os.fsdecode(name) for name, then, _ in differ if then or is_untold]
