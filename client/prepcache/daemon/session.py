"""A session: this process as the daemon sees it. It owns leases and holds, and the daemon ends it with us.

Invariants:
    1. One session a process and daemon, opened by its first use. A forked child has its own.
    2. Every method answers within the process's wait budget (wait_budget.py) or raises `DaemonUnreachable`.
    3. A daemon that forgot us gives a new session, whose holds are taken again and whose lost artifacts are
       told to `on_removed`.

Locking: `_opening` is held while the session is opened, and waited for within the budget; `_answering` while
the answer is replaced, and never over a request.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from prepcache import forks
from prepcache.daemon import waits
from prepcache.daemon.client import Client
from prepcache.daemon.heartbeat import Callbacks, Heartbeat
from prepcache.daemon.transfer import Handover, Staged
from prepcache.daemon.wait_budget import OwnTime, WaitBudget, own_time
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
from prepcache.protocol.units import shortened
from prepcache.protocol.wire import Message
from prepcache.settings import Mode

if TYPE_CHECKING:
    from prepcache.keys.recipes import Recipe

T = TypeVar("T")

log = logging.getLogger("prepcache")


class Session:
    """`Session.current(client)` gives the one of this process."""

    _all: ClassVar[dict[tuple[str, str | None, bool], Session]] = {}
    """By URL, token, and whether it may start a daemon: one that only reads does not."""

    def __init__(self, client: Client, *, is_mute: bool = False) -> None:
        self.client = client
        self.is_mute = is_mute or client.mode is Mode.OFF
        """Whether no daemon is to be asked: every request is answered by nobody."""
        self.budget = WaitBudget(0.0) if self.is_mute else client.budget
        self.heartbeat = Heartbeat(self)
        self._handover = Handover(client, self.run)
        self._begin()
        forks.note(self)

    def _begin(self) -> None:
        self._opening = threading.Lock()
        self._answering = threading.Lock()
        self._reopening = threading.Lock()
        self._answer: wire.SessionAnswer | None = None
        self._recipes: dict[str, wire.ResolveRequest] = {}
        self._at_close = Callbacks()
        self._at_return = Callbacks()
        self._closes_at: float | None = None
        self._has_said_it_waits = False

    def after_fork(self) -> None:
        """A data set in a child still has its parent's session in hand: it becomes the child's own."""
        atexit.unregister(self.close)
        self._begin()
        self.heartbeat.after_fork()

    @classmethod
    def current(cls, client: Client) -> Session:
        """This process's session with the daemon of `client`. Opens nothing yet."""
        if client.mode is Mode.OFF:
            return cls(client)
        key = client.url, client.token, client.mode.is_writing
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
        self, recipe: Recipe, generation: int = 0, *, hold: bool = True, register: bool = False
    ) -> wire.Resolved:
        """The recipe's artifacts, new since `generation`; all of them where `is_complete`.

        Args:
            hold: take holds on them, in the same step.
            register: tell the recipe's readable parts, which a first lease needs.
        """
        asked = wire.ResolveRequest(
            recipe=RecipeDigest(recipe.digest),
            name=shortened(recipe.name, wire.MAX_NAME),
            generation=generation,
            hold=hold,
            register=fitting(recipe.parts) if register else None,
        )
        try:
            found: wire.Resolved = self.run(
                self._call("POST", "/v1/resolve", wire.Resolved, asked), acts=hold
            )
        except FutureGeneration:  # another root, or a rebuilt index: its counters began at 0
            if generation == 0:
                raise
            return self.resolve(recipe, hold=hold, register=register)
        if hold:
            self.heartbeat.hold(found.artifacts)
            if register or asked.recipe not in self._recipes:
                self._recipes[asked.recipe] = msgspec.structs.replace(asked, generation=0)
        return found

    def lease(
        self, recipe: str, generation: int, items: Any, *, want: int, wait_s: float = 0.0, **more: Any
    ) -> wire.LeaseAnswer:
        """Leave to preprocess some of these items, or what else to do.

        Args:
            items: `uint8[k, 32]`, k at most `wire.MAX_ITEMS`; `granted` are indices into it.
            more: as in `LeaseRequest`, as the others.
        """
        wait_s, run, tells = min(wait_s, wire.MAX_WAIT_S), bytes(items), self.heartbeat.tells

        def ask(limit_s: float, session: str) -> Any:
            with self.heartbeat.asking() as (lease, lost):
                asked = wire.LeaseRequest(
                    lease, RecipeDigest(recipe), generation, run, want, wait_s=wait_s, lost=lost, **more
                )
                return self.client.transport.call(
                    "POST", "/v1/leases", asked, gives=wire.LeaseAnswer, limit_s=limit_s, session=session
                )

        answer: wire.LeaseAnswer = self.run(ask, wait_s=wait_s, acts=True)
        if answer.is_declined and self._makes_way(tells):
            answer = self.run(ask, wait_s=wait_s, acts=True)
        if lie := answer.lie(len(run) // 32, want):
            raise self._give_up(f"the daemon's answer is invalid: {lie}")
        if (again := answer.look_again) is not None:
            self.heartbeat.hold(again.artifacts)
        return answer

    def stage(self) -> Staged:
        """A new file for an artifact: in the shared staging folder, or one that `commit` will upload."""
        return self._handover.stage(self.open())

    def commit(
        self, leases: Sequence[wire.Lease], staged: Sequence[Staged], *, limit_s: float | None = None
    ) -> wire.Committed:
        """Hands staged artifacts over; their items' leases are free then.

        Raises:
            Declined, LeaseLapsed, StagedFileRefused: nothing of it was stored.
            UnknownSession: the daemon had forgotten us and our leases; ask for new ones.
        """
        header, tells = self.open(), self.heartbeat.tells
        try:
            try:
                committed = self._handover.commit(header, leases, staged, limit_s)
            except Declined:
                if not self._makes_way(tells):
                    raise
                committed = self._handover.commit(header, leases, staged, limit_s)
        except UnknownSession:
            with contextlib.suppress(PrepcacheError):
                self.reopen(header)
            raise
        self.heartbeat.hold(committed.artifacts)
        return committed

    def waited_in_vain(self, seconds: float) -> None:
        """A commit was waited for so much too long; one more answer may be waited for all the same."""
        self.budget.charge(min(seconds, self.spare_s))

    @property
    def spare_s(self) -> float:
        """What commits may take beyond the time of their bytes."""
        return max(0.0, self.budget.remaining_s - waits.FREE_S)

    def limits(self) -> Mapping[str, Any]:
        info: inspection.Info = self.run(self._call("GET", "/v1/info", inspection.Info))
        return info.limits

    def path_of(self, ref: wire.ArtifactRef) -> Path:
        """Where the artifact lies; downloaded first where no folder is shared."""
        self.open()
        return self._handover.path_of(ref, self.heartbeat.held)

    @property
    def is_by_path(self) -> bool:
        return self._handover.is_by_path

    def _makes_way(self, tells: int) -> bool:
        """After a refusal for lack of room: tells at once which holds were dropped; whether any were since
        `tells` was so. What another thread is about to drop is waited for."""
        budget, began = self._budget_here(), time.monotonic()
        self.heartbeat.await_looks(min(waits.DROPS_S, budget.remaining_s))
        budget.charge(time.monotonic() - began - waits.FREE_S)
        try:
            if (header := self.header) is not None and self.heartbeat.dropped:
                self.run(lambda limit_s: self.heartbeat.tell(self, header, limit_s))
        except PrepcacheError:
            return False
        return self.heartbeat.tells != tells

    def at_close(self, callback: Callable[[], None]) -> None:
        """Calls back before the session is closed at the end of the process, last come first."""
        if not self.is_mute:
            self._at_close.add(callback)
            self._close_at_exit()

    def close(self) -> None:
        """Ends the session; it can be used again, and is a new one then."""
        while callbacks := self._at_close.take():
            for callback in reversed(callbacks):
                try:
                    callback()
                except PrepcacheError:
                    pass
                except Exception:
                    log.exception("prepcache: internal error at the end of the process")
        self.heartbeat.stop()
        header, self._answer = self.header, None
        if header is not None and not self.is_gone:
            path = f"/v1/sessions/{header.partition('.')[0]}"
            with contextlib.suppress(PrepcacheError):
                if self.heartbeat.found[0]:  # a job may be over before its first beat
                    self.heartbeat.tell(self, header, waits.CLOSE_S)
                self.client.transport.call("DELETE", path, limit_s=waits.CLOSE_S, session=header)
        self.client.close()
        for key in [key for key, session in list(self._all.items()) if session is self]:
            self._all.pop(key, None)

    # How it is done.

    @property
    def header(self) -> str | None:
        answer = self._answer
        return None if answer is None else wire.session_header(answer.session, answer.token)

    @property
    def order(self) -> int:
        return 0 if self._answer is None else self._answer.order

    def open(self) -> str:
        header = self.header
        if header is not None:
            return header
        if not self._budget_here().acquire(self._opening):
            why = "another thread of this job opens its session, and the daemon does not answer"
            raise self._give_up(why, is_final=False)
        try:
            return self.header or self._opened()
        finally:
            self._opening.release()

    def _budget_here(self) -> WaitBudget:
        """The job's budget, or the own time of this thread."""
        if self.heartbeat.is_me:
            return OwnTime(waits.REOPEN_S)
        own_s = 0.0 if self.budget.is_gone else own_time()  # nobody asks in an outage
        return OwnTime(own_s) if own_s else self.budget

    def _opened(self) -> str:
        asked = wire.SessionRequest(job_name(), os.getpid(), socket.gethostname()[:256])
        try:
            answer: wire.SessionAnswer = self.run(
                self._call("POST", "/v1/sessions", wire.SessionAnswer, asked)
            )
            if answer.protocol != wire.PROTOCOL:
                told = f"it speaks protocol {answer.protocol}, this client {wire.PROTOCOL}"
                raise self._give_up(f"the daemon's answer is invalid: {told}")
            self._handover.look_for_folder(answer)
            self.heartbeat.start(answer.beat_s)
        except (RequestError, StoreError) as error:
            # Not this job's fault, nor anything that it could mend: it goes on by itself.
            raise self._give_up(error.message) from error
        except RuntimeError as error:  # there are too many threads, or the process ends
            raise self._give_up(f"its session cannot be kept alive: {error}") from error
        with self._answering:
            self._answer = answer
        self._close_at_exit()
        return wire.session_header(answer.session, answer.token)

    def _close_at_exit(self) -> None:
        atexit.unregister(self.close)
        atexit.register(self.close)

    def reopen(self, header: str) -> None:
        """Opens a session in place of a forgotten one, and takes its holds again if nobody is at it."""
        with self._answering:
            if self.header == header:
                self._answer = None
        self.open()
        if not self._reopening.acquire(blocking=False):
            return
        try:
            before, now = self.heartbeat.take_held(), set[str]()
            for asked in list(self._recipes.values()):
                call = self._call("POST", "/v1/resolve", wire.Resolved, asked)
                found: wire.Resolved = self.run(call, acts=True, may_reopen=False)
                self.heartbeat.hold(found.artifacts)
                now |= {str(ref.digest) for ref in found.artifacts}
            self.heartbeat.drop(now - before)
            self.heartbeat.tell_removed(before - now)
        finally:
            self._reopening.release()

    def _call(
        self, method: str, path: str, gives: type[Message], body: Message | None = None
    ) -> Callable[..., Any]:
        """An exchange as `run` takes it."""
        if self.is_mute:
            raise DaemonUnreachable(f"PREPCACHE={self.client.mode.value}: no daemon is asked", why="off")
        return functools.partial(self.client.transport.call, method, path, body, gives=gives)

    def run(
        self, attempt: Callable[..., T], *, wait_s: float = 0.0, acts: bool = False, may_reopen: bool = True
    ) -> T:
        """`attempt(limit_s=...)` within the process's wait budget.

        Args:
            wait_s: how long the daemon was asked to keep the request.
            acts: in the session's name, which `attempt` gets as `session`; once more in a new session's,
                where that one is forgotten.
        """
        header = self.open() if acts else None
        call = functools.partial(attempt, session=header) if acts else attempt
        budget, start = self._budget_here(), self.client.start
        try:
            return budget.run(self.client.url, call, wait_s=wait_s, start=start, excuse=self._excuse)
        except ProtocolMismatch as error:
            raise self._give_up(error.message) from error
        except DaemonUnreachable:
            if self.is_away:
                self.heartbeat.look()
            raise
        except UnknownSession as error:
            if header is None or not may_reopen:
                raise
            try:
                self.reopen(header)
                return self.run(attempt, wait_s=wait_s, acts=acts, may_reopen=False)
            except UnknownSession:  # one that never knows its sessions is given up in the end
                self.budget.charge(waits.FREE_S)
                why = "the daemon does not know a session that it has just opened"
                raise self._give_up(why, is_final=False) from error

    # Outages.

    def _give_up(self, why: str, *, is_final: bool = True) -> DaemonUnreachable:
        error = self.budget.give_up(self.client.url, why, is_final=is_final)
        self.heartbeat.look()
        return error

    def _excuse(self) -> str:
        """Why a daemon that has never answered is not to be blamed: it is the user's own, and starts."""
        return self._starts() if not self.budget.has_met else ""

    def _starts(self) -> str:
        return "the daemon is starting" if self.client.endpoint.is_starting else ""

    def give_up_for_now(self, why: str) -> None:
        """Begins an outage, if there is none: a thread waited on its own time, in vain."""
        if not self.is_gone:
            self._give_up(why, is_final=False)

    def start_again(self) -> None:
        try:
            self.client.start()
        except DaemonUnreachable as error:
            self._give_up(error.message)

    def come_back(self) -> None:
        warned, again = self.budget.warned, " again" if self.budget.has_met else ""
        self.budget.come_back()
        if warned:
            log.warning("prepcache: %s: the daemon answers%s; using it", self.client.url, again)
        self._at_return.call()

    def at_return(self, callback: Callable[[], None]) -> None:
        """Calls back, from a thread, when an outage has ended; what it calls does not wait."""
        self._at_return.add(callback)

    def wait_for_return(self, seconds: float) -> bool:
        """In an outage: waits for its end, at the budget's cost. False where nothing more may be spent."""
        self.heartbeat.look()
        if (given_s := self.budget.spend_away(seconds)) > 0:
            self.heartbeat.wait(given_s)
        return given_s > 0

    def wait_at_end(self) -> float:
        """As the process ends with something left to hand over: waits out an outage. All data sets together
        have `HANDOVER_S` for a daemon that starts, and what is left of the budget for another.

        Returns:
            Seconds that what is left may take beyond the budget; 0 where no daemon has started meanwhile.
        """
        has_started = False
        if self._closes_at is None:
            self._closes_at = time.monotonic() + waits.HANDOVER_S
        while self.is_away and (left_s := self._closes_at - time.monotonic()) > 0:
            starts, given_s = self._starts(), min(left_s, waits.ALIVE_S)
            has_started |= bool(starts)
            if not starts:
                given_s = self.budget.spend_away(given_s) if self.client.endpoint.is_listening else 0.0
            if not given_s:
                if has_started:
                    self.start_again()  # says why the one that started has ended
                return 0.0
            self.heartbeat.look()
            self.heartbeat.wait(given_s)
            if self.is_away and starts and not self._has_said_it_waits:
                self._has_said_it_waits = True
                log.warning(
                    "prepcache: %s; waiting up to %.0f s for it to take this job's samples", starts, left_s
                )
        return max(0.0, self._closes_at - time.monotonic()) if has_started and not self.is_gone else 0.0

    def look_at_end(self) -> None:
        """As a worker ends with something left to hand over: ends an outage that is over, and waits for a
        daemon that starts, until that is `BUDGET_S` old: all workers of a job together lose no more."""
        while self.is_away:
            try:
                self.client.transport.call("GET", "/healthz", limit_s=waits.RETRY_S)
                self.come_back()
            except PrepcacheError:
                if self.client.endpoint.age_s > waits.BUDGET_S:
                    return
                time.sleep(waits.RETRY_S)


def job_name() -> str:
    script = script_run()
    return shortened(Path(script).name if script not in ("", "-c", "-m") else "python", wire.MAX_NAME)


def script_run() -> str:
    """`sys.argv[0]`; "" in a program that embeds Python and gives it no command line."""
    return next(iter(getattr(sys, "argv", ())), "")


def fitting(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The readable parts, less the largest members where all of them are more than a daemon takes."""
    sizes = {name: len(json.dumps(value, default=str)) for name, value in parts.items()}
    kept = dict(parts)
    while sum(sizes[name] for name in kept) > wire.MAX_PARTS_BYTES:
        del kept[max(kept, key=lambda name: sizes[name])]
    return kept
