"""The last day in numbers, for the charts of the dashboard; pure, with the clock given.

Invariants:
    1. It takes bounded memory: a sample a minute for a day.
    2. Samples are cumulative counters, so that a chart of any span is a difference. After a restart they
       go on where the last sample that the index kept ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

SAMPLE_S = 60.0
KEPT = 24 * 60 + 1
WIDTH, HEIGHT = 300, 48
"""Of a chart, in the units of its SVG."""


class Sample(NamedTuple):
    """Counters since the daemon's start, and the bytes on disk, at a moment in seconds since the epoch."""

    at: float
    hit_items: float
    miss_items: float
    saved_s: float
    disk_bytes: float


class Chart(NamedTuple):
    """Bars over a span: an SVG path in WIDTH x HEIGHT, and the largest value, if there is any."""

    path: str
    peak: float | None


class History:
    """Samples, the oldest first."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._before = Sample(0.0, 0.0, 0.0, 0.0, 0.0)

    def resume(self, kept: Iterable[Sample]) -> None:
        """Goes on from the samples of the daemon before this one."""
        self._samples.extend(kept)
        if self._samples:
            self._before = self._samples[-1]

    def add(self, sample: Sample) -> Sample:
        """Adds what was counted since the start; returns it as it is to be kept."""
        whole = self._whole(sample)
        self._samples.append(whole)
        return whole

    def _whole(self, now: Sample) -> Sample:
        before = self._before
        return now._replace(
            hit_items=now.hit_items + before.hit_items,
            miss_items=now.miss_items + before.miss_items,
            saved_s=now.saved_s + before.saved_s,
        )

    def hit_rate(self, now: Sample, span_s: float, buckets: int) -> Chart:
        """Share of the items that jobs asked for and found, 0 to 1."""

        def rate(old: Sample, new: Sample) -> float | None:
            hits, misses = new.hit_items - old.hit_items, new.miss_items - old.miss_items
            return hits / (hits + misses) if hits + misses > 0 else None

        return self._chart(now, span_s, buckets, rate, top=1.0)

    def saved(self, now: Sample, span_s: float, buckets: int) -> Chart:
        """Seconds of preprocessing saved in each bucket."""
        return self._chart(now, span_s, buckets, lambda old, new: new.saved_s - old.saved_s or None)

    def disk(self, now: Sample, span_s: float, buckets: int) -> Chart:
        """Bytes on disk at the end of each bucket."""
        return self._chart(now, span_s, buckets, lambda _, new: new.disk_bytes or None)

    def _chart(
        self,
        now: Sample,
        span_s: float,
        buckets: int,
        value: Callable[[Sample, Sample], float | None],
        top: float | None = None,
    ) -> Chart:
        samples = [*self._samples, self._whole(now)]
        times = [one.at for one in samples]
        edges = [now.at - span_s * (buckets - i) / buckets for i in range(buckets + 1)]
        counts = [bisect_right(times, edge) for edge in edges]  # samples that there were by then
        values = [
            value(samples[max(0, old - 1)], samples[new - 1]) if new > max(1, old) else None
            for old, new in pairwise(counts)
        ]
        peak = max((one for one in values if one is not None), default=None)
        return Chart(_bars(values, top or peak or 1.0), peak)


def _bars(values: Sequence[float | None], top: float) -> str:
    step = WIDTH / len(values)
    return "".join(
        f"M{i * step:.1f} {HEIGHT}V{HEIGHT * (1 - min(1.0, one / top)):.1f}h{step * 0.8:.1f}V{HEIGHT}z"
        for i, one in enumerate(values)
        if one is not None
    )
