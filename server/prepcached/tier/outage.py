"""A service on another machine that may fail: when it is used, and how much jobs lose to it. Pure.

Invariant: jobs wait at most `LOST_S` in `LOST_SPAN_S` for a service that fails. After a failure it is not
used until it has answered a probe, for which no job waits. Where one more failure could cost jobs more than
that, they do without it until the span is over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

LOG = logging.getLogger(__name__)

LOST_S = 5.0
LOST_SPAN_S = 3600.0


class Outage:
    """The state of one service.

    Args:
        name: of the service, for people.
        meanwhile: what happens without it.
        retry_s: how long after a failure it is probed.
        longest_s: the longest that one more failure may cost a job.
        clock: seconds, monotonic.
    """

    def __init__(
        self, name: str, meanwhile: str, retry_s: float, longest_s: float, clock: Callable[[], float]
    ) -> None:
        self.failures = 0
        self.last_failure = ""
        self._name = name
        self._meanwhile = meanwhile
        self._retry_s = retry_s
        self._longest_s = longest_s
        self._clock = clock
        self._is_on = False
        self._probe_at = float("-inf")
        self._lost: deque[tuple[float, float]] = deque()

    @property
    def is_on(self) -> bool:
        """Whether it failed, and has not answered since."""
        return self._is_on

    @property
    def is_usable(self) -> bool:
        """Whether a job may wait for it."""
        return not (self._is_on or self.is_costly)

    @property
    def is_costly(self) -> bool:
        """Whether jobs have lost so much to it that they no longer wait for it."""
        while self._lost and self._lost[0][0] < self._clock() - LOST_SPAN_S:
            self._lost.popleft()
        return sum(seconds for _, seconds in self._lost) + self._longest_s > LOST_S

    @property
    def is_due(self) -> bool:
        """Whether it should be probed now."""
        return self._is_on and self._clock() >= self._probe_at

    def note_lost(self, seconds: float) -> None:
        """A job waited so long for nothing."""
        self._lost.append((self._clock(), seconds))

    def note_failure(self, error: Exception) -> None:
        """It failed. Logged once for each outage."""
        self.failures += 1
        self.last_failure = str(error)
        self._probe_at = self._clock() + self._retry_s
        if not self._is_on:
            LOG.warning("%s cannot be used (%s): %s", self._name, error, self._meanwhile)
        self._is_on = True

    def note_answer(self) -> None:
        """It answered."""
        if self._is_on:
            LOG.info("%s answers again", self._name)
        self._is_on = False
