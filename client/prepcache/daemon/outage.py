"""The watch: in an outage a thread asks the daemon whether it answers, and ends the outage when it does.

While a process holds the daemon's socket, the daemon lives: it starts, is stopped, or is busy. Then one
request waits for its answer, so that the outage ends in the moment in which it comes. Where nobody listens,
the thread looks again several times a second, and starts the user's own daemon as a job would.

Invariants:
    1. The job waits for nothing of it: the thread waits on its own time, and ends with the process.
    2. An outage ends only when the daemon has answered, and then once more within `PROMPT_S`.
    3. The session goes on with its leases and holds. If the daemon has forgotten it, a new one is opened by
       the first request, as after any restart.
    4. What this job's own daemon needs for its start is nobody's fault: nothing is said of it.

Not here: when an outage begins and what it may cost (wait_budget.py).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING

from prepcache.daemon import waits
from prepcache.errors import DaemonUnreachable, PrepcacheError

if TYPE_CHECKING:
    from prepcache.daemon.session import Session


log = logging.getLogger("prepcache")


class Watch:
    """The thread of one session; there is none before an outage."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> bool:
        """Starts the thread; False if it runs. Where none can be started, nobody looks."""
        with self._lock, contextlib.suppress(RuntimeError):
            if self._thread is None or not self._thread.is_alive():
                self._stop, self._is_over = threading.Event(), threading.Event()
                self._thread = threading.Thread(
                    target=_run, args=(self._session, self._stop, self._is_over), name="prepcache-watch",
                    daemon=True,
                )  # fmt: skip
                self._thread.start()
                return True
        return False

    def stop(self) -> None:
        """Lets the thread end; does not wait for it."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Waits until the outage is over; whether it is, or nobody looks any more."""
        return self._is_over.wait(seconds)

    @property
    def is_me(self) -> bool:
        """Whether the caller is the thread."""
        return self._thread is threading.current_thread()


def _run(kept: weakref.ref[Session], stop: threading.Event, is_over: threading.Event) -> None:
    """The thread's life: until the outage is over, or the session is closed or collected."""
    pause_s = waits.LOOK_FIRST_S
    try:
        while not stop.wait(pause_s):
            session = kept()
            if session is None or not session.is_away:
                return
            if _answers(session):
                session.come_back()
                return
            del session
            pause_s = min(2 * pause_s, waits.LOOK_LONGEST_S)
    except Exception:
        log.exception("prepcache: internal error while looking for the daemon")
    finally:
        is_over.set()


def _answers(session: Session) -> bool:
    """Whether the daemon answers, and promptly when it is asked once more."""
    try:
        for wait_s in (waits.LISTEN_S, waits.PROMPT_S):
            session.client.transport.call("GET", "/healthz", limit_s=wait_s)
    except DaemonUnreachable as error:
        if error.data.get("why") == "absent":
            session.start_again()
    except PrepcacheError:
        pass
    else:
        return True
    return False
