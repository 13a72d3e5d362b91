"""The heartbeat of a session: what it tells the daemon every few seconds, and what it hears back.

Invariants:
    1. The thread is a daemon thread that says and raises nothing: a job must not notice it.
    2. It waits on its own time, never on the process's budget, and ends when the daemon was given up for
       good.
    3. What is to be told is kept until a beat that told it was answered.
    4. An answer puts holds on all that it names. A drop that is told while the answer is on its way may undo
       one of them: the answer is then asked for again. Every change of a hold has a generation, which says
       what came first.

Locking: `_lock` guards the sets; callbacks and requests run without it.
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
        self._changed = threading.Condition(self._lock)
        self._asking = 0
        """Requests under way whose answers may hold more than is of use."""
        self._is_sorting = False
        """Whether the last such answer is being looked through; what is of no use is dropped then."""
        self._generation = 0
        self._told_at: dict[str, int] = {}
        """The generation in which a drop of an artifact was told last."""
        self._telling: set[int] = set()
        """Of those that the daemon has not answered yet."""
        self.drops_told = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress: dict[str, wire.Progress] = {}
        self._used: set[str] = set()
        self._dropped: dict[str, int] = {}
        self._lost: set[str] = set()
        self._found = (0, 0.0)
        self._held: set[str] = set()
        self._callbacks: list[Callable[[], Callable[[set[str]], None] | None]] = []

    def start(self, every_s: float) -> None:
        """Starts the thread, if it does not run."""
        if self._thread is None or not self._thread.is_alive():
            self._stop = threading.Event()
            pause_s = min(max(every_s, waits.BEAT_SHORTEST_S), waits.BEAT_LONGEST_S)
            self._thread = threading.Thread(
                target=_run, args=(self._session, self._stop, pause_s), name="prepcache-beat", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Lets the thread end; does not wait for it."""
        self._stop.set()
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
            self._generation += 1
            self._dropped.update(dict.fromkeys(gone, self._generation))
            self._used -= gone
            self._held -= gone
            self._is_sorting = False
            self._changed.notify_all()

    def wait_for_drops(self) -> None:
        """Before a lack of room is believed: another thread may just drop what it was answered."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._dropped or not (self._asking or self._is_sorting), waits.DROPS_S
            )
            self._is_sorting = False  # all of it was of use: nobody waits for that again

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        with self._lock:
            self._asking += 1
            self._is_sorting = False  # the thread that asks again has looked through the last answer
        has_answer = False
        try:
            yield
            has_answer = True
        finally:
            with self._changed:
                self._asking -= 1
                self._is_sorting = has_answer
                self._changed.notify_all()

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
            with self._under_way():
                yield lease, lost
        except BaseException:
            self.note_lost(lease)
            raise
        with self._lock:
            self._lost.difference_update(lost)

    # What is held.

    def before_asking(self) -> int:
        """The generation since which a drop may undo holds of the answer to a request that is sent now."""
        with self._lock:
            return min(self._telling, default=self._generation + 1)

    def hold(self, artifacts: Iterable[wire.ArtifactRef], since: int) -> bool:
        """The daemon has put holds of ours on these; whether all are sure to be there still.

        Args:
            since: as `before_asking` gave it.
        """
        with self._lock:
            digests = {str(ref.digest) for ref in artifacts}
            self._held |= digests
            for digest in digests:
                self._dropped.pop(digest, None)
            return all(self._told_at.get(digest, 0) < since for digest in digests)

    def holding(self, ask: Callable[[], wire.Resolved]) -> wire.Resolved:
        """What a request gives that puts holds on all that it names."""
        for _ in range(HOLD_TRIES):
            since = self.before_asking()
            with self._under_way():
                found = ask()
            if self.hold(found.artifacts, since):
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

    def tell_dropped(self, session: Session, header: str, limit_s: float, since: int) -> bool:
        """Tells at once what was let go; the rest waits for the next beat.

        Args:
            since: `drops_told`, before the daemon found no room.

        Returns:
            Whether anything was told since.
        """
        with self._telling_drops() as dropped:
            if dropped:
                asked = wire.BeatRequest(dropped=tuple(map(Digest, dropped)))
                self._exchange(session, header, asked, limit_s)
        with self._lock:
            return self.drops_told != since

    @contextlib.contextmanager
    def _telling_drops(self) -> Iterator[Sequence[str]]:
        """Around a request that tells of these drops; they are told when it was answered."""
        with self._lock:
            told = dict(sorted(self._dropped.items())[: wire.MAX_DIGESTS_PER_BEAT])
            self._generation += 1
            now = self._generation
            self._told_at.update(dict.fromkeys(told, now))
            self._telling.add(now)
        try:
            yield list(told)
        finally:
            with self._lock:
                self._telling.discard(now)
        with self._lock:
            for (
                digest,
                dropped_at,
            ) in told.items():  # what was held and dropped again meanwhile is not told yet
                if self._dropped.get(digest) == dropped_at:
                    del self._dropped[digest]
            self.drops_told += bool(told)

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


def _run(kept: weakref.ref[Session], stop: threading.Event, pause_s: float) -> None:
    """The thread's life: until the session is closed, collected, or its daemon given up for good."""
    while not stop.wait(pause_s):
        session = kept()
        if session is None or (session.is_gone and not session.is_away):
            return
        header = session.header
        if header is None:
            continue
        began = time.monotonic()
        try:
            session.heartbeat.tell(session, header)
        except UnknownSession:
            with contextlib.suppress(PrepcacheError):
                session.reopen(header)
        except DaemonUnreachable as error:
            # It restarts, or is gone: the foreground finds out, on its budget. But that of a job which only
            # starts workers does not ask, and each of them would find out again.
            if time.monotonic() - began > waits.BUDGET_S:
                session.give_up_for_now(error.message)
        except PrepcacheError:
            pass
        except Exception:
            log.exception("prepcache: internal error in a heartbeat")
        del session
