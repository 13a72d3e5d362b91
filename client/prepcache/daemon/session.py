"""A session: this process as the daemon sees it. It owns leases and holds, and the daemon ends it with us.

    session = Session.current(client)
    found = session.resolve(recipe, register=True)
    answer = session.lease(recipe.digest, found.generation, digests, want=16, cost_s=1.0, wait_s=2.0)

Invariants:
    1. One session a process and daemon, opened by its first use. A forked child has its own: it never acts
       with its parent's id, whose leases and holds would die with the wrong process.
    2. Every method answers within the process's wait budget (wait_budget.py) or raises `DaemonUnreachable`;
       what the daemon cannot be blamed for (a long poll answered in time, a commit at work) does not count.
    3. A daemon that was restarted is found again under the same id and token; one that forgot us gives a
       new session, whose holds are taken again and whose lost artifacts are told to `on_removed`.
    4. Heartbeats run in a thread that never keeps the process from ending, and waits on nobody.

Locking: `_opening` is held while the session is opened, and waited for within the budget; `_answering` while
the answer is replaced, and never over a request.
Not here: artifacts' bytes (transfer.py), what is leased and preprocessed (fill/).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from prepcache import forks
from prepcache.daemon import waits
from prepcache.daemon.client import Client
from prepcache.daemon.description import Known, RecipeLike, fitting, job_name, plain
from prepcache.daemon.folder import Staged
from prepcache.daemon.heartbeat import Heartbeat
from prepcache.daemon.transfer import Handover
from prepcache.daemon.wait_budget import WaitBudget, own_time
from prepcache.digests import RecipeDigest
from prepcache.errors import (
    DaemonUnreachable,
    Declined,
    FutureGeneration,
    PrepcacheError,
    ProtocolMismatch,
    RequestError,
    StoreError,
    UnknownSession,
)
from prepcache.protocol import inspection, wire
from prepcache.protocol.members import Message
from prepcache.settings import Mode

M = TypeVar("M", bound=Message)
_Exchange = Callable[[str | None, float], M]
"""(session header, seconds left) -> the answer."""
T = TypeVar("T")


log = logging.getLogger("prepcache")


class Session:
    """See the module's docstring; `Session.current(client)` gives the one of this process."""

    _all: ClassVar[dict[tuple[str, str | None], Session]] = {}  # by URL and token

    def __init__(self, client: Client) -> None:
        self.client = client
        self.budget = client.budget
        self.heartbeat = Heartbeat(self)
        self._handover = Handover(client, self.run)
        self._begin()
        self._has_said_it_waits = False
        forks.note(self)

    def _begin(self) -> None:
        self._opening = threading.Lock()
        self._answering = threading.Lock()
        self._reopening = threading.Lock()
        self._answer: wire.SessionAnswer | None = None
        self._recipes: dict[str, tuple[Known, bool]] = {}
        self._at_close: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._at_return: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._closes_at: float | None = None

    def after_fork(self) -> None:
        """A data set in a child still has its parent's session in hand: it becomes the child's own."""
        atexit.unregister(self.close)
        self._begin()
        self.heartbeat.after_fork()

    @classmethod
    def current(cls, client: Client) -> Session:
        """This process's session with the daemon of `client`. Opens nothing yet."""
        key = client.url, client.token
        return cls._all.get(key) or cls._all.setdefault(key, cls(client))  # of two threads' one is used

    @property
    def is_gone(self) -> bool:
        """Whether there is an outage: the daemon is not asked."""
        return self.budget.is_gone

    @property
    def is_away(self) -> bool:
        """Whether there is an outage that ends when the daemon answers: a thread looks for it."""
        return self.budget.is_away

    # What a data set does.

    def resolve(
        self, recipe: RecipeLike, generation: int = 0, *, hold: bool = True, register: bool = False
    ) -> wire.Resolved:
        """The recipe's artifacts, new since `generation`; all of them where `is_complete`.

        Args:
            hold: take holds on them, in the same step.
            register: tell the recipe's readable parts, which a first lease needs.
        """
        return self._resolve(recipe, generation, hold, register, may_reopen=True)

    def lease(
        self,
        recipe: str,
        generation: int,
        items: Any,
        *,
        want: int,
        cost_s: float = 0.0,
        nbytes: int = 0,
        wait_s: float = 0.0,
        left: int = 0,
        why: str = "",
        cue: str = "",
    ) -> wire.LeaseAnswer:
        """Leave to preprocess some of these items, or what else to do (wire.LeaseAnswer).

        Args:
            recipe: its digest.
            items: `uint8[k, 32]`, k at most `wire.MAX_ITEMS`; `granted` are indices into it.
            wait_s: how long the daemon may keep the request while nothing can be granted.
            left: items that are preprocessed without it where it is declined.
            why, cue: as in `wire.LeaseRequest`.
        """
        wait_s = min(wait_s, wire.MAX_WAIT_S)
        run = bytes(items)

        tells = 0

        def ask(header: str | None, left_s: float) -> wire.LeaseAnswer:
            nonlocal tells
            tells = self.heartbeat.tells
            with self.heartbeat.asking() as (lease, lost):
                asked = wire.LeaseRequest(
                    lease=lease, recipe=RecipeDigest(recipe), generation=generation, items=run,
                    want=want, cost_s=cost_s, nbytes=nbytes, wait_s=wait_s, left=left, lost=lost, why=why,
                    cue=cue,
                )  # fmt: skip
                return self._exchange(wire.LeaseAnswer, "POST", "/v1/leases", asked)(header, left_s)

        while (answer := self._act(ask, wait_s=wait_s)).is_declined:
            self.heartbeat.wait_for_drops(waits.DROPS_S / 5)  # the job waits for this
            if not self._makes_way(tells):
                break
        if lie := answer.lie(len(run) // 32, want):
            raise self._lied(lie)
        again = answer.look_again
        if again is not None and not self.heartbeat.hold(again.artifacts, tells) and recipe in self._recipes:
            self.resolve(self._recipes[recipe][0], generation)
        return answer

    def stage(self) -> Staged:
        """A new file for an artifact: in the shared staging folder, or one that `commit` will upload."""
        header = self.open()
        return self._handover.stage(header)

    def commit(
        self, leases: Sequence[wire.Lease], staged: Sequence[Staged], *, limit_s: float | None = None
    ) -> wire.Committed:
        """Hands staged artifacts over; their items' leases are free then. It is for a thread on its own time.
        Others wait within the process's budget.

        Raises:
            Declined, LeaseLapsed, StagedFileRefused: nothing of it was stored.
            UnknownSession: the daemon had forgotten us and our leases; ask for new ones.
        """
        header = self.open()
        try:
            while True:
                tells = self.heartbeat.tells
                try:
                    committed = self._handover.commit(header, leases, staged, limit_s)
                    break
                except Declined:
                    self.heartbeat.wait_for_drops(waits.DROPS_S)
                    if not self._makes_way(tells):
                        raise
        except UnknownSession:
            with contextlib.suppress(PrepcacheError):
                self.reopen(header)
            raise
        self.heartbeat.hold(committed.artifacts, tells)
        return committed

    def waited_in_vain(self, seconds: float) -> None:
        """A commit was waited for so much too long; one more answer may be waited for all the same."""
        self.budget.charge(min(seconds, self.spare_s))

    @property
    def spare_s(self) -> float:
        """What commits may take beyond the time of their bytes."""
        return max(0.0, self.budget.remaining_s - waits.FREE_S)

    def limits(self) -> Mapping[str, Any]:
        """The daemon's, by name, as in `Client.info`."""
        told = self.run(lambda left_s: self.client.transport.call("GET", "/v1/info", limit_s=left_s))
        return self.client.transport.read(inspection.Info, told).limits

    def path_of(self, ref: wire.ArtifactRef) -> Path:
        """Where the artifact lies; downloaded first where no folder is shared.

        Raises:
            NotFound: it is gone meanwhile.
            ArtifactError: what was downloaded has other bytes.
        """
        self.open()
        return self._handover.path_of(ref)

    def _makes_way(self, tells: int) -> bool:
        """Gives up at once what a beat would tell later: it may be what there was no room for."""
        if (header := self.header) is not None:
            with contextlib.suppress(PrepcacheError):
                return self.run(lambda left_s: self.heartbeat.tell_dropped(self, header, left_s, tells))
        return False

    def forsake(self, leases: Iterable[wire.Lease]) -> None:
        """Gives leases back with the next request for one, or with the next beat. Costs nothing."""
        for lease in leases:
            self.heartbeat.note_lost(lease.id)

    def progress(self, recipe: RecipeLike, done: int, total: int) -> None:
        """Says how far this process is; told with the next beat. Costs nothing."""
        self.heartbeat.note_progress(recipe.digest, plain(recipe.name), done, total)

    def found(self, items: int, saved_s: float) -> None:
        """So many items were made already, at a cost of so many seconds. Told with the next beat."""
        self.heartbeat.note_found(items, saved_s)

    def touch(self, digests: Iterable[str]) -> None:
        """These artifacts were read: their holds stay strong. Told with the next beat."""
        self.heartbeat.note_used(digests)

    def drop_hold(self, refs: Sequence[wire.ArtifactRef]) -> None:
        """These artifacts are not mapped any more. Told with the next beat."""
        self.heartbeat.drop(ref.digest for ref in refs)

    def on_removed(self, callback: Callable[[set[str]], None]) -> None:
        """Calls back, from the beat thread, with digests whose maps must be let go (purged, weakened).

        A bound method is held weakly: it does not keep its data set alive.
        """
        self.heartbeat.on_removed(callback)

    def at_close(self, callback: Callable[[], None]) -> None:
        """Calls a method back before the session is closed at the end of the process, last come first. It is
        held weakly: it does not keep its data set alive.
        """
        for dead in [one for one in self._at_close if one() is None]:
            with contextlib.suppress(ValueError):  # another thread was quicker
                self._at_close.remove(dead)
        self._at_close.append(weakref.WeakMethod(callback))
        self._close_at_exit()

    def close(self) -> None:
        """Says goodbye, quickly and quietly; the session can be used again, and is a new one then."""
        while self._at_close:
            callback = self._at_close.pop()()
            try:
                if callback is not None:
                    callback()
            except PrepcacheError:
                pass
            except Exception:
                log.exception("prepcache: internal error at the end of the process")
        self.heartbeat.stop()
        answer, self._answer = self._answer, None
        if answer is not None and not self.is_gone:
            header = wire.session_header(answer.session, answer.token)
            with contextlib.suppress(PrepcacheError):
                self.heartbeat.tell_found(self, header, waits.CLOSE_S)
                self.client.transport.call(
                    "DELETE", f"/v1/sessions/{answer.session}", limit_s=waits.CLOSE_S, session=header
                )
        self.client.close()
        for key in [key for key, session in list(self._all.items()) if session is self]:
            self._all.pop(key, None)

    # How it is done.

    @property
    def header(self) -> str | None:
        """The session header; None while no session is open."""
        answer = self._answer
        return None if answer is None else wire.session_header(answer.session, answer.token)

    @property
    def order(self) -> int:
        """As in wire.SessionAnswer."""
        return 0 if self._answer is None else self._answer.order

    def open(self) -> str:
        """The session header; opens the session if need be."""
        header = self.header
        if header is not None:
            return header
        budget = self._budget_here()
        if not budget.acquire(self._opening):
            why = "another thread of this job opens its session, and the daemon does not answer"
            error = budget.give_up(self.client.url, why, is_final=False)
            self.heartbeat.look()
            raise error
        try:
            return self.header or self._opened()
        finally:
            self._opening.release()

    def _budget_here(self) -> WaitBudget:
        """The process's, or one of its own for a thread that nobody waits for."""
        own_s = 0.0 if self.budget.is_gone else own_time()  # nobody asks in an outage
        if self.heartbeat.is_me:
            own_s = waits.REOPEN_S
        return WaitBudget(own_s, consequence="") if own_s else self.budget

    def _opened(self) -> str:
        asked = wire.SessionRequest(job_name(), os.getpid(), socket.gethostname()[:256]).to_json()

        def attempt(left_s: float) -> wire.SessionAnswer:
            answer = self.client.transport.call("POST", "/v1/sessions", asked, limit_s=left_s)
            return self.client.transport.read(wire.SessionAnswer, answer)

        try:
            answer = self.run(attempt)
        except (RequestError, StoreError) as error:
            # Not this job's fault, nor anything that it could mend: it goes on by itself.
            raise self.budget.give_up(self.client.url, error.message) from error
        if answer.protocol != wire.PROTOCOL:
            raise self._lied(f"it speaks protocol {answer.protocol}, this client {wire.PROTOCOL}")
        self._handover.look_for_folder(answer)
        try:
            self.heartbeat.start(answer.beat_s)
        except RuntimeError as error:  # there are too many threads, or the process ends
            why = f"its session cannot be kept alive: {error}"
            raise self.budget.give_up(self.client.url, why) from error
        with self._answering:
            self._answer = answer
        self._close_at_exit()
        return wire.session_header(answer.session, answer.token)

    def _close_at_exit(self) -> None:
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _forget(self, header: str) -> None:
        """The daemon does not know this session any more."""
        with self._answering:
            if self.header == header:
                self._answer = None

    def reopen(self, header: str) -> None:
        """Opens a session in place of a forgotten one, and takes its holds again if nobody is at it."""
        self._forget(header)
        self.open()
        if not self._reopening.acquire(blocking=False):
            return
        try:
            self._take_holds_again()
        finally:
            self._reopening.release()

    def _take_holds_again(self) -> None:
        before, now = self.heartbeat.take_held(), set[str]()
        for known, is_registered in list(self._recipes.values()):
            found = self._resolve(known, 0, True, is_registered, may_reopen=False)
            now |= {ref.digest for ref in found.artifacts}
        self.heartbeat.drop(now - before)
        self.heartbeat.tell_removed(before - now)

    def _resolve(
        self, recipe: RecipeLike, generation: int, hold: bool, register: bool, *, may_reopen: bool
    ) -> wire.Resolved:
        asked = wire.ResolveRequest(
            recipe=RecipeDigest(recipe.digest),
            name=plain(recipe.name),
            generation=generation,
            hold=hold,
            register=fitting(recipe.parts) if register else None,
        )
        exchange = self._exchange(wire.Resolved, "POST", "/v1/resolve", asked)
        ask = functools.partial(self._act, exchange, is_acting=hold, may_reopen=may_reopen)
        try:
            found = self.heartbeat.holding(ask) if hold else ask()
        except FutureGeneration:  # another root, or a rebuilt index: its counters began at 0
            if generation == 0:
                raise
            return self._resolve(recipe, 0, hold, register, may_reopen=may_reopen)
        if hold:
            is_registered = register or self._recipes.get(recipe.digest, (None, False))[1]
            self._recipes[recipe.digest] = (Known.of(recipe), is_registered)
        return found

    def _exchange(self, gives: type[M], method: str, path: str, body: Message) -> _Exchange[M]:
        sent = body.to_json()

        def exchange(header: str | None, left_s: float) -> M:
            transport = self.client.transport  # another one, where the daemon turned out to listen elsewhere
            return transport.read(gives, transport.call(method, path, sent, limit_s=left_s, session=header))

        return exchange

    def _act(
        self, exchange: _Exchange[M], *, wait_s: float = 0.0, is_acting: bool = True, may_reopen: bool = True
    ) -> M:
        """One exchange in the session's name; once more in a new session's, where that one is forgotten."""
        header = self.open() if is_acting else None

        def attempt(left_s: float) -> M:
            return exchange(header, left_s)

        try:
            return self.run(attempt, wait_s=wait_s)
        except UnknownSession:
            if header is None or not may_reopen:
                raise
        try:
            self.reopen(header)
            header = self.open()
            return self.run(attempt, wait_s=wait_s)
        except UnknownSession as error:
            # It was restarted twice meanwhile. One that never knows its sessions is given up in the end.
            self.budget.charge(waits.FREE_S)
            why = "the daemon does not know a session that it has just opened"
            gone = self.budget.give_up(self.client.url, why, is_final=False)
            self.heartbeat.look()
            raise gone from error

    def run(self, attempt: Callable[[float], T], *, wait_s: float = 0.0) -> T:
        """Within the process's wait budget; threads of the session's own have theirs, and say nothing."""
        url, budget = self.client.url, self._budget_here()
        if self.client.mode is Mode.OFF:
            raise DaemonUnreachable("PREPCACHE=off: no daemon is asked", url=url, why="off")
        if not self.budget.has_met:
            self.budget.limit_first(self.client.first_wait())
        try:
            return budget.run(url, attempt, wait_s=wait_s, start=self.client.start, excuse=self._excuse)
        except ProtocolMismatch as error:
            raise self.budget.give_up(url, error.message) from error
        except DaemonUnreachable:
            if self.is_away:
                self.heartbeat.look()
            raise

    # Outages.

    def _excuse(self) -> str:
        """Why a daemon that has never answered is not to be blamed: it is the user's own, and starts."""
        return self.client.starts() if not self.budget.has_met else ""

    def give_up_for_now(self, why: str) -> None:
        """Begins an outage, if there is none: a thread has waited for the daemon on its own time, in vain."""
        if not self.is_gone:
            self.budget.give_up(self.client.url, why, is_final=False)
            self.heartbeat.look()

    def start_again(self) -> None:
        """Starts the user's own daemon where nobody listens; gives up where that is not possible."""
        try:
            self.client.start()
        except DaemonUnreachable as error:
            if error.data.get("why") != "starting":
                self.budget.give_up(self.client.url, error.message)

    def come_back(self) -> None:
        """Ends an outage: the daemon answers."""
        warned, again = self.budget.warned, " again" if self.budget.has_met else ""
        self.budget.come_back()
        if warned:
            log.warning("prepcache: %s: the daemon answers%s; using it", self.client.url, again)
        for callback in [kept() for kept in self._at_return]:
            if callback is not None:
                callback()

    def at_return(self, callback: Callable[[], None]) -> None:
        """Calls a method back, from a thread, when an outage has ended; it is held weakly, and does not
        wait."""
        self._at_return = [one for one in self._at_return if one() is not None]
        self._at_return.append(weakref.WeakMethod(callback))

    def wait_for_return(self, seconds: float) -> bool:
        """In an outage: waits for its end, at the budget's cost. False where nothing more may be spent."""
        self.heartbeat.look()
        if (given_s := self.budget.spend_away(seconds)) > 0:
            self.heartbeat.wait(given_s)
        return given_s > 0

    def watch_for_return(self) -> None:
        """Has a thread look for the daemon: a child that was forked in an outage has none yet."""
        self.heartbeat.look()

    def wait_at_end(self) -> float:
        """As the process ends with something left to hand over: waits out an outage while the daemon lives.

        Returns:
            How long what is left may take; 0 where the daemon does not answer.
        """
        if self._closes_at is None:
            self._closes_at = time.monotonic() + waits.HANDOVER_S
        looks = 0
        while self.is_away and (left_s := self._closes_at - time.monotonic()) > 0:
            if not (self.client.is_listened_to or self.client.starts()):
                return 0.0
            looks += 1
            if looks == 2 and not self._has_said_it_waits:
                self._has_said_it_waits = True
                log.warning(
                    "prepcache: %s; waiting up to %.0f s more for it to accept this job's samples",
                    self.client.starts() or "the daemon does not answer",
                    left_s,
                )
            self.heartbeat.look()
            self.heartbeat.wait(min(left_s, waits.ALIVE_S))
        return 0.0 if self.is_gone else max(0.0, self._closes_at - time.monotonic())

    def _lied(self, what: str) -> DaemonUnreachable:
        return self.budget.give_up(self.client.url, f"the daemon's answer is invalid: {what}")
