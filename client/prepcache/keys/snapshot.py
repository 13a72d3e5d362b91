"""The snapshot of a data set: its files as they were when it was opened.

Invariants:
    1. `changed(i)` is empty only if the files of item i are those whose bytes its digest counts. Where
       the stamps alone cannot tell (they were young, or nobody trusts them) the bytes are read again.
    2. Memory: 5 bytes for each item and 8 for each path in it, beside the digest; names are taken from the
       items when they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prepcache.digests import DIGEST_BYTES
from prepcache.errors import UnkeyableError

if TYPE_CHECKING:
    from prepcache.keys.item_batches import Digests
    from prepcache.keys.items import ItemHasher


class Stamps:
    """What tells whether items changed since they were digested.

    Args:
        batches: what was learned of the items, in order.

    Attributes:
        digests: uint8[n, 32].
        typed_names: paths in items that named nothing when the data set was opened.
        files_read: how many files the stat cache did not know.
    """

    def __init__(self, batches: Sequence[Digests], items: Sequence[Any], hasher: ItemHasher) -> None:
        import numpy as np

        none = np.empty((0, DIGEST_BYTES), np.uint8)
        self.digests = np.concatenate([none, *(batch.of_items for batch in batches)])
        self._hashes = np.concatenate([np.empty(0, np.uint64), *(batch.hashes for batch in batches)])
        slots = np.cumsum([0, *(len(batch.hashes) for batch in batches)])
        ends = [batch.ends + before for batch, before in zip(batches, slots.tolist(), strict=False)]
        self._ends = np.concatenate([np.empty(0, np.int64), *ends]).astype(np.uint32)
        self._must_read = np.concatenate([np.empty(0, np.bool_), *(batch.is_racy for batch in batches)])
        if hasher.trust == "content":
            self._must_read[:] = True
        self._items = items
        self._hasher = hasher
        self.typed_names = [os.fsdecode(name) for batch in batches for name in batch.missing]
        self.files_read = sum(batch.files_read for batch in batches)

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def nbytes(self) -> int:
        """Memory it takes, in bytes, without items and digests."""
        return self._hashes.nbytes + self._ends.nbytes + self._must_read.nbytes

    def digests_now(self, items: Sequence[Any]) -> list[bytes]:
        """The digests of some of the items as they are now."""
        return self._hasher.digests_now(items)

    def changed(self, i: int) -> list[str]:
        """The names of files of item i that are no longer what they were; empty if all are."""
        start = int(self._ends[i - 1]) if i else 0
        before = self._hashes[start : int(self._ends[i])].tolist()
        item = self._items[i]
        try:
            names, now = self._hasher.probe(item)
            if now == before:
                if not self._must_read[i] or self._hasher.read_again(item) == self.digests[i].tobytes():
                    return []
                return [os.fsdecode(name) for name in names]
        except UnkeyableError as error:
            return [error.data.get("name") or f"item {i}"]
        if len(now) != len(before):
            return [os.fsdecode(name) for name in names] or [f"item {i}"]
        pairs = zip(names, before, now, strict=True)
        return [os.fsdecode(name) for name, then, current in pairs if then != current]
