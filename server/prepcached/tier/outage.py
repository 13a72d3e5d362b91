"""A service on another machine that may fail: when it is used, and how much jobs lose to it.

Invariant: jobs wait at most `LOST_S` in `LOST_SPAN_S` for a service that fails. After a failure it is used
again once it has answered a question for which no job waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

LOG = logging.getLogger(__name__)

LOST_S = 5.0
LOST_SPAN_S = 3600.0
LONGEST_S = 2.0  # the longest that one failure costs a job
TICK_S = 0.5


class Outage:
    """The state of one service; `meanwhile` says what happens without it."""

    def __init__(self, name: str, meanwhile: str, retry_s: float, clock: Callable[[], float]) -> None:
        self.failures = 0
        self.last_failure = ""
        self.is_on = False  # whether it failed, and has not answered since
        self.was_asked = asyncio.Event()
        self._name = name
        self._meanwhile = meanwhile
        self._retry_s = retry_s
        self._clock = clock
        self._ask_at = float("inf")
        self._lost: list[tuple[float, float]] = []

    @property
    def is_usable(self) -> bool:
        since = self._clock() - LOST_SPAN_S
        self._lost = [(at, seconds) for at, seconds in self._lost if at > since]
        return not self.is_on and sum(seconds for _, seconds in self._lost) + LONGEST_S <= LOST_S

    def note_lost(self, since: float) -> None:
        """A job waited in vain since then. What several wait for at the same time is lost once."""
        now = self._clock()
        if self._lost:
            since = max(since, self._lost[-1][0])
        self._lost.append((now, now - since))

    def note_failure(self, error: Exception) -> None:
        """Logged once for each outage."""
        self.failures += 1
        self.last_failure = str(error)
        if not self.is_on:
            LOG.warning("%s cannot be used (%s): %s", self._name, error, self._meanwhile)
        self.is_on = True
        self._ask_at = self._clock() + self._retry_s

    def note_answer(self) -> None:
        if self.is_on:
            LOG.info("%s answers again", self._name)
        self.is_on = False

    async def watch(self, ask: Callable[[], Awaitable[object]], every_s: float = float("inf")) -> None:
        """Asks it while it fails, until cancelled; and so often while it answers."""
        if every_s < float("inf"):
            self._ask_at = self._clock()
        while True:
            if self._clock() >= self._ask_at:
                try:
                    await ask()
                except Exception as error:
                    LOG.debug("%s was asked in vain", self._name, exc_info=error)
                    self.note_failure(error)
                else:
                    self.note_answer()
                    self._ask_at = self._clock() + every_s
                self.was_asked.set()
            await asyncio.sleep(TICK_S)
