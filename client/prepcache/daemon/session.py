"""A session: this process as the daemon sees it. It owns leases and holds, and the daemon ends it with us.

Invariants:
    1. One session a process and daemon, opened by its first use. A forked child has its own.
    2. Every method answers within the process's wait budget (waits.py) or raises `DaemonUnreachable`.
    3. A daemon that forgot us gives a new session, in which data sets take their holds again.

Locking: `_opening` is held while the session is opened, and waited for within the budget.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from prepcache import errors, forks
from prepcache.daemon import transfer, waits
from prepcache.daemon.heartbeat import Heartbeat
from prepcache.daemon.launcher import BaseClient
from prepcache.daemon.waits import OwnTime, WaitBudget, own_time
from prepcache.digests import RecipeDigest
from prepcache.protocol import wire
from prepcache.protocol.places import cache_folder
from prepcache.protocol.units import shortened
from prepcache.protocol.wire import Message
from prepcache.settings import Mode

if TYPE_CHECKING:
    from prepcache.keys.recipes import Recipe

T = TypeVar("T")
M = TypeVar("M", bound=Message)

log = logging.getLogger("prepcache")


class Session:
    """`Session.current(client)` gives the one of this process."""

    _all: ClassVar[dict[tuple[str, str | None, bool], Session]] = {}
    """By URL, token, and whether it may start a daemon: one that only reads does not."""

    def __init__(self, client: BaseClient) -> None:
        self.client = client
        self.budget = client.budget
        self.heartbeat = Heartbeat(self)
        self._listeners: forks.Living[Any] = forks.Living()
        self.shared: transfer.SharedFolder | None = None
        self._downloads = cache_folder(os.environ) / "downloads-v1"
        self._begin()
        forks.note(self)

    def _begin(self) -> None:
        self._opening = threading.Lock()
        self._reopening = threading.Lock()
        self._looking = threading.RLock()
        self._answer: wire.SessionAnswer | None = None
        self._closes_at: float | None = None

    def after_fork(self) -> None:
        atexit.unregister(self.close)
        self._begin()
        self.heartbeat.after_fork()

    @classmethod
    def current(cls, client: BaseClient) -> Session:
        """This process's session with the daemon of `client`. Opens nothing yet."""
        if client.mode is Mode.OFF:
            return cls(client)
        key = client.url, client.token, client.mode.is_writing
        return cls._all.get(key) or cls._all.setdefault(key, cls(client))  # of two threads' one is used

    @property
    def is_gone(self) -> bool:
        return self.budget.is_gone

    @property
    def is_away(self) -> bool:
        return self.budget.is_away

    # What a data set does.

    def resolve(
        self, recipe: Recipe, generation: int = 0, *, hold: bool = True, register: bool = False
    ) -> wire.Resolved:
        """The recipe's artifacts, new since `generation`; all of them where `is_complete`. `hold` takes holds
        on them in the same step, `register` tells the recipe's readable parts, which a first lease needs."""
        asked = wire.ResolveRequest(
            recipe=RecipeDigest(recipe.digest),
            name=shortened(recipe.name, wire.MAX_NAME),
            generation=generation,
            hold=hold,
            register=fitting(recipe.parts) if register else None,
        )
        try:
            return self.run(self._call("POST", "/v1/resolve", wire.Resolved, asked), acts=hold)
        except errors.FutureGeneration:  # another root, or a rebuilt index: its counters began at 0
            if generation == 0:
                raise
            return self.resolve(recipe, hold=hold, register=register)

    def lease(
        self, recipe: str, generation: int, items: Any, *, want: int, wait_s: float = 0.0, **more: Any
    ) -> wire.LeaseAnswer:
        """Leave to preprocess some of these items (`uint8[k, 32]`, into which `granted` are indices), or what
        else to do; all is as in `LeaseRequest`."""
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
            raise self.give_up(f"the daemon's answer is invalid: {lie}")
        return answer

    def staging(self) -> Path | None:
        """The folder of which the daemon takes files of this process; None where they are uploaded. Over TCP
        the daemon cannot tell whose a file is."""
        self.open()
        if self.shared is None or self.client.endpoint.address.socket is None:
            return None
        return self.shared.staging

    def commit(
        self, leases: Sequence[wire.Lease], fd: int, *, limit_s: float | None = None
    ) -> wire.Committed:
        """Hands the artifact in a file over; its items' leases are free then. Raises UnknownSession where the
        daemon had forgotten us and our leases."""
        header, tells = self.open(), self.heartbeat.tells
        try:
            return self._commit(header, leases, fd, limit_s)
        except errors.Declined:
            if not self._makes_way(tells):
                raise
            return self._commit(header, leases, fd, limit_s)
        except errors.UnknownSession:
            with contextlib.suppress(errors.PrepcacheError):
                self.reopen(header)
            raise

    def _commit(
        self, header: str, leases: Sequence[wire.Lease], fd: int, limit_s: float | None
    ) -> wire.Committed:
        path, size_bytes = f"/v1/leases/{leases[0].id}", os.fstat(fd).st_size
        until = math.inf if limit_s is None else time.monotonic() + limit_s
        file = wire.StagedFile(f"{header.partition('.')[0]}.{secrets.token_hex(8)}", size_bytes)
        folder = self.staging()
        if folder is None or not transfer.stage(fd, folder / file.name):
            file = self._uploaded(f"{path}/data", fd, size_bytes, header, until)
        if limit_s is None:
            limit_s = waits.COMMIT_LIMIT_S + size_bytes / waits.SLOWEST_COMMIT
            until = time.monotonic() + limit_s
        tokens = tuple(wire.LeaseToken(one.id, one.token) for one in leases)

        def attempt(limit_s: float) -> Any:
            return self.client.transport.call(
                "POST", f"{path}/commit", wire.CommitRequest(tokens, file), gives=wire.Committed,
                limit_s=min(limit_s, transfer.left_s(until)), session=header,
            )  # fmt: skip

        committed: wire.Committed = self.run(attempt, wait_s=limit_s if own_time() else 0.0)
        return committed

    def _uploaded(self, path: str, fd: int, size_bytes: int, header: str, until: float) -> wire.StagedFile:
        def attempt(limit_s: float) -> Any:
            return self.client.transport.upload(
                path, transfer.pieces(fd), size_bytes, gives=wire.StagedFile, until=until, session=header,
                limit_s=min(transfer.silence_s(limit_s), transfer.left_s(until)),
            )  # fmt: skip

        uploaded: wire.StagedFile = self.run(attempt, wait_s=waits.TRANSFER_LIMIT_S)
        return uploaded

    def path_of(self, ref: wire.ArtifactRef) -> Path:
        """Where the artifact lies; downloaded first where no folder is shared."""
        self.open()
        if self.shared is not None:
            return self.shared.path_of(ref.digest)

        def attempt(fd: int, limit_s: float) -> None:
            self.client.transport.download(
                f"/v1/entries/{ref.key}/data", fd, etag=f'"{ref.digest}"', max_bytes=ref.size_bytes,
                limit_s=transfer.silence_s(limit_s),
            )  # fmt: skip

        def fetch(fd: int) -> None:
            self.run(functools.partial(attempt, fd), wait_s=waits.TRANSFER_LIMIT_S)

        return transfer.downloaded(self._downloads, ref.digest, ref.size_bytes, fetch)

    @property
    def spare_s(self) -> float:
        """What commits may take beyond the time of their bytes, so that one more answer may be waited for."""
        return max(0.0, self.budget.remaining_s - waits.FREE_S)

    def limits(self) -> Mapping[str, Any]:
        from prepcache.protocol.inspection import Info

        return self.run(self._call("GET", "/v1/info", Info)).limits

    @contextlib.contextmanager
    def looking(self, wait_s: float = 0.0) -> Iterator[None]:
        """Around a request whose answer takes holds on all that it names, until those on what is not used are
        dropped. It waits at most `wait_s` for a thread that is within it, and then goes on all the same."""
        is_mine = self._looking.acquire(timeout=wait_s)
        try:
            yield
        finally:
            if is_mine:
                self._looking.release()

    def _makes_way(self, tells: int) -> bool:
        """After a refusal for lack of room: tells which holds were dropped; whether any were since."""
        budget, began = self._budget_here(), time.monotonic()
        with self.looking(min(waits.DROPS_S, budget.remaining_s)), contextlib.suppress(errors.PrepcacheError):
            budget.charge(time.monotonic() - began - waits.FREE_S)
            if (header := self.header) is not None and self.heartbeat.dropped:
                self.run(lambda limit_s: self.heartbeat.tell(self, header, limit_s))
        return self.heartbeat.tells != tells

    def listen(self, one: Any) -> None:
        """Has the methods of `one` called, as long as it is there: `on_removed(digests)` when maps must be
        let go, `on_beat()`, `on_return()` after an outage, `on_reopened()` when another session holds nothing
        yet, and `on_close()` at the end of the process."""
        if self.client.mode is not Mode.OFF:
            self._listeners.add(one)
            self._close_at_exit()

    def call_listeners(self, name: str, *arguments: Any) -> None:
        for one in self._listeners:
            try:
                if (method := getattr(one, name, None)) is not None:
                    method(*arguments)
            except errors.PrepcacheError:
                pass
            except Exception:
                log.exception("prepcache: internal error in %s of a session", name)

    def close(self) -> None:
        self.call_listeners("on_close")
        transfer.sweep(self._downloads)
        self.heartbeat.stop()
        header, self._answer = self.header, None
        if header is not None and not self.is_gone:
            path = f"/v1/sessions/{header.partition('.')[0]}"
            with contextlib.suppress(errors.PrepcacheError):
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

    def open(self, forgotten: str | None = None) -> str:
        """The header of the session; of another one than a forgotten one."""
        header = self.header
        if header is not None and header != forgotten:
            return header
        if not self._budget_here().acquire(self._opening):
            why = "another thread of this job is opening its session, and the daemon does not answer"
            raise self.give_up(why, is_final=False)
        try:
            header = self.header
            return header if header is not None and header != forgotten else self._opened()
        finally:
            self._opening.release()

    def _budget_here(self) -> WaitBudget:
        if self.heartbeat.thread is threading.current_thread():
            return OwnTime(waits.REOPEN_S)
        own_s = 0.0 if self.budget.is_gone else own_time()  # nobody asks in an outage
        return OwnTime(own_s) if own_s else self.budget

    def _opened(self) -> str:
        asked = wire.SessionRequest(script_name(), os.getpid(), socket.gethostname()[:256])
        try:
            answer = self.run(self._call("POST", "/v1/sessions", wire.SessionAnswer, asked))
            if answer.protocol != wire.PROTOCOL:
                told = f"protocol {answer.protocol}, not {wire.PROTOCOL}: install one version for both"
                raise self.give_up(f"the daemon's answer is invalid: {told}")
            override = self.client.settings.folder
            self.shared = transfer.SharedFolder.find(override, answer.root, answer.staging, answer.instance)
            self.heartbeat.start(answer.beat_s)
        except (errors.RequestError, errors.StoreError) as error:
            # Not this job's fault, nor anything that it could mend: it goes on by itself.
            raise self.give_up(error.message) from error
        except RuntimeError as error:  # there are too many threads, or the process ends
            raise self.give_up(f"its session cannot be kept alive: {error}") from error
        self._answer = answer
        self._close_at_exit()
        return wire.session_header(answer.session, answer.token)

    def _close_at_exit(self) -> None:
        atexit.unregister(self.close)
        atexit.register(self.close)

    def reopen(self, header: str) -> None:
        """Opens a session in place of a forgotten one, and has listeners take their holds again."""
        self.open(header)
        if self._reopening.acquire(blocking=False):
            try:
                self.heartbeat.held.clear()
                self.call_listeners("on_reopened")
            finally:
                self._reopening.release()

    def _call(self, method: str, path: str, gives: type[M], body: Message | None = None) -> Callable[..., M]:
        if self.client.mode is Mode.OFF:
            raise errors.DaemonUnreachable("PREPCACHE=off: no daemon is asked", why="off")
        return functools.partial(self.client.transport.call, method, path, body, gives=gives)

    def run(self, attempt: Callable[..., T], *, wait_s: float = 0.0, acts: bool = False) -> T:
        """`attempt(limit_s=...)` within the process's wait budget, which is longer by `wait_s`.

        Where it `acts`, it gets the session's header as `session`; once more a new one's, if that is
        forgotten."""
        url, start, is_repeated = self.client.url, self.client.start, False
        while True:
            header = self.open() if acts else None
            call = functools.partial(attempt, session=header) if acts else attempt
            try:
                answer = self._budget_here().run(url, call, wait_s=wait_s, start=start, excuse=self._starts)
                self.client.endpoint.answered_at = time.time()
                return answer
            except errors.ProtocolMismatch as error:
                raise self.give_up(error.message) from error
            except errors.DaemonUnreachable:
                if self.is_away:
                    self.heartbeat.look()
                raise
            except errors.UnknownSession as error:
                if header is None:
                    raise
                if is_repeated:  # one that never knows its sessions is given up in the end
                    self.budget.charge(waits.FREE_S)
                    why = "the daemon does not know a session that it has just opened"
                    raise self.give_up(why, is_final=False) from error
            self.reopen(header)
            is_repeated = True

    # Outages.

    def give_up(self, why: str, *, is_final: bool = True) -> errors.DaemonUnreachable:
        error = self.budget.give_up(self.client.url, why, is_final=is_final)
        self.heartbeat.look()
        return error

    def _starts(self) -> str:
        return "the daemon is starting" if self.client.endpoint.is_starting else ""

    def start_again(self) -> None:
        try:
            self.client.start()
        except errors.DaemonUnreachable as error:
            self.give_up(error.message)

    def come_back(self) -> None:
        warned, again = self.budget.warned, " again" if self.budget.has_met else ""
        self.budget.come_back()
        if warned:
            log.warning("prepcache: %s: the daemon answers%s; using it", self.client.url, again)
        self.call_listeners("on_return")

    def wait_at_end(self) -> float:
        """As the process ends with something left to hand over: waits for a daemon that starts, `HANDOVER_S`
        for all data sets together. Gives the seconds that the rest may take beyond the budget."""
        if not self._starts():
            return 0.0
        is_first = self._closes_at is None
        closes_at = self._closes_at = self._closes_at or time.monotonic() + waits.HANDOVER_S
        while self.is_away and (rest_s := closes_at - time.monotonic()) > 0:
            self.heartbeat.look()
            self.heartbeat.is_back.wait(min(rest_s, waits.ALIVE_S))
            if self.is_away and not self._starts():
                self.start_again()  # says why the one that started has ended
            elif self.is_away and is_first:
                is_first = False
                told = "prepcache: %s; waiting up to %.0f s for it to take this job's samples"
                log.warning(told, self._starts(), rest_s)
        return 0.0 if self.is_gone else max(0.0, closes_at - time.monotonic())


def script_name() -> str:
    """The name of the script that runs, or "python"; what embeds Python may give it no command line."""
    script = next(iter(getattr(sys, "argv", ())), "")
    return shortened(Path(script).name if script not in ("", "-c", "-m") else "python", wire.MAX_NAME)


def fitting(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The readable parts; none where they are more than a daemon takes."""
    return dict(parts) if len(json.dumps(parts, default=str)) <= wire.MAX_PARTS_BYTES else {}
