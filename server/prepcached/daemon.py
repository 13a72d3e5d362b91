"""The daemon: the store, the sessions of client processes and their leases, and what keeps them in step.

Invariants:
    1. Sessions and leases are touched on the event loop's thread only, the store is called in worker threads
       only.
    2. A session acts only with its token and for its user. It ends with its process where that is watched,
       else after `wire.LAPSE_S` of silence. Its leases are free at once, its holds and staged files right
       after; a commit under way is finished first.
    3. Sessions and leases live in memory alone: after a restart clients open and lease again.
    4. Nothing that waits for the store's writer runs in the pool of quick calls.
    5. The store is closed when no thread works on it any more, whatever became of the request.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from prometheus_client import CollectorRegistry

from prepcache.errors import LimitExceeded, StoreError, UnknownSession
from prepcache.protocol import wire
from prepcache.protocol.inspection import Verified
from prepcache.protocol.units import user_name
from prepcached.auth import Auth, Caller
from prepcached.leases import LeaseTable
from prepcached.store.records import Finding
from prepcached.store.store import Store

LOG = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
IsGone = Callable[[], Awaitable[bool]]  # whether the client has hung up

QUICK_THREADS = 4
"""For calls that only read the index or change memory. Nothing here waits for the store's writer."""
SLOW_THREADS = 6
"""For calls that read or write artifacts, or wait for the writer: look-ups must not wait for them."""
LIST_THREADS = 2  # for listings, which may look through the whole index
LONG_THREADS = 1  # for calls that read the whole store
TICK_S = 0.5
WATCHED_LAPSE_S = 1800.0
"""Silence after which even a live process is taken for one that forgot its session; as a hold weakens."""
MAX_SESSIONS, MAX_PER_USER = 4096, 1024
MAX_RECIPES = 64  # recipes of which one session may report progress at a time
SWEEP_S = 60.0  # the staging folder is looked through for what belongs to no open session this often


@dataclass
class Session:
    """One client process.

    Args:
        opened_at: seconds since the epoch; `beat_at` by the daemon's clock.
        pidfd: readable when its process has died; None: that cannot be seen.
        declined: items of each recipe that found no room since it was last granted some.
        staged: bytes of its uploads that no commit has taken, by name.
    """

    id: str
    token: str
    name: str
    caller: Caller
    reported_pid: int
    host: str
    opened_at: float
    beat_at: float
    pidfd: int | None = None
    progress: dict[str, wire.Progress] = field(default_factory=dict)
    declined: dict[str, int] = field(default_factory=dict)
    staged: dict[str, int] = field(default_factory=dict)

    def note_progress(self, progress: Iterable[wire.Progress]) -> list[str]:
        """Notes how far it is; returns the recipes that moved on. What came to its total has ended."""
        moved: list[str] = []
        for one in progress:
            before = self.progress.pop(one.recipe, None)
            if before is None or before.done != one.done:
                moved.append(one.recipe)
            if one.done < one.total:
                self.progress[one.recipe] = one
        while len(self.progress) > MAX_RECIPES:
            del self.progress[next(iter(self.progress))]
        return moved

    def note_declined(self, recipe: str, items: int) -> int:
        """Notes items without room; returns how many are new: a client may ask several times."""
        before = self.declined.pop(recipe, 0)
        self.declined[recipe] = max(before, items)
        while len(self.declined) > MAX_RECIPES:
            del self.declined[next(iter(self.declined))]
        return max(0, items - before)

    @property
    def label(self) -> str:
        return f"{self.name} (pid {self.reported_pid} on {self.host})"


