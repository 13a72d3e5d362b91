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
from prepcache.keys.files.stamps import mix_columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from prepcache.keys.item_batches import Batch
    from prepcache.keys.items import ItemHasher


class Stamps:
    """What tells whether items changed since they were digested.

    Attributes:
        typed_names: paths in items that named nothing when the data set was opened.
        files_read: how many files the stat cache did not know.
    """

    def __init__(
        self,
        hashes: NDArray[np.uint64],
        ends: NDArray[np.uint32],
        must_read: NDArray[np.bool_],
        digests: NDArray[np.uint8],
        items: Sequence[Any],
        hasher: ItemHasher,
    ) -> None:
        self._hashes = hashes
        self._ends = ends
        self._must_read = must_read
        self._digests = digests
        self._items = items
        self._hasher = hasher
        self.typed_names: list[str] = []
        self.files_read = 0

    def __len__(self) -> int:
        return len(self._digests)

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
                if not self._must_read[i] or self._hasher.read_again(item) == self._digests[i].tobytes():
                    return []
                return [os.fsdecode(name) for name in names]
        except UnkeyableError as error:
            return [error.data.get("name") or f"item {i}"]
        if len(now) != len(before):
            return [os.fsdecode(name) for name in names] or [f"item {i}"]
        pairs = zip(names, before, now, strict=True)
        return [os.fsdecode(name) for name, then, current in pairs if then != current]


class StampsBuilder:
    """Collects the snapshot, and the digests, batch by batch."""

    def __init__(self) -> None:
        self._slots = 0
        self._hashes: list[NDArray[np.uint64]] = []
        self._ends: list[NDArray[np.uint32]] = []
        self._racy: list[NDArray[np.bool_]] = []
        self._digests: list[bytes] = []
        self._files_read = 0
        self._missing: list[str] = []

    def add(
        self, batch: Batch, stamps: NDArray[np.int64], is_racy: NDArray[np.bool_], digests: list[bytes]
    ) -> None:
        import numpy as np

        ends = np.array(batch.ends, np.int64)
        racy_before = np.concatenate([[0], np.cumsum(is_racy)])
        starts = np.concatenate([[0], ends[:-1]])
        self._racy.append(racy_before[ends] > racy_before[starts])
        self._hashes.append(mix_columns(list(stamps.T)))
        self._ends.append((ends + self._slots).astype(np.uint32))
        self._slots += len(stamps)
        self._digests.append(b"".join(digests))
        self._files_read += batch.files_read
        self._missing.extend(map(os.fsdecode, batch.encoder.missing))

    def build(self, items: Sequence[Any], hasher: ItemHasher) -> tuple[NDArray[np.uint8], Stamps]:
        """The digests uint8[n, 32] and the snapshot."""
        import numpy as np

        digests = np.frombuffer(b"".join(self._digests), np.uint8).reshape(-1, DIGEST_BYTES)
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        ends = np.concatenate([np.empty(0, np.uint32), *self._ends])
        racy = np.concatenate([np.empty(0, np.bool_), *self._racy])
        if hasher.trust == "content":
            racy[:] = True
        stamps = Stamps(hashes, ends, racy, digests, items, hasher)
        stamps.files_read = self._files_read
        stamps.typed_names = self._missing
        return digests, stamps
