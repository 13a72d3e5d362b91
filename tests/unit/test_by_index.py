"""Finding the data set that a DataLoader worker named, among those of this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch._utils import ExceptionWrapper

from prepcache.batching import collation


class Copy:
    """A data set of some samples, as the worker's batches name it."""

    opened_in = 0
    __hash__ = None  # type: ignore[assignment]  # as of a dataclass

    def __init__(self, token: str, count: int) -> None:
        self.token, self.count = token, count
        collation.receives(self)

    def __len__(self) -> int:
        return self.count

    def is_known_to_parent(self) -> bool:
        return True

    def gathered(self, positions: Any) -> list[Any]:
        return [(self.count, int(at)) for at in positions]


def arrive(token: str, count: int) -> Any:
    raw = np.array([2, 0], np.uint8).tobytes()
    return collation.arrived(token, count, "B", raw, list, 0)


@pytest.mark.parametrize("counts", [(3, 4), (4, 3)])
def test_a_batch_is_of_the_copy_of_its_length(counts: tuple[int, int]) -> None:
    kept = [Copy("two copies", count) for count in counts]
    assert [arrive("two copies", one.count)[0][0] for one in kept] == list(counts)


def test_a_batch_of_no_copy_says_what_to_do() -> None:
    kept = Copy("one copy", 3)
    for token, count, advice in (("one copy", 5, "start a new epoch"), ("no copy", 3, "keep the data set")):
        failed = arrive(token, count)
        assert isinstance(failed, ExceptionWrapper) and advice in str(failed.exc_msg)
    assert len(kept) == 3
