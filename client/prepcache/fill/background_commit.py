"""The committer: commits batches in a thread, while preprocessing and training go on.

One thread of the process commits for all data sets, one batch after the other. It is there only while
something is to be committed.

Invariants:
    1. A batch stays here until it is committed, or the job goes on without storing it.
    2. A job waits for commits only so that it does not preprocess faster than the daemon stores. What takes
       longer than its bytes is charged to the process's wait budget, and then is waited for no more: the
       samples go into files of this job, the job goes on, and the commit goes on in the thread.
    3. After a commit that was waited for in vain, none is waited for before that one is answered: a daemon
       that hangs in one hangs in the next.
    4. While the daemon is away, what was made waits in files of this job, up to `AWAY_BYTES` of it. What a
       store had an error for is offered once more.
    5. What waits is committed though its data set is dropped: the thread keeps this alive, and nothing else
       but the data set does.
    6. A process that ends waits for its commits as long as a fill would. A job that has made something while
       its daemon was away gives a daemon that lives `HANDOVER_S` in all to take it.
    7. A DataLoader worker that gets SIGTERM during its last commits ends after them.

Locking: `_flushing`, held over commits; `changed` guards what waits, and is never held over a request.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Any, Protocol

import numpy as np

from prepcache import forks
from prepcache.daemon import waits
from prepcache.daemon.transfer import commit_limit_s
from prepcache.daemon.wait_budget import on_own_time
from prepcache.errors import ArtifactError, DaemonUnreachable
from prepcache.fill.collect import Task
from prepcache.fill.commit import Batch, Commits, Outcome, Result
from prepcache.protocol import wire
from prepcache.protocol.observed import chunks_of
from prepcache.protocol.units import count_text

log = logging.getLogger("prepcache")

AWAY_BYTES = 1 << 30
"""What may wait in files of one process; beyond that nothing more is kept."""
RETRY_S = 5.0
"""How often what waits for the daemon is offered to it."""
TELLING_BYTES = 4 << 20
"""A smaller commit tells nothing of speed."""
MAX_LAPSES = 3
"""Batches in a row whose leases lapse before they are committed, and nobody else makes their items."""


class Due(Protocol):
    """What the thread runs."""

    def run(self) -> None:
        """Does what is due; called in the thread."""


class _Thread:
    """The thread of this process: it runs what is due, and ends when nothing is to come."""

    def __init__(self) -> None:
        self.after_fork()
        forks.note(self)

    def after_fork(self) -> None:
        """In a child: what is due is its parent's."""
        self._changed = threading.Condition()
        self._due: dict[Due, float] = {}
        self._thread: threading.Thread | None = None
        _LATE.clear()

    @property
    def is_there(self) -> bool:
        """Whether it runs; it does not where no thread can be started."""
        return self._thread is not None

    def schedule(self, one: Due, after_s: float = 0.0) -> None:
        """Has `one.run()` called so soon."""
        at = time.monotonic() + after_s
        if self._due.get(one, math.inf) <= at:  # to wake it for each sample costs more than the sample
            return
        with self._changed, contextlib.suppress(RuntimeError):
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="prepcache-commit", daemon=True)
                thread.start()  # where it fails, the next call tries again
                self._thread = thread
            self._due[one] = at
            self._changed.notify_all()

    def cancel(self, one: Due) -> None:
        """It is not to be called."""
        with self._changed:
            self._due.pop(one, None)

    def _run(self) -> None:
        while (one := self._next()) is not None:
            try:
                one.run()
            except Exception:
                log.exception("prepcache: internal error while committing")
            del one  # nothing but what is to come keeps it

    def _next(self) -> Due | None:
        with self._changed:
            while self._due:
                one = min(self._due, key=lambda one: self._due[one])
                if (left_s := self._due[one] - time.monotonic()) <= 0:
                    del self._due[one]
                    return one
                self._changed.wait(left_s)
            self._thread = None
            return None


