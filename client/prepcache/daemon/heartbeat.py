"""The heartbeat of a session: what it tells the daemon every few seconds, and what it hears back. In an
outage the same thread asks whether the daemon answers, starts the user's own one, and ends the outage.

Invariants:
    1. The thread waits on its own time, and says and raises nothing: a job must not notice it.
    2. What is to be told is kept until a beat that told it was answered.
    3. An outage ends only when the daemon has answered within `PROMPT_S`.

Locking: `_lock` guards the sets; callbacks and requests run without it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prepcache.daemon import waits
from prepcache.digests import Digest, RecipeDigest
from prepcache.errors import DaemonUnreachable, PrepcacheError, UnknownSession
from prepcache.protocol import wire
from prepcache.protocol.units import shortened

if TYPE_CHECKING:
    from prepcache.daemon.session import Session
    from prepcache.keys.recipes import Recipe

log = logging.getLogger("prepcache")


class Heartbeat:
    """Thread, outbox and inbox of one session; `is_back` is set when an outage is over."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self.tells = 0
        """How often drops were told."""
        self._stop = threading.Event()
        self._woken = threading.Event()
        self.is_back = threading.Event()
        self.thread: threading.Thread | None = None
        self._pause_s = waits.BEAT_LONGEST_S
        self._progress: dict[str, wire.Progress] = {}
        self._used: set[str] = set()
        self.dropped: set[str] = set()
        self._lost: set[str] = set()
        self.found = (0, 0.0)
        self.held: set[str] = set()

    after_fork = _begin  # in a child: no thread, nothing held, nothing to tell

    def start(self, every_s: float) -> None:
        """Starts the thread, if it does not run. Raises RuntimeError where there are too many."""
        self._pause_s = min(max(every_s, waits.BEAT_SHORTEST_S), waits.BEAT_LONGEST_S)
        with self._lock:
            if self.thread is None or not self.thread.is_alive():
                self._stop = threading.Event()
                thread = threading.Thread(
                    target=_run, args=(self._session, self, self._stop), name="prepcache-beat", daemon=True
                )
                thread.start()
                self.thread = thread

    def look(self) -> None:
        """Has the thread look for the daemon in an outage. Where none can be started, nobody looks."""
        self.is_back.clear()
        session = self._session()
        if session is None or not session.is_away:  # it came back meanwhile
            self.is_back.set()
            return
        self.beat_soon()
        with contextlib.suppress(RuntimeError):
            self.start(self._pause_s)

    def beat_soon(self) -> None:
        """Has the thread beat in `LOOK_S`: others wait for what is told by then."""
        self._woken.set()

    def stop(self) -> None:
        self._stop.set()
        self._woken.set()
        self.thread = None

    # The outbox: told with the next beat.

    def note_progress(self, recipe: Recipe, done: int, total: int) -> None:
        name, digest = shortened(recipe.name, wire.MAX_NAME), RecipeDigest(recipe.digest)
        with self._lock:
            self._progress.pop(digest, None)
            self._progress[digest] = wire.Progress(digest, name, min(done, total), total)

    def note_used(self, digests: Iterable[str]) -> None:
        with self._lock:
            self._used.update(digests)

    def note_found(self, items: int, saved_s: float) -> None:
        with self._lock:
            self.found = self.found[0] + items, self.found[1] + saved_s

    def note_lost(self, lease: str) -> None:
        with self._lock:
            self._lost.add(lease)

    @contextlib.contextmanager
    def asking(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The id that a lease shall have, and lost ones to tell of. Where no answer comes, it may have been
        granted, and is lost."""
        lease = secrets.token_hex(16)
        with self._lock:
            lost = tuple(sorted(self._lost)[: wire.MAX_LEASES])
        try:
            yield lease, lost
        except BaseException:
            self.note_lost(lease)
            raise
        with self._lock:
            self._lost.difference_update(lost)

    def hold(self, answered: set[str], mapped_now: Callable[[], set[str]]) -> None:
        """Keeps holds, old ones and those of an answer, on what is mapped, and drops the others."""
        with self._lock:  # asked within it: what another thread has mapped by now is not dropped
            held, mapped = self.held | answered, mapped_now()
            self.dropped |= held - mapped
            self.held = held & mapped
            self.dropped -= self.held
            self._used -= self.dropped

    def tell(self, session: Session, header: str, limit_s: float = waits.BEAT_LIMIT_S) -> set[str]:
        """One beat; the digests that have to be let go."""
        with self._lock:
            told = wire.BeatRequest(
                tuple(self._progress.values())[-wire.MAX_PROGRESS_PER_BEAT :],
                tuple(map(Digest, sorted(self._used)[: wire.MAX_DIGESTS_PER_BEAT])),
                tuple(map(Digest, sorted(self.dropped)[: wire.MAX_DIGESTS_PER_BEAT])),
                tuple(sorted(self._lost)[: wire.MAX_LEASES]),
                *self.found,
            )
            self.dropped.difference_update(told.dropped)
            self.found = (0, 0.0)
        path = f"{wire.API}/sessions/{header.partition('.')[0]}/beat"
        try:
            answer: wire.BeatAnswer = session.client.transport.call(
                "POST", path, told, limit_s=limit_s, gives=wire.BeatAnswer, session=header
            )
        except BaseException:
            self.note_found(told.found_items, told.saved_s)
            with self._lock:
                self.dropped.update(set(told.dropped) - self.held)
            raise
        finally:
            self.tells += bool(told.dropped)
        session.budget.note_answer()
        with self._lock:
            self._used.difference_update(told.used)
            self.held.difference_update(answer.removed)
            self._lost.difference_update(told.lost)
            self._progress = {
                recipe: one
                for recipe, one in self._progress.items()
                if one.done < one.total or one not in told.progress
            }
        return set(answer.removed)


def _run(kept: weakref.ref[Session], beat: Heartbeat, stop: threading.Event) -> None:
    """The thread's life: until the session is closed, collected, or its daemon given up for good."""
    try:
        while (session := kept()) is not None and (session.is_away or not session.is_gone):
            pause_s = waits.LOOK_S if session.is_away else beat._pause_s
            del session
            if beat._woken.wait(pause_s):
                beat._woken.clear()
                stop.wait(waits.LOOK_S)  # it has just not answered, or more is to be told
            if stop.is_set() or (session := kept()) is None:
                return
            if session.is_away:
                if _answers(session):
                    session.come_back()
                    beat.is_back.set()
            elif (header := session.header) is not None:
                _beat(session, header)
                session.call_listeners("on_beat")
            del session
    except Exception:
        log.exception("prepcache: internal error in a heartbeat")
    finally:
        beat.is_back.set()


def _beat(session: Session, header: str) -> None:
    began = time.monotonic()
    try:
        if removed := session.heartbeat.tell(session, header):
            session.call_listeners("on_removed", removed)
    except UnknownSession:
        with contextlib.suppress(PrepcacheError):
            session.reopen(header)
    except DaemonUnreachable as error:
        # It restarts, or is gone: the foreground finds out, on its budget. But that of a job which only
        # starts workers does not ask, and each of them would find out again.
        if error.data.get("why") == "absent" or time.monotonic() - began > waits.BUDGET_S:
            session.give_up(error.message, is_final=False)
    except PrepcacheError:
        pass


def _answers(session: Session) -> bool:
    try:
        session.client.transport.call("GET", "/healthz", limit_s=waits.PROMPT_S)
    except DaemonUnreachable as error:
        if error.data.get("why") == "absent":
            session.start_again()
        return False
    except PrepcacheError:
        return False
    return True
