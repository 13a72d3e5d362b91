"""How long a job waits for its daemon, and for what: one table, in seconds where the name says so; and the
wait budget: the seconds that a process may lose, in all, to a daemon that is absent, slow or hung.

The budget is a circuit breaker. Closed: requests are sent, and what they wait for in vain is taken off it.
Open (an outage): every request fails at once, until a thread (heartbeat.py) finds that the daemon answers.

Invariants:
    1. The sum of all foreground waiting that the daemon cannot account for stays below the budget. A first
       outage may cost `FIRST_SHARE` of it, each later one half of what is left. Below `LEAST_S`, it is final.
    2. Not charged: a long poll that is answered in time, the first `FREE_S` of every answered request, and
       the time for which this process itself was stopped.
    3. One warning an outage, of all processes that fork from one another, naming the daemon and what happens
       now; none where the caller excuses it.
    4. Background threads wait on their own time (`on_own_time`), and people as long as they wish: neither
       spends the budget, nor waits for it (`OwnTime`).

Locking: `_lock` guards the counters and the outage; it is never held while waiting.
"""

from __future__ import annotations

import logging
import math
import mmap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from prepcache import forks
from prepcache.errors import DaemonUnreachable
from prepcache.forks import ForkLock

T = TypeVar("T")
Start = Callable[[], bool] | None
Excuse = Callable[[], str] | None

# What a job may lose
BUDGET_S = 5.0  # promise 2: a job loses at most this to its daemon
FIRST_SHARE = 0.6  # of the budget a first outage may cost: a restart takes two or three seconds
LEAST_S = 0.125  # the least that an outage may cost: on a busy machine an answer takes a tenth of a second
FREE_S = 0.25  # an answer within this is no loss: a round trip takes 1 ms, on a busy machine 100
STALL_S = 1.0  # an attempt that overran its limit by this was held up on our side: Ctrl-Z, a busy machine
DROPS_S = 2.0  # a request that was declined waits so long for another thread to drop holds
RETRY_S = 0.1  # the pause before a failed request is repeated

# How long one request may take: client.py
CALL_S = 10.0  # a call of `Client`, for a person
VERIFY_S = 24 * 3600.0  # verifying reads every byte of the store; somebody asked for that and watches

# In an outage: heartbeat.py
LOOK_S = 0.2  # the pause before the daemon is looked for again
PROMPT_S = 1.0  # limit of a health check, after which an outage is over

# At the end of a process: session.py
CLOSE_S = 0.5  # the goodbye at exit: the daemon sees the end of the process anyway
HANDOVER_S = 10.0  # in all, for a daemon that starts to take what the process has not committed
ALIVE_S = 0.5  # how often it looks whether the daemon lives

# The beat: heartbeat.py
BEAT_LIMIT_S = 10.0  # one beat; it waits on its own time
REOPEN_S = 2.0  # for opening a session in place of a forgotten one; the foreground may have to wait for that
BEAT_SHORTEST_S = 0.05
BEAT_LONGEST_S = 30.0  # between these is the pause that a daemon may ask for

# Bytes to the daemon and from it: transfer.py, http.py
COMMITTER_S = 5.0  # for a thread that commits; nobody else waits for it
TRANSFER_LIMIT_S = 600.0  # a transfer takes no longer
COMMIT_LIMIT_S = 10.0
"""A commit that takes longer, beyond its bytes at `SLOWEST_COMMIT`, hangs, and others wait for its items. One
that is merely slow ends all the same, and is found when it is asked for again."""
SLOWEST_COMMIT = 4 << 20  # bytes/s; a slow disk, at a good moment, takes 10 s for 128 MB
SILENCE_S = 1.25  # of a transfer, after which the daemon hangs; twice this is less than a first outage
SLOWEST_TRANSFER = 2 << 20  # bytes/s of up- and downloads below which a daemon counts as hung
MAX_IDLE_S = 4.0  # shorter than servers keep idle connections (uvicorn: 5 s)

