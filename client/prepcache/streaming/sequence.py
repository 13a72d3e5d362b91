"""A sequence of items that is read as a stream: a data set of which each worker and rank is given a share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prepcache.dataset import CachedDataset
from prepcache.report import Report
from prepcache.streaming.sharding import Ranks, Split, batch_here


class Listed:
    """What a `CachedIterableDataset` is over a sequence.

    Args:
        ds: the items, opened.
    """

    def __init__(self, ds: CachedDataset[Any]) -> None:
        self.ds = ds

    def length(self, ranks: Ranks) -> int:
        """How many samples the workers of a rank give together.

        Raises:
            TypeError: the items expand, and how many samples those of a rank give depends on its workers.
        """
        if self.ds.is_expanded:
            raise TypeError(f"{self.ds.name}: a stream with expand=True has no length")
        return len(range(ranks.rank, len(self.ds.items), ranks.ranks))

    def samples(self, split: Split) -> Iterator[Any]:
        """The samples of a share of the items, from the beginning."""
        batch = 1 if self.ds.is_expanded else batch_here()  # how many samples an item has, no batch tells
        yield from self.ds.samples_of(split.of(len(self.ds.items), batch))

    def report(self) -> Report:
        """As the data set's."""
        return self.ds.report()
