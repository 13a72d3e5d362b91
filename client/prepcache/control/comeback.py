"""The way back to a daemon that was given up: a thread looks for it, and takes it up when it answers.

A daemon that is restarted, or stands still for a while, would else be lost to a job for the rest of its life.

Invariants:
    1. Nothing of it is waited for by the job: the thread waits on its own time, and ends with the process.
    2. A daemon is taken up only if it answers within what the job may still lose to it.
    3. The session of before is not gone on with: it may have leases that nobody knows of any more.

Not here: when a daemon is given up, and how often it may come back (patience.py).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING

from prepcache.control.patience import RETURN_S
from prepcache.errors import PrepcacheError

if TYPE_CHECKING:
    from prepcache.control.session import Session

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
GOODBYE_S = 2.0

log = logging.getLogger("prepcache")


class Lookout:
    """The thread of one session; there is none before its daemon was given up."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Starts the thread, if it does not run; where none can be started, nobody looks."""
        with self._lock, contextlib.suppress(RuntimeError):
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=_run, args=(self._session, self._stop), name="prepcache-lookout", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Lets the thread end; does not wait for it."""
        self._stop.set()

    @property
    def is_me(self) -> bool:
        """Whether the caller is the thread."""
        return self._thread is threading.current_thread()


def _run(kept: weakref.ref[Session], stop: threading.Event) -> None:
    """The thread's life: until the daemon is taken up, or the session is closed or collected."""
    pause_s = FIRST_PAUSE_S
    while not stop.wait(pause_s):
        session = kept()
        if session is None or not session.patience.may_come_back:
            return
        try:
            if _answers(session):
                _take_up(session)
                return
        except Exception:
            log.exception("prepcache: looking for the daemon failed in prepcache itself")
            return
        del session
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _answers(session: Session) -> bool:
    try:
        session.client.transport.call("GET", "/healthz", limit_s=RETURN_S)
    except PrepcacheError:
        return False
    return True


def _take_up(session: Session) -> None:
    header = session.header
    if header is not None:
        path = f"/v1/sessions/{header.partition('.')[0]}"
        with contextlib.suppress(PrepcacheError):
            session.client.transport.call("DELETE", path, limit_s=GOODBYE_S, session=header)
    session.beat.stop()
    session.patience.come_back()
    log.warning("prepcache: %s: the daemon answers again, and is used again", session.client.url)
    if header is not None:
        with contextlib.suppress(PrepcacheError):
            session.reopen(header)