# The daemon on demand: launcher.py
STARTING_S = 30.0  # a daemon that was started longer ago and does not answer hangs
FAILED_START_S = 15.0  # a daemon that ended so soon after its start is started once more, if it says no error

# How long a commit is waited for: fill/commit.py
SPARE_S = 2.5  # what commits may take beyond their bytes: a sync waits for others' writes
COMMIT_BYTES_PER_S = 32 << 20  # the speed of a slow disk that others use, too

GOES_ON = "this job goes on without its cache and preprocesses by itself"
UNTIL_IT_ANSWERS = "this job preprocesses by itself until it answers"

_log = logging.getLogger("prepcache")


class WaitBudget:
    """One budget of waiting, and the breaker that it opens."""

    def __init__(
        self,
        budget_s: float = BUDGET_S,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.budget_s = budget_s
        self._clock = clock
        self._sleep = sleep
        self._lock = ForkLock()
        self._spent_s = 0.0
        self._allowed_s = budget_s * FIRST_SHARE
        self._outage: str | None = None
        # 1: an outage was told, by any of the processes that fork from this one
        self._is_told = mmap.mmap(-1, 1)
        self.warned = ""  # the message of the one warning of an outage; empty before it
        self.has_met = False  # whether the daemon has ever answered this process
        forks.note(self)

    def after_fork(self) -> None:
        """A worker does not wait for what another one of its job has waited for: it looks (heartbeat.py)."""
        if not self.has_met:  # it is a job of its own
            self._is_told = mmap.mmap(-1, 1)
        elif self._is_told[0] and self._outage is None:
            self._outage = "the daemon has not answered another process of this job"

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._allowed_s - self._spent_s)

    @property
    def is_gone(self) -> bool:
        return self._outage is not None

    @property
    def is_away(self) -> bool:
        """Whether there is an outage that ends when the daemon answers."""
        return self._outage is not None and self.budget_s - self._spent_s >= LEAST_S

    def left(self) -> dict[str, Any]:
        """What a spawned process begins with, as a forked one does."""
        with self._lock:
            return {} if self._spent_s == math.inf else {name: getattr(self, name) for name in _LEFT}

    def begin_with(self, left: Mapping[str, Any]) -> None:
        """Goes on where another process was, unless this one has asked the daemon itself."""
        with self._lock:
            if not (self.has_met or self.is_gone):
                vars(self).update(left)

    def come_back(self) -> None:
        with self._lock:
            if self.is_away:
                self._outage, self.warned, self.has_met, self._is_told[0] = None, "", True, 0
                left_s = self.budget_s - self._spent_s
                self._allowed_s = self._spent_s + max(LEAST_S, left_s / 2)

    def note_answer(self) -> None:
        self.has_met, self._is_told[0] = True, 0

    def charge(self, seconds: float) -> None:
        with self._lock:
            self._spent_s += max(0.0, seconds)

    def acquire(self, lock: threading.Lock) -> bool:
        started, limit_s = self._clock(), self.remaining_s
        is_mine = lock.acquire(timeout=limit_s)
        self._charge_attempt(started, limit_s, FREE_S if is_mine else 0.0)
        return is_mine

    def give_up(
        self, url: str, why: str, *, is_final: bool = True, is_quiet: bool = False
    ) -> DaemonUnreachable:
        with self._lock:
            is_news, is_told = self._outage is None or is_final, False
            if is_news:
                self._outage = why
            if is_final:
                self._spent_s = math.inf
            elif not is_quiet:
                is_told, self._is_told[0] = self._is_told[0] == 1, 1
        if is_news and not is_quiet:
            self.warn(url, why, GOES_ON if is_final else UNTIL_IT_ANSWERS, is_told=is_told)
        return DaemonUnreachable(why, url=url, why="gone")

    def warn(self, url: str, message: str, consequence: str = GOES_ON, *, is_told: bool = False) -> None:
        """Says `message`, the first time only; through logging, which never raises into the job."""
        with self._lock:
            if self.warned:
                return
            self.warned = message
        where = "" if url in message else f"{url}: "
        if not is_told:
            _log.warning("prepcache: %s%s; %s", where, message, consequence)

    def run(
        self,
        url: str,
        attempt: Callable[..., T],
        *,
        wait_s: float = 0.0,
        start: Start = None,
        excuse: Excuse = None,
    ) -> T:
        """Calls `attempt(limit_s=...)` until it answers or an outage begins, which raises
        `DaemonUnreachable`.

        Args:
            attempt: one exchange; raises `DaemonUnreachable` with `why`: "absent" (nobody listens), "broken"
                (closed, timed out), or "nonsense". Other errors are answers.
            wait_s: how long the daemon was asked to keep the request.
            start: starts the daemon where nobody listens; False says that this is not ours to do.
            excuse: why a daemon that was never met is not to be blamed, or ""; then nobody is warned.
        """
        while True:
            if self._outage is not None:
                raise DaemonUnreachable(self._outage, url=url, why="gone")
            started, limit_s, free_s = self._clock(), self.remaining_s + wait_s, wait_s + FREE_S
            try:
                answer = attempt(limit_s=limit_s)
                self.note_answer()
                return answer
            except DaemonUnreachable as error:
                free_s, failure = 0.0, error
            except Exception:
                self.has_met = True
                raise
            finally:
                self._charge_attempt(started, limit_s, free_s)
            self._note_failure(url, failure, start, excuse)
            paused_s = min(RETRY_S, self.remaining_s)
            self._sleep(paused_s)
            self.charge(paused_s)

    def _note_failure(self, url: str, error: DaemonUnreachable, start: Start, excuse: Excuse) -> None:
        """Begins an outage where another attempt is not worth it, or the budget is spent."""
        why = error.data.get("why")
        if why == "nonsense":
            raise self.give_up(url, error.message) from error
        if why == "absent":
            try:
                is_worth_waiting = (start is not None and start()) or self.has_met
            except DaemonUnreachable as told:
                raise self.give_up(url, told.message) from told
            if not is_worth_waiting:
                self.warn(url, error.message)
                raise error
        if self.remaining_s <= 0:
            excused = excuse() if excuse is not None and not self.has_met else ""
            lost = f"{error.message}, and this job has waited {self._spent_s:.1f} s for it in all"
            raise self.give_up(url, excused or lost, is_final=False, is_quiet=bool(excused)) from error

    def _charge_attempt(self, started: float, limit_s: float, free_s: float) -> None:
        took_s = self._clock() - started
        if took_s <= limit_s + STALL_S:  # else this process itself was stopped
            self.charge(took_s - free_s)


class OwnTime(WaitBudget):
    """Seconds that somebody waits on his own time: the last failure is raised, and nobody is warned."""

    def __init__(self, seconds: float, **clocks: Any) -> None:
        super().__init__(seconds, **clocks)
        self._allowed_s = seconds

    def _note_failure(self, url: str, error: DaemonUnreachable, start: Start, excuse: Excuse) -> None:
        why = error.data.get("why")
        if why == "nonsense" or self.remaining_s <= 0 or (why == "absent" and not (start and start())):
            raise error


_OWN_TIME = threading.local()


@contextmanager
def on_own_time(seconds: float) -> Iterator[None]:
    """In a thread that nobody waits for: each of its requests may wait so long, at nobody's cost."""
    before, _OWN_TIME.seconds = own_time(), seconds
    try:
        yield
    finally:
        _OWN_TIME.seconds = before


def own_time() -> float:
    """How long this thread may wait on its own time; 0 where somebody waits for it."""
    return getattr(_OWN_TIME, "seconds", 0.0)


_LEFT = ("_spent_s", "_allowed_s", "_outage", "warned", "has_met")
PROCESS = WaitBudget()
"""The one budget of this process. Another that is forked, or gets it, begins with what is left."""
