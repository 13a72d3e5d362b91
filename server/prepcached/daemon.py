"""The daemon: the store, the sessions and the leases, and what keeps them in step.

Invariants:
    1. Sessions and leases are touched on the event loop's thread only; the store is called from worker
       threads only. So a request never waits for the disk of another, and a grant needs no lock.
    2. A session's end frees its leases at once, and its holds, rows and staged files right after; a
       commit that was under way is finished first.
    3. What is written here about sessions and leases can be read by the daemon's successor (rows.py): a
       stop ends no session.
    4. Where the disk takes nothing (full, read-only, failing), sessions are opened and ended all the same,
       and look-ups answered; rows are owed until they can be written.
    5. The store is closed when no thread is at work on it any more, whatever became of the request.

Not here: HTTP (app.py, api/), leasing and committing (filling.py), upkeep of the store (upkeep.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from prepcache.errors import DaemonUnreachable, StoreError, UnknownSession
from prepcache.protocol import wire
from prepcache.protocol.processes import is_alive, start_ticks
from prepcached import rows, threads
from prepcached.auth import Auth, Caller
from prepcached.leases import Lease, LeaseLimits, LeaseTable
from prepcached.peer import Watch, has_exited, open_pidfd
from prepcached.sessions import Session, Sessions
from prepcached.store import scopes
from prepcached.store.records import Filter, Removed, Verified
from prepcached.store.store import Store

LOG = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
Alive = Callable[[], Awaitable[bool]]
"""Whether the client still waits for its answer."""

TICK_S = 0.5
SWEEP_S = 60.0
"""The staging folder is looked through for what no session staged this often."""


@dataclass(frozen=True)
class Bounds:
    """What one session may take."""

    leases: LeaseLimits = field(default_factory=lambda: LeaseLimits(leases=wire.MAX_LEASES))
    staged_bytes: int = wire.MAX_STAGED_BYTES


def _in_context(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
    """The call, which logs in a worker thread with the id of the request that asks for it."""
    return partial(contextvars.copy_context().run, partial(call, *args, **kwargs))


class Daemon:
    """One daemon over one open store.

    Args:
        store: made with `rows.METADATA` as its extra tables; closed by `stop`.
        clock: seconds, monotonic over the daemon's restarts.
        auth: who shares with whom.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.monotonic,
        lapse_s: float = wire.LAPSE_S,
        bounds: Bounds | None = None,
        auth: Auth | None = None,
    ) -> None:
        self.store = store
        self.auth = auth or Auth()
        self.clock = clock
        self.bounds = bounds or Bounds()
        self.started_at = time.time()
        self.started_clock = clock()
        self.sessions = Sessions(clock, lapse_s=lapse_s)
        self.leases = LeaseTable(
            clock,
            self.bounds.leases,
            on_change=self._ring,
            on_end=self._lease_ended,
        )
        self.stopping = asyncio.Event()
        self.commits: dict[str, int] = {}
        """Commits under way, by session."""
        self._bells: dict[str, asyncio.Event] = {}
        self._ended_leases: list[str] = []
        self._unclean: set[str] = set()
        """Ended sessions that left something in the store which could not be removed yet."""
        self._saving = asyncio.Lock()
        """Held while holds are written: an older list never overwrites a newer one."""
        self._swept_at = clock()
        self._boot = rows.boot_id()
        self._quick = threads.started(threads.QUICK_THREADS, "quick")
        self._slow = threads.started(threads.SLOW_THREADS, "slow")
        self._listing = threads.started(threads.LIST_THREADS, "list")
        self._long = threads.started(threads.LONG_THREADS, "long")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticker: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Takes back the sessions and leases that outlived the last daemon, and begins to watch."""
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(self._loop, partial(self.end_session, why="its process ended"))
        sessions, leases = await self.quick(self._load_rows)
        for session in sessions:
            self.sessions.restore(session)
            self._watch_restored(session)
        for lease in leases:
            lease.progress_at = self.clock()
            lease.deadline = lease.progress_at + lease.span_s
            self.leases.restore(lease)
        await self.slow(self._restore_store, sessions)
        await self.sweep()
        if sessions:
            LOG.info("took back %d sessions and %d leases", len(sessions), len(leases))
        self._ticker = self._loop.create_task(self._tick())

    def begin_stop(self) -> None:
        """Ends all waiting, so that a stop is not held up by long polls."""
        self.stopping.set()
        for recipe in list(self._bells):
            self._ring(recipe)

    async def stop(self) -> None:
        """Waits for what is under way, writes what is owed, and closes the store."""
        self.begin_stop()
        if self._ticker is not None:
            self._ticker.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        try:
            await self.write_owed()
        except StoreError as error:
            LOG.error("the last changes of leases and holds are not written: %s", error)
        self._watch.close()
        await self._loop.run_in_executor(None, self._end)

    def wall_time(self, at: float) -> float:
        """A moment of the daemon's clock, in seconds since the epoch."""
        return time.time() - (self.clock() - at)

    # -- threads

    async def quick(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a store call that is short, in a worker thread; upkeep stands aside."""
        with self.store.foreground:
            return await self._loop.run_in_executor(self._quick, _in_context(call, *args, **kwargs))

    async def listing(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a store call that looks through the index, in a worker thread."""
        return await self._loop.run_in_executor(self._listing, _in_context(call, *args, **kwargs))

    async def slow(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a store call that moves data, in a worker thread."""
        return await self._loop.run_in_executor(self._slow, _in_context(call, *args, **kwargs))

    async def purge(self, wanted: Filter, *, dry_run: bool) -> Removed:
        """Purges; a stop breaks it off."""

        def go_on(_done: int) -> None:
            if self.stopping.is_set():
                raise DaemonUnreachable("the daemon is stopping, and did not purge everything")

        return await self.slow(self.store.purge, wanted, dry_run=dry_run, progress=go_on)

    async def verify(
        self, keys: Iterable[str] | None, is_awaited: Alive, owner: int | None = None
    ) -> Verified:
        """Verifies entries, one caller after another; a stop breaks it off, and a client that hangs up."""
        is_abandoned = threading.Event()

        def go_on(_done: int, _of: int) -> None:
            if self.stopping.is_set() or is_abandoned.is_set():
                raise DaemonUnreachable(
                    "not everything was verified: the daemon stops, or nobody waits for it"
                )

        work = partial(self.store.verify, keys, progress=go_on, owner=owner)
        verifying = self._loop.run_in_executor(self._long, work)
        try:
            while not (await asyncio.wait([verifying], timeout=TICK_S))[0]:
                if not await is_awaited():
                    is_abandoned.set()
            return await verifying
        finally:
            is_abandoned.set()
            verifying.cancel()

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

    async def open_session(self, caller: Caller, name: str, pid: int, host: str) -> Session:
        """A session for the caller's process, which is watched where it can be seen."""
        session = self.sessions.open(
            name, uid=caller.uid, pid=0, reported_pid=pid, host=host, opened_at=time.time()
        )
        session.scope = caller.scope
        try:
            pidfd = caller.peer.open_pidfd()
            if pidfd is not None:
                session.pid = caller.peer.pid
                session.start_ticks = start_ticks(session.pid)
                session.is_watched = True
                self._watch.add(session.id, pidfd)
            await self._add_session(session)
        except ProcessLookupError:
            self.sessions.end(session.id)
            raise UnknownSession("the process that asked for a session is dead") from None
        except BaseException:
            self.end_session(session.id, why="it could not be written down")
            raise
        if session.id not in self.sessions:
            await self.quick(self._write, rows.drop_sessions, [session.id])
            raise UnknownSession("the process that asked for a session is dead")
        LOG.info("session %s opened: %s", session.id[:8], session.label)
        return session

    def end_session(self, session_id: str, why: str) -> None:
        """Frees everything that a session has; does nothing if it has ended."""
        session = self.sessions.end(session_id)
        if session is None:
            return
        LOG.info("session %s ended (%s): %s", session.id[:8], why, session.label)
        self._watch.drop(session_id)
        self.leases.end_session(session_id)
        self.spawn(self.clean_session(session_id))

    async def clean_session(self, session_id: str) -> bool:
        """Gives back what an ended session left in the store, once none of its commits is under way.

        Returns:
            False where the disk let it remove nothing; a tick tries again.
        """
        if session_id in self.sessions or self.commits.get(session_id):
            return True
        try:
            await self.slow(self._clean, session_id)
        except StoreError as error:
            self._unclean.add(session_id)
            LOG.warning("what session %s left is not removed yet: %s", session_id[:8], error)
            return False
        return True

    async def sweep(self) -> None:
        """Deletes what was staged by hand, or for a session after its end: it would count for ever."""
        try:
            staged = await self.quick(self.store.staged_by)
            live = {session.id for session in self.sessions} | self.commits.keys()
            await self.slow(self.store.discard_staged, *(staged - live))
        except StoreError as error:
            LOG.warning("what was staged for no session is not removed yet: %s", error)

    async def beat(self, session: Session, request: wire.BeatRequest) -> wire.BeatAnswer:
        moved = self.sessions.beat(session, [(p.recipe, p.name, p.done, p.total) for p in request.progress])
        self.leases.forsake(session.id, request.lost)
        self.leases.beat(session.id, [recipe + session.scope for recipe in moved])
        if request.dropped:
            self.note_holds(session, dropped=request.dropped)
        removed = await self.quick(self._beat_store, session.id, request.used, request.dropped)
        if request.lost:
            await self.write_owed()
        return wire.BeatAnswer(
            removed=tuple(removed),  # type: ignore[arg-type]
            waited_for=tuple(sorted(map(scopes.digest, self.leases.waited_for(session.id)))),
        )

    def note_holds(self, session: Session, *, taken: Any = (), dropped: Any = ()) -> None:
        """Keeps in mind what a session holds, for the daemon's successor."""
        before = len(session.holds)
        session.holds.update(taken)
        session.holds.difference_update(dropped)
        session.is_dirty = session.is_dirty or bool(dropped) or len(session.holds) != before

    async def save_holds(self, session: Session) -> None:
        """Writes what a session holds, before it hears that it does; a tick tries again what fails."""
        async with self._saving:
            if not session.is_dirty:
                return
            session.is_dirty = False
            try:
                await self.quick(self._write, rows.save_holds, [(session.id, list(session.holds))])
            except StoreError as error:
                session.is_dirty = True
                LOG.warning("holds of %s are not written: %s", session.label, error)

    async def save_lease(self, lease: Lease) -> bool:
        """Writes a lease's row, once ended leases on its items have none; False if it ended meanwhile."""
        await self.write_owed()
        await self.quick(self._write, rows.add_lease, lease)
        if self.leases.is_live(lease):
            return True
        self._ended_leases.append(lease.id)  # it may have been dropped before it was there
        await self.write_owed()
        return False

    async def write_owed(self) -> None:
        """Writes sessions without a row, drops rows of ended leases, writes holds that changed; what fails is
        still owed."""
        async with self._saving:
            ended, self._ended_leases = self._ended_leases, []
            new = [replace(one, holds=set(one.holds)) for one in self.sessions if not one.is_written]
            dirty = [session for session in self.sessions if session.is_dirty]
            for session in dirty:
                session.is_dirty = False
            if not ended and not dirty and not new:
                return
            try:
                holds = [(session.id, list(session.holds)) for session in dirty]
                await self.quick(self._write_owed, new, ended, holds)
            except BaseException:
                self._ended_leases += ended
                for session in dirty:
                    session.is_dirty = True
                raise
            for one in new:
                await self._is_written(one.id)

    # -- inside

    async def _add_session(self, session: Session) -> None:
        try:
            await self.quick(self._write, rows.add_session, session, self._boot)
        except StoreError as error:
            session.is_written = False
            LOG.warning("new sessions are not written down, and a restart would not know them: %s", error)

    async def _is_written(self, session_id: str) -> None:
        session = self.sessions.get(session_id)
        if session is None:  # it ended meanwhile, and its row was dropped before it was there
            await self.clean_session(session_id)
        else:
            session.is_written = True

    async def _clean_again(self) -> None:
        while self._unclean and await self.clean_session(self._unclean.pop()):
            pass

    def _lease_ended(self, lease: Lease) -> None:
        if lease.items:  # else the commit that took the last of them dropped the row itself
            self._ended_leases.append(lease.id)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                for session in self.sessions.silent():
                    self.end_session(session.id, why="it was silent for too long")
                self.leases.lapse()
                await self.write_owed()
                await self._clean_again()
                if self.clock() - self._swept_at > SWEEP_S:
                    self._swept_at = self.clock()
                    self.spawn(self.sweep())
            except StoreError as error:
                LOG.error("changes of sessions and leases are not written yet: %s", error)
            except Exception:
                LOG.exception("a tick failed")

    def _end(self) -> None:
        """Waits for threads whose requests were cancelled: they have the store."""
        for pool in (self._long, self._listing, self._slow, self._quick):
            pool.shutdown()
        self.store.close()

    def _write_owed(self, new: list[Session], ended: list[str], holds: list[tuple[str, list[str]]]) -> None:
        with self.store.transaction() as conn:
            for session in new:
                rows.add_session(conn, session, self._boot)
            rows.drop_leases(conn, ended)
            rows.save_holds(conn, holds)

    def _write(self, call: Callable[..., None], *args: Any) -> None:
        with self.store.transaction() as conn:
            call(conn, *args)

    def _load_rows(self) -> tuple[list[Session], list[Lease]]:
        with self.store.transaction() as conn:
            return rows.load(conn, self._boot, is_alive, self.auth.scope)

    def _watch_restored(self, session: Session) -> None:
        if not session.pid:
            return
        try:
            pidfd = open_pidfd(session.pid)
        except ProcessLookupError:
            self.end_session(session.id, why="its process ended while the daemon was away")
            return
        if pidfd is not None and start_ticks(session.pid) != session.start_ticks:
            os.close(pidfd)
            self.end_session(session.id, why="its process ended while the daemon was away")
        elif pidfd is not None:
            session.is_watched = not has_exited(pidfd)
            self._watch.add(session.id, pidfd)

    def _restore_store(self, sessions: list[Session]) -> None:
        for session in sessions:
            if session.holds:
                self.store.hold(session.id, session.holds)

    def _beat_store(self, session_id: str, used: Any, dropped: Any) -> list[str]:
        if used:
            self.store.touch(session_id, used)
        if dropped:
            self.store.release(session_id, dropped)
        return self.store.to_let_go(session_id)

    def _clean(self, session_id: str) -> None:
        self.store.release(session_id)
        self.store.discard_staged(session_id)
        self._write(rows.drop_sessions, [session_id])
