"""The beat of a session: what it tells the daemon every few seconds, and what it hears back.

Invariants:
    1. The thread is a daemon thread that says and raises nothing: a job must not notice it.
    2. It waits on its own time, never on the process's budget, and ends when the daemon was given up for
       good.
    3. What is to be told is kept until a beat that told it was answered.
    4. An answer puts holds on all that it names, wanted or not. Where there is no room, that is so only
       when the threads that take answers in have let go of what they do not want. Nobody waits twice for
       one answer.
    5. A drop that is told while an answer is on its way may undo a hold of that answer, which is then asked
       for again.

Locking: `_lock` guards the sets; callbacks and requests run without it.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prepcache.daemon import waits
from prepcache.digests import Digest, RecipeDigest
from prepcache.errors import PrepcacheError, UnknownSession
from prepcache.protocol import wire

if TYPE_CHECKING:
    from prepcache.daemon.session import Session

HOLD_TRIES = 3

log = logging.getLogger("prepcache")


@dataclass(slots=True, eq=False)
class _Taking:
    """What one thread asks for and takes in.

    Args:
        is_awaited: who finds no room waits for it, and has not done so yet.
        polls: the daemon may keep the request; it is not awaited before it is answered.
        dropped: what the daemon was told meanwhile to let go of.
    """

    is_awaited: bool = False
    polls: bool = False
    dropped: set[str] = field(default_factory=set)


class Beat:
    """Thread, outbox and inbox of one session."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._lock = threading.Lock()
        self._taken_in = threading.Condition(self._lock)
        self._taking: dict[int, _Taking] = {}
        self._telling: list[set[str]] = []
        self._again: set[str] = set()
        self.drops_told = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress: dict[str, wire.Progress] = {}
        self._used: set[str] = set()
        self._dropped: set[str] = set()
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
        """In a child: no thread, nothing held, nothing to tell; who wants to hear stays."""
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
            self._again |= gone
            self._used -= gone
            self._held -= gone

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

    def asks(self, *, polls: bool = False) -> None:
        """This thread sends a request whose answer may put holds.

        Args:
            polls: the daemon may keep it.
        """
        with self._lock:
            if (one := self._taking.get(threading.get_ident())) is not None:
                one.is_awaited, one.polls, one.dropped = not polls, polls, set().union(*self._telling)

    def holding(self, ask: Callable[[], wire.Resolved]) -> wire.Resolved:
        """What a request gives that puts holds on all that it names; see invariant 5."""
        with self.taking_in():
            for _ in range(HOLD_TRIES):
                self.asks()
                found = ask()
                if self.hold(found.artifacts):
                    break
        return found

    def hold(self, artifacts: Iterable[wire.ArtifactRef]) -> bool:
        """The daemon has put holds of ours on these; whether all are sure to be there still."""
        with self._lock:
            digests = {str(ref.digest) for ref in artifacts}
            self._held |= digests
            self._dropped -= digests
            self._again -= digests
            one = self._taking.get(threading.get_ident())
            if one is None:
                return True
            if one.polls:
                one.is_awaited, one.polls = True, False
            return digests.isdisjoint(one.dropped)

    @contextlib.contextmanager
    def taking_in(self) -> Iterator[None]:
        """Around a request, and what is made of its answer: until the end it is open which of the holds
        in it are needed."""
        me = threading.get_ident()
        with self._lock:
            is_outermost = me not in self._taking
            one = self._taking.setdefault(me, _Taking())
        try:
            yield
        finally:
            if is_outermost:
                with self._lock:
                    self._taking.pop(me, None)  # a fork in between has begun anew
                    one.is_awaited = False
                    self._taken_in.notify_all()

    def wait_until_taken_in(self) -> None:
        """Waits, for `TAKING_IN_S` at most, until other threads know what they need of the answers that they
        have or are about to have; for each of these once. This thread itself was answered that there is no
        room."""
        with self._lock:
            if (mine := self._taking.get(threading.get_ident())) is not None:
                mine.is_awaited = False
                self._taken_in.notify_all()
            awaited = [one for one in self._taking.values() if one.is_awaited]
            self._taken_in.wait_for(lambda: not any(one.is_awaited for one in awaited), waits.TAKING_IN_S)
            for one in awaited:
                one.is_awaited = False

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
                    log.exception("prepcache: letting artifacts go failed")

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
            dropped = sorted(self._dropped)[: wire.MAX_DIGESTS_PER_BEAT]
            told = set(dropped)
            self._telling.append(told)
            self._again -= told
            for one in self._taking.values():
                one.dropped |= told
        try:
            yield dropped
        finally:
            with self._lock:
                self._telling = [one for one in self._telling if one is not told]
        with self._lock:
            self._dropped -= told - self._again  # what was held and dropped again meanwhile is not told yet
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
        try:
            session.beat.tell(session, header)
        except UnknownSession:
            with contextlib.suppress(PrepcacheError):
                session.reopen(header)
        except PrepcacheError:
            pass  # the daemon restarts, or is gone: the foreground finds out, on its budget
        except Exception:
            log.exception("prepcache: a beat failed in prepcache itself")
        del session