class Daemon:
    """One daemon over one open store, which `stop` closes."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.monotonic,
        auth: Auth | None = None,
    ) -> None:
        self.store = store
        self.auth = auth or Auth()
        self.clock = clock
        self.registry = CollectorRegistry()
        self.started_at = time.time()
        self.started_clock = clock()
        self.sessions: dict[str, Session] = {}
        self.leases = LeaseTable(clock, self._ring)
        self.stopping = asyncio.Event()
        self.commits: dict[str, int] = {}  # commits under way, by session
        self._bells: dict[str, asyncio.Event] = {}
        self._swept_at = clock()
        self._quick = ThreadPoolExecutor(QUICK_THREADS, "quick")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, "slow")
        self._listing = ThreadPoolExecutor(LIST_THREADS, "list")
        self._long = ThreadPoolExecutor(LONG_THREADS, "long")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticker: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Called by the thread that merges: a lease that is asked for once the files are gone comes after.
        self.store.on_merged = lambda recipe, generation: self._loop.call_soon_threadsafe(
            self.leases.raise_generation, recipe, generation
        )
        await self.sweep()
        self._ticker = self._loop.create_task(self._tick())

    def begin_stop(self) -> None:
        """Ends all waiting, so that a stop is not held up by long polls."""
        self.stopping.set()
        self.store.stopping.set()
        for recipe in list(self._bells):
            self._ring(recipe)

    async def stop(self) -> None:
        self.begin_stop()
        if self._ticker is not None:
            self._ticker.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        for session in self.sessions.values():
            self._unwatch(session)
        await asyncio.to_thread(self._end)

    # -- threads

    async def quick(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a short store call that waits for no writer, in a worker thread."""
        return await self._in(self._quick, partial(call, *args, **kwargs))

    async def listing(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a store call that looks through the index, in a worker thread."""
        return await self._in(self._listing, partial(call, *args, **kwargs))

    async def slow(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a store call that moves data or writes a row, in a worker thread."""
        return await self._in(self._slow, partial(call, *args, **kwargs))

    def _in(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> asyncio.Future[T]:
        """Runs a call which logs with the id of the request that asks for it."""
        return self._loop.run_in_executor(threads, contextvars.copy_context().run, call)

    async def verify(self, keys: Iterable[str] | None, is_gone: IsGone, owner: int | None = None) -> Verified:
        """Verifies entries, one caller after another; a stop breaks it off, and a client that hangs up."""
        is_abandoned = threading.Event()
        verifying = self._in(self._long, partial(self.store.verify, keys, owner, is_abandoned.is_set))
        try:
            while not (await asyncio.wait([verifying], timeout=TICK_S))[0]:
                if await is_gone():
                    is_abandoned.set()
            return await verifying
        finally:
            is_abandoned.set()
            verifying.cancel()

    async def check(self) -> list[Finding]:
        """Compares the index with the disk; a stop breaks it off. What is only under way is no finding."""
        found = await self._in(self._long, self.store.check)
        return [one for one in found if one.code not in ("temporary-file", "doomed-file")]

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs work that outlives its request; a stop waits for it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- waiting

    def bell(self, recipe: str) -> asyncio.Event:
        """Set at the next change of a recipe's leases or generation; take it before looking."""
        return self._bells.setdefault(recipe, asyncio.Event())

    def _ring(self, recipe: str) -> None:
        bell = self._bells.pop(recipe, None)
        if bell is not None:
            bell.set()

    # -- sessions

    def open_session(self, caller: Caller, name: str, pid: int, host: str) -> Session:
        """A session for the caller's process; raises LimitExceeded, or UnknownSession where that is dead."""
        own = sum(session.caller.uid == caller.uid for session in self.sessions.values())
        if len(self.sessions) >= MAX_SESSIONS or own >= MAX_PER_USER:
            raise LimitExceeded(
                f"{len(self.sessions)} sessions are open, {own} of this user; the limits are {MAX_SESSIONS} "
                f"and {MAX_PER_USER}: end some jobs",
                sessions=len(self.sessions),
            )
        try:
            pidfd = caller.peer.open_pidfd()
        except ProcessLookupError:
            raise UnknownSession("the process that requested the session has died") from None
        session = Session(
            id=secrets.token_hex(16),
            token=secrets.token_hex(16),
            name=name or "job",
            caller=caller,
            reported_pid=pid,
            host=host or "?",
            opened_at=time.time(),
            beat_at=self.clock(),
            pidfd=pidfd,
        )
        self.sessions[session.id] = session
        if pidfd is not None:
            self._loop.add_reader(pidfd, self.end_session, session.id, "its process ended")
        self.spawn(self._log_session(session, "opened"))
        return session

    def session(self, session_id: str, token: str, uid: int | None) -> Session:
        """The session that a request acts for; raises UnknownSession, which does not say what was wrong."""
        session = self.sessions.get(session_id)
        is_own = session is not None and secrets.compare_digest(session.token.encode(), token.encode())
        if session is None or not is_own or session.caller.uid != uid:
            raise UnknownSession(
                "unknown session: its process died, it was silent for too long, or the daemon's root was "
                "replaced; open a new one",
                session=session_id[:64],
            )
        return session

    async def _log_session(self, session: Session, what: str) -> None:
        user = await self.listing(user_name, session.caller.uid)
        LOG.info("session %s %s: %s, user %s", session.id[:8], what, session.label, user)

    def end_session(self, session_id: str, why: str) -> None:
        """Frees everything that a session has; does nothing if it has ended."""
        session = self.sessions.pop(session_id, None)
        if session is None:
            return
        self.spawn(self._log_session(session, f"ended ({why})"))
        self._unwatch(session)
        self.leases.end_session(session_id)
        self.spawn(self.clean_session(session_id))

    def _unwatch(self, session: Session) -> None:
        if session.pidfd is not None:
            self._loop.remove_reader(session.pidfd)
            os.close(session.pidfd)
            session.pidfd = None

    async def clean_session(self, session_id: str) -> None:
        """Gives back what an ended session left in the store, once none of its commits is under way."""
        if session_id in self.sessions or self.commits.get(session_id):
            return
        await self.quick(self.store.release, session_id)
        await self.sweep()

    async def sweep(self) -> None:
        def is_live(session_id: str) -> bool:
            return session_id in self.sessions or session_id in self.commits

        try:
            swept = await self.slow(self.store.sweep_staging, is_live)
        except StoreError as error:
            LOG.warning("the staging folder cannot be swept: %s", error)
            return
        if swept.files:
            LOG.info("removed %d staged files without an open session", swept.files)
        if swept.failed is not None:
            LOG.warning("cannot remove %s: %s", swept.failed.filename, swept.failed.strerror)

    # -- inside

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                for session in list(self.sessions.values()):
                    lapse_s = wire.LAPSE_S if session.pidfd is None else WATCHED_LAPSE_S
                    if self.clock() - session.beat_at > lapse_s:
                        self.end_session(session.id, why="it was silent for too long")
                self.leases.lapse()
                if self.clock() - self._swept_at > SWEEP_S:
                    self._swept_at = self.clock()
                    self.spawn(self.sweep())
            except Exception:
                LOG.exception("a periodic check failed")

    def _end(self) -> None:
        """Waits for threads whose requests were cancelled: they have the store."""
        for pool in (self._long, self._listing, self._slow, self._quick):
            pool.shutdown()
        self.store.close()
