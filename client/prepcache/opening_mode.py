"""What the commands `prepcache fill` and `prepcache plan` change about data sets that a file opens.

A training script opens its data sets as always; inside `opened_as`, they prepare only a part of their items,
or nothing.

Invariants:
    1. The mode applies to the whole process, which is the command's: a script may open its data sets in a
       thread of its own.
    2. It applies to the user's data sets. `cached()` and the parts of a stream open whole and are prepared,
       since the script needs what they give to name its items.
    3. A data set whose samples are the items of another one is prepared whole when these are read, so that
       parts of the other one leave nothing out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prepcache.dataset import CachedDataset


@dataclass(frozen=True)
class OpeningMode:
    """How data sets are opened.

    Args:
        prepares: whether what is missing is preprocessed.
        shard, shards: of what is missing, only every `shards`-th item is preprocessed, beginning with number
            `shard` (from 0).
        opened: the data sets that were opened so.
    """

    prepares: bool = True
    shard: int = 0
    shards: int = 1
    opened: list[CachedDataset[Any]] = field(default_factory=list)

    def part_of(self, count: int) -> range | None:
        """The positions of this shard's items; None: all."""
        return None if self.shards == 1 else range(self.shard, count, self.shards)


_mode: OpeningMode | None = None


def opening_mode() -> OpeningMode | None:
    """How data sets are opened now; None in a training job."""
    return _mode


@contextlib.contextmanager
def opened_as(mode: OpeningMode) -> Iterator[None]:
    """Opens the data sets of this process so, in all its threads."""
    global _mode
    _mode = mode
    try:
        yield
    finally:
        _mode = None
