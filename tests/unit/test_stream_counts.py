"""Counts of a stream, over all its chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from prepcache.streaming.stream import Totals


def test_a_count_that_ends_another_epoch_counts_both() -> None:
    """The garbage collector may run anywhere, and end an epoch that notes what it has counted."""
    totals = Totals()

    class Chunk:
        noted = None

        def __init__(self, meanwhile: Callable[[], None]) -> None:
            counts = dict.fromkeys(("items", "hit", "computed", "waited", "declined", "bytes"), 1)
            report = SimpleNamespace(**counts, seconds=0.0, seconds_saved=0.0, why=self._why(meanwhile))
            self.samples = SimpleNamespace(report=lambda: report)

        def _why(self, meanwhile: Callable[[], None]) -> Iterator[str]:
            meanwhile()
            yield "why"

    inner: Any = Chunk(lambda: None)
    outer: Any = Chunk(lambda: totals.note(inner))
    totals.note(outer)
    assert totals.report([]).items == 2