_LATE: weakref.WeakSet[Batch] = weakref.WeakSet()
"""Batches whose commit took too long and is not answered yet."""
THREAD = _Thread()
_WAITING: weakref.WeakValueDictionary[int, Batch] = weakref.WeakValueDictionary()
"""What waits in files of this process, by identity: a `WeakSet` cannot be read while another thread adds."""


def _waiting() -> list[Batch]:
    return [batch for ref in _WAITING.valuerefs() if (batch := ref()) is not None]


def waiting_bytes() -> int:
    """How much waits in files of this process for a daemon that is away or slow."""
    return sum(batch.nbytes for batch in _waiting())


def waiting_of(recipe: str) -> list[Batch]:
    """What waits in files of this process, of one recipe: batches of any data set's."""
    return [
        batch
        for batch in _waiting()
        if (files := batch.files) and all(file.artifact.recipe == recipe for file in files)
    ]


class Committer:
    """Commits what one data set makes in this process.

    Args:
        artifacts: those of the recipe, as in artifact_set.py.
        task: gives catalogue and producer.

    Attributes:
        changed: notified when a batch has an outcome.
        reason: why nothing more is stored, or "".
        is_declined: since there is no room.
    """

    def __init__(self, artifacts: Any, task: Task) -> None:
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.reason = ""
        self.is_declined = False
        self.last_s = 0.0
        """What the last commit took."""
        self._artifacts = artifacts
        self._task = task
        self._flushing = threading.Lock()
        self._todo: deque[Batch] = deque()
        self._aside: list[Batch] = []
        self._lapses = 0
        self._retry_at = 0.0
        self._bytes_per_s = float(waits.FIRST_BYTES_PER_S)
        self.collect: Callable[[], Callable[[], None] | None] = lambda: None
        """Weakly, what hands over at the end what it has made."""
        # A forked or spawned worker ends without atexit; in the job itself the session ends first.
        at_end = Finalize(None, _end, (weakref.WeakMethod(self.end),), exitpriority=100)
        weakref.finalize(self, at_end.cancel).atexit = False
        artifacts.session.at_close(self.end)
        artifacts.session.at_return(self._retry)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be committed."""
        return not (self._todo or self._aside)

    @property
    def nbytes(self) -> int:
        """What waits."""
        return sum(batch.nbytes for batch in [*self._todo, *self._aside])

    def reset(self) -> None:
        """A fill has ended: what comes later may find room."""
        self.reason, self.is_declined, self._lapses = "", False, 0

    def submit(self, batch: Batch) -> None:
        """Has a batch committed; nobody else touches it from now on."""
        if batch.share is not None:
            batch.share.hand_in(batch.indices)
        self._todo.append(batch)
        self.soon()

    def soon(self) -> None:
        """Has the thread commit what waits."""
        THREAD.schedule(self)

    def _retry(self) -> None:
        self._retry_at = 0.0
        self.soon()

    def wait(self, most: int = 0) -> None:
        """Waits until at most so many batches are under way; what takes too long goes into files."""
        session, began = self._artifacts.session, time.monotonic()
        if not THREAD.is_there and self._todo:
            self.flush()
        with self.changed:
            if len(late := self._awaited()) <= most:
                return
            nbytes = sum(batch.nbytes for batch in late)
            self.changed.wait_for(lambda: len(self._awaited()) <= most, self._allowed_s(nbytes))
            late = self._awaited()
            late = late[: max(0, len(late) - most)]
        session.waited_in_vain(time.monotonic() - began - self._work_s(nbytes) - waits.FREE_S)
        for batch in late:
            _LATE.add(batch)
            self.keep(batch)

    def _awaited(self) -> list[Batch]:
        return [batch for batch in list(self._todo) if batch.share is not None and batch not in _LATE]

    def _work_s(self, nbytes: int) -> float:
        """What committing so many bytes may take."""
        return waits.SLOW_FACTOR * nbytes / self._bytes_per_s

    def _allowed_s(self, nbytes: int) -> float:
        """How long commits of so many bytes are waited for."""
        if _LATE:
            return 0.0
        beyond_s: float = max(waits.FREE_S, min(waits.SPARE_S, self._artifacts.session.spare_s))
        return min(beyond_s + self._work_s(nbytes), commit_limit_s(nbytes) - waits.FREE_S)

    @property
    def late_items(self) -> int:
        """How many items are in commits that are waited for no more."""
        return sum(len(batch.indices) for batch in list(self._todo) if batch in _LATE)

    def keep(self, batch: Batch, *, is_to_come: bool = True) -> None:
        """Keeps a batch in files of this job, where its data set finds it.

        Args:
            is_to_come: it is offered to the daemon once more.
        """
        try:
            files = batch.spill(self._task.producer)
        except Exception as error:  # noqa: BLE001 - the thread, and who waits for it, go on
            why = str(error) if isinstance(error, OSError | ArtifactError) else repr(error)
            self.reason = self.reason or f"samples could not be written to a temporary file: {why}"
            count = count_text(len(batch.indices), "item", "items")
            log.warning("prepcache: the samples of %s are dropped and recomputed: %s", count, why)
        else:
            self._task.catalogue.add_local(files)
            if is_to_come:
                _WAITING[id(batch)] = batch
                self._task.catalogue.index.note_waiting(batch)
        if batch.on_end is not None:
            batch.on_end(batch.indices)

    # -- in the thread

    def run(self) -> None:
        """Commits what waits; what is offered once more only where the daemon answers."""
        with on_own_time(waits.COMMITTER_S):
            self.flush(is_retrying=False)
        session = self._artifacts.session
        if self._aside and (session.is_away or not session.is_gone):
            session.watch_for_return()  # a child that was forked in an outage has no thread that looks
            THREAD.schedule(self, RETRY_S)

    def flush(self, until: float = math.inf, *, is_retrying: bool = True) -> None:
        """Commits what waits; returns when that is done. Never raises.

        Args:
            is_retrying: what could not be committed, too, before `RETRY_S` have passed.
            until: how long another thread's commit is waited for, and those here; monotonic seconds.
        """
        if os.getpid() != self.pid:
            return
        wait_s = -1 if until == math.inf else max(0.0, until - time.monotonic())
        if not self._flushing.acquire(timeout=wait_s):
            return
        try:
            is_due = is_retrying or time.monotonic() >= self._retry_at
            if is_due and not self._artifacts.session.is_away:
                aside, self._aside = self._aside, []
                self._todo.extendleft(reversed(aside))
            while self._todo and time.monotonic() < until:
                self._commit(self._todo[0], until)
        finally:
            self._flushing.release()

    def _commit(self, batch: Batch, until: float) -> None:
        artifacts, began, nbytes = self._artifacts, time.monotonic(), batch.nbytes
        edition = self._task.catalogue.edition
        commits = Commits(artifacts.sharing, artifacts.recipe.digest, self._task.producer, edition)
        limit_s = None if until == math.inf else max(0.0, until - began)
        results = commits.commit(batch, artifacts.generation, limit_s)
        self.last_s = time.monotonic() - began
        if nbytes >= TELLING_BYTES and results[0].outcome is Outcome.COMMITTED:
            speed = nbytes / max(self.last_s, 1e-6)
            self._bytes_per_s = min(waits.FIRST_BYTES_PER_S, max(waits.SLOWEST_BYTES_PER_S, speed))
        is_lapse = batch.files is None and all(one.outcome is Outcome.LAPSED for one in results)
        self._lapses = self._lapses + 1 if is_lapse else 0
        if self._lapses > MAX_LAPSES:
            self.reason = "leases keep lapsing before their samples are committed"
        for result in results:
            self._note(result, is_awaited=limit_s is not None)
        with self.changed:
            self._todo.popleft()
            if results[0].outcome is not Outcome.AWAY:
                _LATE.discard(batch)
            self.changed.notify_all()

    def _note(self, result: Result, *, is_awaited: bool) -> None:
        """What became of a batch."""
        artifacts, batch, outcome = self._artifacts, result.batch, result.outcome
        share, indices = batch.share, batch.indices
        is_filling = batch.files is None and batch.on_end is None  # a fill waits, and says what is wrong
        _WAITING.pop(id(batch), None)
        if outcome is Outcome.COMMITTED:
            assert result.committed is not None
            self._take_in(result.committed, batch)
        elif outcome is Outcome.LAPSED and batch.files is not None:
            artifacts.look()
            if not self._task.catalogue.is_shared(np.asarray(indices)).all():
                self._put_aside(batch)  # a commit of its own that was given up may have its items
        elif outcome is Outcome.LAPSED:
            if share is not None and batch.on_end is None:
                share.reopen(indices)
                return
        elif outcome is Outcome.AWAY or (outcome is Outcome.FAILED and not batch.has_failed):
            batch.has_failed |= outcome is Outcome.FAILED
            self._put_aside(batch)
            if outcome is Outcome.AWAY and not is_awaited:  # a thread has waited, on its own time
                artifacts.session.give_up_for_now(result.reason)
            if is_filling and not artifacts.session.is_away:
                self.reason = result.reason
        else:
            self.keep(batch, is_to_come=False)
            self.decline(result.reason, is_declined=outcome is Outcome.DECLINED, is_told=is_filling)
        if share is not None:
            share.settle(indices, is_committed=outcome is Outcome.COMMITTED)
        if batch.on_end is not None:
            batch.on_end(indices)

    def _take_in(self, committed: wire.Committed, batch: Batch) -> None:
        """Maps what was committed. It may download."""
        artifacts, observed = self._artifacts, dict(chunks_of(batch.observed))
        with contextlib.suppress(DaemonUnreachable):  # a later look finds it
            _, useless = self._task.catalogue.index.absorb(committed.artifacts, observed, is_own=True)
            if committed.generation == artifacts.generation + 1:
                artifacts.generation = committed.generation
            artifacts.drop(useless)

    def _put_aside(self, batch: Batch) -> None:
        if batch.share is not None:
            batch.share.settle(batch.indices)
            batch.locks = batch.share.locks
        batch.cover, batch.share = dict.fromkeys(batch.cover), None
        self.keep(batch)
        if batch.files is not None:
            self._aside.append(batch)
            self._retry_at = time.monotonic() + RETRY_S

    def decline(self, reason: str, *, is_declined: bool = True, is_told: bool = False) -> None:
        """Nothing more is stored; said once, unless somebody else says it."""
        if not (is_told or self.reason or reason == self._artifacts.reason):
            log.warning("prepcache: samples preprocessed on access are no longer stored: %s", reason)
        self.reason, self.is_declined = reason, is_declined
        if not is_told:
            self._artifacts.reason = reason

    # -- at the end of the process

    def end(self) -> None:
        """Commits what waits; a daemon that is away and lives is waited for by the job itself: its workers
        have too little time for that."""
        if os.getpid() != self.pid:
            return
        if (collect := self.collect()) is not None:
            collect()
        if self.is_idle:
            return
        session, nbytes, given_s = self._artifacts.session, self.nbytes, 0.0
        if session.is_away and parent_process() is None and not _LATE:
            given_s = session.wait_at_end()
        began = time.monotonic()
        limit_s = max(waits.FREE_S, given_s, self._allowed_s(nbytes))
        with on_own_time(limit_s):
            self.flush(began + limit_s)
        session.waited_in_vain(time.monotonic() - began - self._work_s(nbytes) - waits.FREE_S - given_s)


def _end(reference: weakref.WeakMethod[Callable[[], None]]) -> None:
    end = reference()
    if end is not None:
        with _terminated_later():
            end()


@contextlib.contextmanager
def _terminated_later() -> Iterator[None]:
    """A block in which a SIGTERM to a worker waits; in the job itself nothing is changed."""
    if parent_process() is None:
        yield
        return
    noted: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        if noted:
            os.kill(os.getpid(), signal.SIGTERM)


def behind_text(left: int) -> str:
    """What becomes of so many items whose commits are not waited for."""
    which = count_text(left, "item is", "items are")
    return f"the daemon is slow to store samples: {which} waiting in temporary files, the job goes on"
