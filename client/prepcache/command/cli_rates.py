"""What moved between looks at a daemon: rates of its counters, and how fast each job is. Pure.

Invariants:
    1. A rate of a counter is of one daemon's life: with a restarted one, counting begins anew.
    2. A job's pace goes by when it told how far it is (a beat each 5 s), not by when that was looked at.
    3. What is kept is bounded: looks of a minute, and of jobs only those that were there at the last look.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prepcache.protocol import inspection, wire

COUNTERS = ("found_items", "leased_items", "committed_items", "committed_bytes", "evictions")
MINUTE_S = 60.0
PACE_S = 30.0
"""Six beats: long enough for items of a second each, short enough to follow a job that slows down."""
SAME_S = 0.5
"""Times of one beat differ by less: the daemon tells them by the wall clock, and counts by another."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a daemon told at one moment.

    Args:
        at_s: seconds of the onlooker's monotonic clock.
        now: seconds since the epoch.
        url: where it listens.
        stats: its numbers by name; what is no number is left out (`numbers`).
    """

    at_s: float
    now: float
    url: str
    info: inspection.Info
    stats: Mapping[str, float]
    sessions: tuple[inspection.SessionSeen, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Of the counters, by name, in units a second; None before the second look at a daemon."""

    now: Mapping[str, float] | None = None
    minute: Mapping[str, float] | None = None


@dataclass(slots=True)
class _Pace:
    total: int = 0
    told: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, at: float, progress: wire.Progress) -> None:
        if self.told and (progress.done < self.told[-1][1] or progress.total != self.total):
            self.told.clear()
        self.total = progress.total
        if not self.told or at > self.told[-1][0] + SAME_S:
            self.told.append((at, progress.done))
        while len(self.told) > 2 and at - self.told[1][0] >= PACE_S:
            self.told.popleft()

    @property
    def items_per_s(self) -> float | None:
        if len(self.told) < 2:
            return None
        (began, before), (ended, after) = self.told[0], self.told[-1]
        return (after - before) / (ended - began)


class History:
    """The looks so far, as far as rates need them."""

    def __init__(self) -> None:
        self._life: tuple[int, float] | None = None
        self._counts: deque[tuple[float, Mapping[str, float]]] = deque()
        self._paces: dict[tuple[str, str], _Pace] = {}

    def note(self, look: Look) -> None:
        """Takes a look in; they come in order."""
        life = (look.info.pid, look.info.started_at)
        if life != self._life:
            self._life = life
            self._counts.clear()
        self._counts.append((look.at_s, {name: look.stats.get(name, 0.0) for name in COUNTERS}))
        while len(self._counts) > 2 and look.at_s - self._counts[1][0] >= MINUTE_S:
            self._counts.popleft()
        before, self._paces = self._paces, {}
        for session in look.sessions:
            for one in session.progress:
                pace = self._paces[session.session, one.recipe] = before.get(
                    (session.session, one.recipe), _Pace()
                )
                pace.note(session.seen_at, one)

    def rates(self) -> Rates:
        """Since the look before the last one, and over the last minute or as much of it as was seen."""
        if len(self._counts) < 2:
            return Rates()
        return Rates(self._since(self._counts[-2]), self._since(self._counts[0]))

    def items_per_s(self, session: str, recipe: str) -> float | None:
        """How fast a session is with a recipe; None where it has not told twice yet."""
        pace = self._paces.get((session, recipe))
        return None if pace is None else pace.items_per_s

    def _since(self, earlier: tuple[float, Mapping[str, float]]) -> Mapping[str, float]:
        (then_s, before), (now_s, after) = earlier, self._counts[-1]
        span_s = max(now_s - then_s, 1e-3)
        return {name: max(0.0, after[name] - before[name]) / span_s for name in COUNTERS}


def left_s(progress: wire.Progress, items_per_s: float | None) -> float | None:
    """Seconds until a job has all of a recipe's items; None where nothing tells."""
    return (progress.total - progress.done) / items_per_s if items_per_s else None


def numbers(stats: Mapping[str, Any]) -> dict[str, float]:
    """What of a daemon's answer is finite numbers."""
    return {
        name: value for name, value in stats.items() if type(value) in (int, float) and math.isfinite(value)
    }
