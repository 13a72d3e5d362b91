"""Patience: the seconds that a process may lose, in all, to a daemon that is absent, slow or hung.

Invariants:
    1. The sum of all foreground waiting that the daemon cannot account for stays below the budget, over
       the whole life of the process and all its data sets. Most of it may go in a first outage; what is left
       is for later ones, `RETURN_S` each. When it is spent the daemon counts as gone, until it is seen to
       answer again (comeback.py); when nothing is left, for good.
    2. A long poll that is answered in time, and the first `FREE_S` of every answered request, are
       accounted for: else an honest daemon would be given up after some thousand requests. So is the
       time for which this process itself was stopped.
    3. One warning an outage, naming the daemon and what happens now.

Locking: `_lock` guards the two counters; it is never held while waiting.
Not here: background threads. They wait on their own time (`on_own_time`), and must neither spend nor wait for
patience: many that wait side by side would have spent it on a daemon that is only busy with them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from prepcache.errors import DaemonUnreachable

T = TypeVar("T")

_ALL: weakref.WeakSet[Patience] = weakref.WeakSet()

BUDGET_S = 5.0
"""Promise 2: a job loses at most this to its daemon."""
FIRST_SHARE = 0.9
"""How much of the budget may go before the daemon was gone once."""
FREE_S = 0.25
"""An answer within this is no loss: a round trip takes 1 ms, on a box whose cores are all busy 100."""
RETURN_S = FREE_S / 2
"""What may be lost to a daemon that came back, before it is gone again."""
STALL_S = 1.0
"""An attempt that overran its own limit by this was held up on our side: Ctrl-Z, SIGSTOP, a starved box."""
MAX_STALLS = 10
"""Held up more often than this, waiting counts whoever is to blame: promise 2 goes before promise 3."""
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.4

_log = logging.getLogger("prepcache")


class Patience:
    """One budget of waiting.

    Args:
        budget_s: how much may be lost in all.
        consequence: what happens when the daemon is given up; it ends the warning. "" warns nobody, and
            stands for somebody who does not come back to it.
        clock: monotonic seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        budget_s: float = BUDGET_S,
        *,
        consequence: str = "this job goes on without its cache and preprocesses by itself",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.budget_s = budget_s
        self._consequence = consequence
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._spent_s = 0.0
        self._allowed_s = budget_s * (FIRST_SHARE if consequence else 1.0)
        self._gone: str | None = None
        self._is_final = False
        self.warned = ""
        """The message of the one warning of an outage; empty before it."""
        self._has_met = False
        self._stalls = 0
        _ALL.add(self)

    @property
    def remaining_s(self) -> float:
        """What may be lost from now on, before the daemon is given up."""
        return max(0.0, self._allowed_s - self._spent_s)

    @property
    def is_gone(self) -> bool:
        """Whether the daemon was given up."""
        return self._gone is not None

    @property
    def may_come_back(self) -> bool:
        """Whether it was given up until it answers again."""
        is_left = self.budget_s - self._spent_s >= RETURN_S
        return self._gone is not None and not self._is_final and is_left and bool(self._consequence)

    def come_back(self) -> None:
        """It answers again."""
        with self._lock:
            if self.may_come_back:
                self._gone, self.warned = None, ""
                self._allowed_s = self._spent_s + RETURN_S

    def charge(self, seconds: float) -> None:
        """Takes seconds that were waited in vain off the budget."""
        with self._lock:
            self._spent_s += max(0.0, seconds)

    def give_up(self, url: str, why: str, *, is_final: bool = True) -> DaemonUnreachable:
        """Counts the daemon as gone from now on, warns if nobody has, and returns the error to raise."""
        with self._lock:
            self._gone = self._gone or why
            self._is_final = self._is_final or is_final
        self.warn(url, why)
        return DaemonUnreachable(why, url=url, why="gone")

    def warn(self, url: str, message: str) -> None:
        """Says `message`, the first time only; through logging, which never raises into the job."""
        with self._lock:
            if self.warned or not self._consequence:
                return
            self.warned = message
        where = "" if url in message else f"{url}: "
        _log.warning("prepcache: %s%s; %s", where, message, self._consequence)

    def run(
        self,
        url: str,
        attempt: Callable[[float], T],
        *,
        wait_s: float = 0.0,
        start: Callable[[], bool] | None = None,
    ) -> T:
        """Calls `attempt(limit_s)` until it answers or the budget is spent.

        Args:
            url: the daemon's, for messages.
            attempt: one exchange that takes at most the seconds given to it; raises `DaemonUnreachable`
                with `why`: "absent" (nobody listens), "broken" (closed, timed out, 5xx from a proxy),
                or "nonsense" (an answer that no daemon gives). Other errors are answers, and pass.
            wait_s: how long the daemon was asked to keep the request.
            start: starts the daemon where nobody listens; False says that this is not ours to do. Its
                `DaemonUnreachable` says that it cannot be started, and is final, unless `why` is "starting".

        Raises:
            DaemonUnreachable: at once where the daemon was given up before, or was never met and is not
                there; else when the budget is spent.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            if self._gone is not None:
                raise DaemonUnreachable(self._gone, url=url, why="gone")
            started, limit_s = self._clock(), self.remaining_s + wait_s
            try:
                answer = attempt(limit_s)
            except DaemonUnreachable as error:
                if not _OWN_TIME.is_waited_for():
                    raise
                self._charge_attempt(started, limit_s, 0.0)
                why = error.data.get("why")
                if why == "nonsense":
                    raise self.give_up(url, error.message) from error
                if self.remaining_s <= 0:
                    lost = f" (waited {self._spent_s:.1f} s in all)"
                    if self._consequence:
                        lost = f", and this job has waited {self._spent_s:.1f} s for it in all"
                    raise self.give_up(url, error.message + lost, is_final=False) from error
                if why == "absent" and not self._is_worth_waiting(url, start):
                    self.warn(url, error.message)
                    raise
                paused_s = min(pause_s, self.remaining_s)
                self._sleep(paused_s)
                self.charge(paused_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except Exception:
                self._has_met = True
                self._charge_attempt(started, limit_s, wait_s + FREE_S)
                raise
            else:
                self._has_met = True
                self._charge_attempt(started, limit_s, wait_s + FREE_S)
                return answer

    def _is_worth_waiting(self, url: str, start: Callable[[], bool] | None) -> bool:
        """Whether a daemon that is not there may be soon: it was there before, or is being started."""
        try:
            return (start is not None and start()) or self._has_met
        except DaemonUnreachable as error:
            is_final = error.data.get("why") != "starting"
            raise self.give_up(url, error.message, is_final=is_final) from error

    def _charge_attempt(self, started: float, limit_s: float, free_s: float) -> None:
        if not _OWN_TIME.is_waited_for():
            return
        took_s = self._clock() - started
        if took_s > limit_s + STALL_S and self._stalls < MAX_STALLS:
            self._stalls += 1
            return
        self.charge(took_s - free_s)


def _always() -> bool:
    return True


class _OwnTime(threading.local):
    seconds = 0.0
    is_waited_for: Callable[[], bool] = staticmethod(_always)


_OWN_TIME = _OwnTime()


@contextmanager
def on_own_time(seconds: float) -> Iterator[None]:
    """In a thread that nobody waits for: each of its requests may wait so long, at nobody's cost."""
    before, _OWN_TIME.seconds = _OWN_TIME.seconds, seconds
    try:
        yield
    finally:
        _OWN_TIME.seconds = before


@contextmanager
def charged_while(is_waited_for: Callable[[], bool]) -> Iterator[None]:
    """In a thread that somebody may cease to wait for: then it charges nothing, and gives up nobody."""
    before, _OWN_TIME.is_waited_for = _OWN_TIME.is_waited_for, is_waited_for
    try:
        yield
    finally:
        _OWN_TIME.is_waited_for = before


def own_time() -> float:
    """How long this thread may wait on its own time; 0 where somebody waits for it."""
    return _OWN_TIME.seconds


PROCESS = Patience()
"""The one budget of this process. A forked child starts with what its parent had left."""


def _after_fork_in_child() -> None:
    for patience in list(_ALL):
        patience._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
