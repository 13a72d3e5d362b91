"""The backlog: how long a job waits for a commit before it goes on with what it has made.

A commit is waited for so that a job makes no more than its disk takes. A daemon that hangs in one, or a disk
that others keep busy, must not hold the job: it has its samples, and background_commit.py goes on.

Invariants:
    1. As long as one commit of this process is left behind, no other is waited for: a daemon that
       hangs in one hangs in the next.
    2. What a process loses to a daemon of which it knows nothing is below promise 2's 5 s: 4.5 s for the
       largest batch. One that was seen to be slow is waited for at its own speed, but not until its commit
       is given up. What commits take beyond the time of their bytes is charged to the wait budget, and a job
       that has spent that waits for none of them.
    3. A process that ends waits for all that it left behind together for no longer than `GOODBYE_S`.

Locking: `_lock` guards all of it; nothing waits with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prepcache import forks
from prepcache.daemon import waits
from prepcache.daemon.transfer import commit_limit_s
from prepcache.forks import ForkLock
from prepcache.protocol.units import count_text

TELLING_BYTES = 4 << 20
"""A smaller commit tells nothing of speed."""


class Backlog:
    """The commits of one process that are waited for no more, and how fast others were.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = ForkLock()
        self._left: set[object] = set()
        self._bytes_per_s = float(waits.FIRST_BYTES_PER_S)
        self._ends_at: float | None = None
        forks.note(self)

    def allowed_s(self, nbytes: int, spare_s: float) -> float:
        """How long a commit of so many bytes may be waited for.

        Args:
            spare_s: what is left of the process's wait budget for it.
        """
        with self._lock:
            if self._left:
                return 0.0
            allowed_s = max(waits.FREE_S, min(waits.SPARE_S, spare_s)) + self._work_s(nbytes)
        return min(allowed_s, commit_limit_s(nbytes) - waits.FREE_S)

    def beyond_s(self, nbytes: int, seconds: float) -> float:
        """What a commit of so many bytes, which was waited for so long, took beyond the time of its bytes."""
        with self._lock:
            return max(0.0, seconds - waits.FREE_S - self._work_s(nbytes))

    def _work_s(self, nbytes: int) -> float:
        return waits.SLOW_FACTOR * nbytes / self._bytes_per_s

    def note_speed(self, nbytes: int, seconds: float) -> None:
        """A commit of so many bytes took so long."""
        if nbytes >= TELLING_BYTES and seconds > 0:
            with self._lock:
                self._bytes_per_s = min(
                    waits.FIRST_BYTES_PER_S, max(waits.SLOWEST_BYTES_PER_S, nbytes / seconds)
                )

    def leave(self, commit: object) -> None:
        """A commit is waited for no more."""
        with self._lock:
            self._left.add(commit)

    def end(self, commit: object) -> None:
        """One that was left behind has ended, in whatever way."""
        with self._lock:
            self._left.discard(commit)

    def goodbye_s(self) -> float:
        """What is left of the time that a process waits at its end, from the first call on."""
        with self._lock:
            if self._ends_at is None:
                self._ends_at = self._clock() + waits.GOODBYE_S
            return max(0.0, self._ends_at - self._clock())

    def after_fork(self) -> None:
        """In a child: the threads that commit are its parent's, and so is what they have in hand."""
        self._left, self._ends_at = set(), None


BACKLOG = Backlog()


def behind_text(left: int) -> str:
    """What becomes of so many items whose commits were left behind."""
    which = count_text(left, "item is", "items are")
    return f"the daemon is slow to store samples: {which} waiting in temporary files, the job goes on"
