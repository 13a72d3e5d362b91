"""The heartbeat of a session: what it tells the daemon every few seconds, and what it hears back.

In an outage the same thread asks the daemon whether it answers, and ends the outage when it does. While a
process holds the daemon's socket, the daemon lives: it starts, is stopped, or is busy. Then one request waits
for its answer, so that the outage ends in the moment in which it comes. Where nobody listens, the thread
looks again several times a second, and starts the user's own daemon as a job would.

Invariants:
    1. The thread is a daemon thread that says and raises nothing: a job must not notice it.
    2. It waits on its own time, never on the process's budget, and ends when the daemon was given up for
       good.
    3. What is to be told is kept until a beat that told it was answered.
    4. An answer puts holds on all that it names. Drops that are told while the answer is on its way may undo
       one of them: the answer is then asked for again.
    5. An outage ends only when the daemon has answered, and then once more within `PROMPT_S`. The session
       goes on with its leases and holds.

Locking: `_lock` guards the sets; callbacks and requests run without it. `_telling` is held while drops are
told.
Not here: when an outage begins and what it may cost (wait_budget.py).
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prepcache.daemon import waits
from prepcache.digests import Digest, RecipeDigest
from prepcache.errors import DaemonUnreachable, PrepcacheError, UnknownSession
from prepcache.protocol import wire

if TYPE_CHECKING:
    from prepcache.daemon.session import Session

HOLD_TRIES = 3

log = logging.getLogger("prepcache")


class Heartbeat:
    """Thread, outbox and inbox of one session."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self.tells = 0
        """Raised when drops are told, and when they have been: odd in between."""
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._is_back = threading.Event()
        self._has_drops = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause_s = waits.BEAT_LONGEST_S
        self._progress: dict[str, wire.Progress] = {}
        self._used: set[str] = set()
        self._dropped: set[str] = set()
        self._lost: set[str] = set()
        self._found = (0, 0.0)
        self._held: set[str] = set()
        self._callbacks: list[Callable[[], Callable[[set[str]], None] | None]] = []

    def start(self, every_s: float) -> None:
        """Starts the thread, if it does not run.

        Raises:
            RuntimeError: there are too many threads.
        """
        self._pause_s = min(max(every_s, waits.BEAT_SHORTEST_S), waits.BEAT_LONGEST_S)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                thread = threading.Thread(
                    target=_run, args=(self._session, self, self._stop), name="prepcache-beat", daemon=True
                )
                thread.start()
                self._thread = thread

    def look(self) -> None:
        """Has the thread look for the daemon in an outage. Where none can be started, nobody looks."""
        session = self._session()
        if session is None or not session.is_away:
            return
        self._is_back.clear()
        if not session.is_away:  # it came back meanwhile
            self._is_back.set()
            return
        self._woken.set()
        with contextlib.suppress(RuntimeError):
            self.start(self._pause_s)

    def wait(self, seconds: float) -> None:
        """Waits until the outage is over, or nobody looks any more."""
        self._is_back.wait(seconds)

    def stop(self) -> None:
        """Lets the thread end; does not wait for it."""
        self._stop.set()
        self._woken.set()
        self._thread = None

    @property
    def is_me(self) -> bool:
        """Whether the caller is the thread."""
        return self._thread is threading.current_thread()

    def after_fork(self) -> None:
        """In a child: no thread, nothing held, nothing to tell; callbacks stay."""
        callbacks, session = self._callbacks, self._session()
        if session is not None:
            self.__init__(session)  # type: ignore[misc]
        self._callbacks = callbacks

    # The outbox.

    def note_progress(self, recipe: str, name: str, done: int, total: int) -> None:
        told = wire.Progress(RecipeDigest(recipe), name[:256], min(done, total), total)
        with self._lock:
            self._progress.pop(recipe, None)
            self._progress[recipe] = told

    def note_used(self, digests: Iterable[str]) -> None:
        with self._lock:
            self._used.update(digests)

    def drop(self, digests: Iterable[str]) -> None:
        with self._lock:
            gone = set(digests)
            self._dropped |= gone
            self._used -= gone
            self._held -= gone
            if self._dropped:
                self._has_drops.set()

    def wait_for_drops(self, seconds: float) -> None:
        """Before a lack of room is believed: another thread may just look through an answer, which holds all
        that it names."""
        self._has_drops.wait(seconds)

    def note_found(self, items: int, saved_s: float) -> None:
        with self._lock:
            self._found = self._found[0] + items, self._found[1] + saved_s

    def note_lost(self, lease: str) -> None:
        """The daemon may think that this session has that lease, and it has not."""
        with self._lock:
            self._lost.add(lease)

    @contextlib.contextmanager
    def asking(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """While a lease is asked for: the id that it shall have, and lost ones to tell of. Where no answer
        comes, it may have been granted, and is lost."""
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

    # What is held.

    def hold(self, artifacts: Iterable[wire.ArtifactRef], tells: int) -> bool:
        """The daemon has put holds of ours on these; whether all are sure to be there still.

        Args:
            tells: as it was when the request was sent.
        """
        with self._lock:
            digests = {str(ref.digest) for ref in artifacts}
            self._held |= digests
            self._dropped -= digests
            if not self._dropped:
                self._has_drops.clear()
            return not digests or (tells == self.tells and not tells % 2)

    def holding(self, ask: Callable[[], wire.Resolved]) -> wire.Resolved:
        """What a request gives that puts holds on all that it names."""
        for _ in range(HOLD_TRIES):
            tells = self.tells
            found = ask()
            if self.hold(found.artifacts, tells):
                break
        return found

    def take_held(self) -> set[str]:
        """What was held; nothing is from now on."""
        with self._lock:
            held, self._held = self._held, set()
            return held

    # The inbox.

    def on_removed(self, callback: Callable[[set[str]], None]) -> None:
        kept: Any = weakref.WeakMethod(callback) if inspect.ismethod(callback) else (lambda: callback)
        with self._lock:
            self._callbacks = [one for one in self._callbacks if one() is not None]
            self._callbacks.append(kept)

    def tell_removed(self, digests: set[str]) -> None:
        """Calls back everybody with digests that have to be let go; a callback's error is logged."""
        if not digests:
            return
        with self._lock:
            self._held -= digests
            callbacks = [(kept, kept()) for kept in self._callbacks]
            self._callbacks = [kept for kept, callback in callbacks if callback is not None]
        for _, callback in callbacks:
            if callback is not None:
                try:
                    callback(digests)
                except Exception:
                    log.exception("prepcache: releasing artifacts failed")

    def tell_dropped(self, session: Session, header: str, limit_s: float, tells: int) -> bool:
        """Tells at once what was let go; the rest waits for the next beat.

        Args:
            tells: as it was before the daemon found no room.

        Returns:
            Whether anything was told since.
        """
        with self._telling_drops() as dropped:
            if dropped:
                asked = wire.BeatRequest(dropped=tuple(map(Digest, dropped)))
                self._exchange(session, header, asked, limit_s)
        return self.tells != tells

    @contextlib.contextmanager
    def _telling_drops(self) -> Iterator[Sequence[str]]:
        """Around a request that tells of these drops; none where another thread is at it."""
        if not self._dropped or not self._telling.acquire(blocking=False):
            yield ()
            return
        try:
            with self._lock:
                told = sorted(self._dropped)[: wire.MAX_DIGESTS_PER_BEAT]
                self._dropped.difference_update(told)
                self._has_drops.clear()
                self.tells += 1
            try:
                yield told
            except BaseException:
                with self._lock:
                    self._dropped.update(set(told) - self._held)
                raise
            finally:
                self.tells += 1
        finally:
            self._telling.release()

    def _exchange(
        self, session: Session, header: str, asked: wire.BeatRequest, limit_s: float
    ) -> wire.BeatAnswer:
        transport = session.client.transport
        path = f"{wire.API}/sessions/{header.partition('.')[0]}/beat"
        raw = transport.call("POST", path, asked.to_json(), limit_s=limit_s, session=header)
        return transport.read(wire.BeatAnswer, raw)

    def tell_found(self, session: Session, header: str, limit_s: float) -> None:
        """Tells at the end what no beat has told: a job may be over before its first."""
        with self._telling_found() as (items, saved_s):
            if items:
                self._exchange(session, header, wire.BeatRequest(found_items=items, saved_s=saved_s), limit_s)

    @contextlib.contextmanager
    def _telling_found(self) -> Iterator[tuple[int, float]]:
        """Around a request that tells of it; what was told when it was answered is told no more."""
        with self._lock:
            told = self._found
        yield told
        with self._lock:
            self._found = self._found[0] - told[0], max(0.0, self._found[1] - told[1])

    def tell(self, session: Session, header: str) -> None:
        """One beat."""
        with self._lock:
            used = sorted(self._used)[: wire.MAX_DIGESTS_PER_BEAT]
            lost = tuple(sorted(self._lost)[: wire.MAX_LEASES])
            progress = tuple(self._progress.values())[-wire.MAX_PROGRESS_PER_BEAT :]
        with self._telling_drops() as dropped, self._telling_found() as found:
            used_now, dropped_now = tuple(map(Digest, used)), tuple(map(Digest, dropped))
            asked = wire.BeatRequest(progress, used_now, dropped_now, lost, *found)
            answer = self._exchange(session, header, asked, waits.BEAT_LIMIT_S)
        with self._lock:
            self._used.difference_update(used)
            self._lost.difference_update(lost)
            self._progress = {
                recipe: told
                for recipe, told in self._progress.items()
                if told.done < told.total or told not in progress
            }
        self.tell_removed(set(answer.removed))


def _run(kept: weakref.ref[Session], beat: Heartbeat, stop: threading.Event) -> None:
    """The thread's life: until the session is closed, collected, or its daemon given up for good."""
    look_s = waits.LOOK_FIRST_S
    try:
        while (session := kept()) is not None and (session.is_away or not session.is_gone):
            pause_s = look_s if session.is_away else beat._pause_s
            del session
            if beat._woken.wait(pause_s):
                beat._woken.clear()
                stop.wait(waits.LOOK_FIRST_S)  # it has just not answered
            if stop.is_set() or (session := kept()) is None:
                return
            if session.is_away:
                look_s = min(2 * look_s, waits.LOOK_LONGEST_S)
                if _answers(session):
                    session.come_back()
                    beat._is_back.set()
            else:
                look_s = waits.LOOK_FIRST_S
                if (header := session.header) is not None:
                    _beat(session, header)
            del session
    except Exception:
        log.exception("prepcache: internal error in a heartbeat")
    finally:
        beat._is_back.set()


def _beat(session: Session, header: str) -> None:
    began = time.monotonic()
    try:
        session.heartbeat.tell(session, header)
    except UnknownSession:
        with contextlib.suppress(PrepcacheError):
            session.reopen(header)
    except DaemonUnreachable as error:
        # It restarts, or is gone: the foreground finds out, on its budget. But that of a job which only
        # starts workers does not ask, and each of them would find out again.
        if error.data.get("why") == "absent" or time.monotonic() - began > waits.BUDGET_S:
            session.give_up_for_now(error.message)
    except PrepcacheError:
        pass


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
