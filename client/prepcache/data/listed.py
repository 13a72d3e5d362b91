"""A sequence of items that is read as a stream: a data set whose share falls to each worker and rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prepcache.data.dataset import CachedDataset
from prepcache.data.split import Ranks, Split, batch_here


class Listed(CachedDataset[Any]):
    """What a `CachedIterableDataset` is over a sequence."""

    def length(self, ranks: Ranks) -> int:
        """How many samples the workers of a rank give together.

        Raises:
            TypeError: the items expand, and how many samples those of a rank give depends on its workers.
        """
        if self._is_expanded:
            raise TypeError(f"{self.name}: items that expand have no length in a stream")
        return len(range(ranks.rank, self._count, ranks.ranks))

    def samples(self, split: Split) -> Iterator[Any]:
        """The samples of a share of the items, from the beginning."""
        batch = 1 if self._is_expanded else batch_here()  # how many samples an item has, no batch tells
        yield from self._given(split.of(self._count, batch))
