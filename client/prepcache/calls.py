"""Calls of the preprocessing function: an item goes in, parts of samples come out, timed.

A part is all samples of an item, or, where an item expands to more than `PART_BYTES`, some of them.

Invariants:
    1. The parts of one item come in order, and the last one says so.
    2. A function that raises gives a last part with the error in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PART_BYTES = 32 << 20
"""Samples of one item that are handed over at once; bounds what an item that expands holds in memory."""


@dataclass(slots=True)
class Part:
    """Samples of one distinct item.

    Args:
        cost_s: seconds inside the function for this part.
        observed: inputs that the function was seen to take beside its item.
        drawn: global random generators that it drew from.
    """

    index: int
    samples: list[Any]
    is_last: bool
    cost_s: float
    observed: list[dict[str, Any]] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What is called: the function, its config, and how an item is handed to it. Picklable if they are.

    Args:
        load: what the function receives for an item (its path, or its contents).
        watch: makes the watcher that notes what the function reads and draws; see `watched.py`.
    """

    function: Callable[..., Any]
    config: Mapping[str, Any]
    is_expanded: bool = False
    load: Callable[[Any], Any] | None = None
    watch: Callable[[], Any] | None = None

    def call(self, item: Any) -> list[Any]:
        """All samples of one item.

        Raises:
            Exception: what the function raises.
        """
        value = item if self.load is None else self.load(item)
        made = self.function(value, **self.config)
        return list(made) if self.is_expanded else [made]

    def parts(self, index: int, item: Any) -> Iterator[Part]:
        """The parts of one item; an error ends them."""
        watcher = None if self.watch is None else self.watch()
        began = time.perf_counter()
        try:
            if watcher is None:
                yield from self._parts(index, item, began)
                return
            with watcher.watching(item):
                yield from watcher.noted(self._parts(index, item, began))
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            yield Part(index, [], True, time.perf_counter() - began, error=error)

    def _parts(self, index: int, item: Any, began: float) -> Iterator[Part]:
        value = item if self.load is None else self.load(item)
        made = self.function(value, **self.config)
        if not self.is_expanded:
            yield Part(index, [made], True, time.perf_counter() - began)
            return
        samples: list[Any] = []
        nbytes = 0
        for sample in made:
            if nbytes >= PART_BYTES:
                now = time.perf_counter()
                yield Part(index, samples, False, now - began)
                samples, nbytes, began = [], 0, time.perf_counter()
            samples.append(sample)
            nbytes += weight(sample)
        yield Part(index, samples, True, time.perf_counter() - began)


def weight(sample: Any) -> int:
    """About how many bytes a sample holds."""
    if isinstance(sample, Mapping):
        return 64 + sum(map(weight, sample.values()))
    if isinstance(sample, tuple | list):
        return 64 + sum(map(weight, sample))
    nbytes = getattr(sample, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else 64 + (len(sample) if isinstance(sample, str | bytes) else 0)
