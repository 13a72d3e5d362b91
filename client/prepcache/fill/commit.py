"""The committer: hands what was made over to the daemon, in a thread of its own.

One thread of the process commits for all data sets, one batch after the other.

Invariants:
    1. A batch that is submitted is in files of this job, where its data set finds it. It is offered to the
       daemon until that has stored it or refused it. What a store had an error for is offered once more.
    2. A job waits for commits only so that it does not preprocess faster than the daemon stores. What takes
       longer than its bytes is charged to the wait budget, and no other is waited for until it is answered.
    3. What waits is committed though its data set is dropped: the thread keeps this alive.
    4. A process that ends waits for its commits as long as a fill would: in an outage not at all, but a job
       `HANDOVER_S` in all for a daemon that is starting. What no daemon took is lost, and said.
    5. A commit under a lapsed lease is refused. What nobody has taken meanwhile is leased once more, and the
       same samples are committed.
    6. A killed daemon may have moved the file that it was asked to take: what is refused for its file, or in
       a forgotten session, is offered once more.

Locking: `_flushing`, held over commits; `changed` guards what waits, and is never held over a request.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from prepcache import errors, forks
from prepcache.daemon import waits
from prepcache.daemon.session import Session
from prepcache.daemon.waits import on_own_time
from prepcache.digests import DIGEST_BYTES
from prepcache.fill.pending import Batch, Collected, Task
from prepcache.fill.share import HANDED_IN, MAX_LOOKS, HeldLease, Share, forsake
from prepcache.protocol import wire
from prepcache.protocol.units import count_text

log = logging.getLogger("prepcache")

AWAY_BYTES = 1 << 30
AWAY_FILES = 256
"""What may wait in files of one process, each with a descriptor; beyond that nothing more is kept."""
RETRY_S = 5.0
"""How often what waits for the daemon is offered to it."""

TRIES = 3
"""How often one batch is offered at once, under other leases and as another file."""

_WAITING: forks.Living[Batch] = forks.Living()
"""What this process, or the one that forked it, has not committed yet."""
_COMMITTERS: forks.Living[Committer] = forks.Living()


class _Thread:
    """The thread of this process: it runs committers when they are due, and ends when nothing is to come."""

    def __init__(self) -> None:
        self.after_fork()
        forks.note(self)

    def after_fork(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Committer, float] = {}
        self._thread: threading.Thread | None = None
        for batch in _WAITING:
            batch.is_late = False  # nobody here waits for it

    def schedule(self, one: Committer, after_s: float = 0.0) -> None:
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

    def _run(self) -> None:
        while (one := self._next()) is not None:
            try:
                one.run()
            except Exception:
                log.exception("prepcache: internal error while committing")
            del one  # nothing but what is to come keeps it

    def _next(self) -> Committer | None:
        with self._changed:
            while self._due:
                one = min(self._due, key=lambda one: self._due[one])
                if (left_s := self._due[one] - time.monotonic()) <= 0:
                    del self._due[one]
                    return one
                self._changed.wait(left_s)
            self._thread = None
            return None


THREAD = _Thread()


def waiting_bytes() -> int:
    return sum(batch.file.nbytes for batch in _WAITING)


def is_full() -> bool:
    """Whether no more is to wait in files of this process for a daemon that is away or slow."""
    return waiting_bytes() > AWAY_BYTES or len([*_WAITING]) >= AWAY_FILES


class Committer:
    """Commits what one data set makes in this process.

    Attributes:
        changed: notified when a batch has been answered.
        reason: why nothing more is stored, or ""; `is_declined`: since there is no room.
        is_filling: a fill says what is wrong.
        has_dropped: no file took samples that were made.
    """

    def __init__(self, task: Task) -> None:
        artifacts = task.by.artifacts
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.reason = ""
        self.is_declined = self.is_filling = self.has_dropped = False
        self._artifacts = artifacts
        self._session = artifacts.session
        self._task = task
        self._flushing = threading.Lock()
        self._todo: deque[Batch] = deque()
        self._retry_at = 0.0
        self.collect: Callable[[], None] | None = None
        """Submits what was made on access; None where nothing was, so that nothing is kept by it."""
        # A forked or spawned worker ends without atexit; in the job itself the session ends first.
        at_end = Finalize(None, _end, (weakref.WeakMethod(self.on_close),), exitpriority=100)
        weakref.finalize(self, at_end.cancel).atexit = False
        artifacts.session.listen(self)
        _COMMITTERS.add(self)

    @property
    def is_idle(self) -> bool:
        return not self._todo

    @property
    def nbytes(self) -> int:
        return sum(batch.file.nbytes for batch in list(self._todo))

    def submit(self, collected: Collected, share: Share, observed: list[dict[str, Any]]) -> None:
        if (batch := self.keep(collected, observed, self._session)) is None:
            share.settle(collected.indices)
            return
        batch.share = share
        share.mark(batch.indices, HANDED_IN)
        _WAITING.add(batch)
        self._todo.append(batch)
        THREAD.schedule(self)

    def keep(
        self, collected: Collected, observed: Sequence[dict[str, Any]] = (), session: Session | None = None
    ) -> Batch | None:
        """Puts a batch into a file, where its data set finds it; None, which is said, where that fails."""
        try:
            batch = collected.batch(list(observed), session)
        except (OSError, errors.ArtifactError) as why:
            self.drop(len(collected.indices), why)
            return None
        self._task.catalogue.add_local(batch.file)
        return batch

    def drop(self, items: int, why: Exception) -> None:
        self.reason = self.reason or f"samples could not be written to a temporary file: {why}"
        self.has_dropped = True
        count = count_text(items, "item", "items")
        log.warning("prepcache: the samples of %s are dropped and recomputed: %s", count, why)

    def soon(self, after_s: float = 0.0) -> None:
        if os.getpid() == self.pid:
            THREAD.schedule(self, after_s)

    def on_return(self) -> None:
        self._retry_at = 0.0
        self.soon()

    def wait(self, most: int = 0) -> None:
        """Waits until at most so many batches are under way, or they take too long; in an outage, never."""
        began = time.monotonic()
        with self.changed:
            nbytes, allowed_s = self.nbytes, self._allowed_s(self.nbytes)
            if not self.changed.wait_for(
                lambda: len(self._todo) <= most or self._retry_at or self._session.is_gone, allowed_s
            ):
                for batch in list(self._todo):
                    batch.is_late = True
        self._charge(began, nbytes)

    def _allowed_s(self, nbytes: int) -> float:
        if any(batch.is_late for batch in _WAITING):
            return 0.0
        beyond_s: float = max(waits.FREE_S, min(waits.SPARE_S, self._session.spare_s))
        return beyond_s + nbytes / waits.COMMIT_BYTES_PER_S

    def _charge(self, began: float, nbytes: int) -> None:
        took_s = time.monotonic() - began
        in_vain_s = took_s - nbytes / waits.COMMIT_BYTES_PER_S - waits.FREE_S
        self._session.budget.charge(min(in_vain_s, self._session.spare_s))

    # -- in the thread

    def run(self) -> None:
        """Commits what there is; what is offered once more only where the daemon answers."""
        session = self._artifacts.session
        with on_own_time(waits.COMMITTER_S):
            # In an outage nobody needs it in a file, which takes a descriptor, while its process lives.
            if self.collect is not None and not session.is_away:
                self.collect()
            self.flush()
        if (self._todo or self.collect is not None) and (session.is_away or not session.is_gone):
            THREAD.schedule(self, RETRY_S)
            session.heartbeat.look()  # a child that was forked in an outage has no thread that looks

    def flush(self, until: float = math.inf) -> None:
        """Commits what waits and may be tried, until `until` (monotonic seconds)."""
        if os.getpid() != self.pid:
            return
        wait_s = -1 if until == math.inf else max(0.0, until - time.monotonic())
        if not self._flushing.acquire(timeout=wait_s):
            return
        try:
            while self._todo and self._retry_at <= time.monotonic() < until:
                batch = self._todo[0]
                is_over = self._offer(batch, until)
                with self.changed:
                    if is_over:
                        self._retry_at = 0.0
                        self._todo.popleft()
                        _WAITING.discard(batch)
                    self.changed.notify_all()
        finally:
            self._flushing.release()

    def _offer(self, batch: Batch, until: float) -> bool:
        """Offers a batch; whether that was the last time."""
        artifacts, committed = self._artifacts, None
        try:
            committed = self._commit(batch, None if until == math.inf else until)
        except errors.DaemonUnreachable as error:
            self._postpone(batch, error.message)
            # A thread has waited, on its own time, or the end of a process for all its data sets.
            artifacts.session.give_up(error.message, is_final=False)
            return False
        except (errors.PrepcacheError, OSError) as error:
            if isinstance(error, errors.StoreError) and not batch.has_failed:
                batch.has_failed = True
                self._postpone(batch, error.message)
                return False
            self.decline(str(error), is_declined=isinstance(error, errors.Declined))
        except Exception as error:
            log.exception("prepcache: internal error in a commit; only this job has its samples")
            self.decline(repr(error), is_declined=False)
        if committed is not None:
            self._artifacts.absorb_own(committed, dict(wire.chunks_of(batch.observed)))
        batch.settle(batch.indices)
        return True

    def _postpone(self, batch: Batch, reason: str) -> None:
        batch.settle(batch.indices)
        batch.share = None
        batch.cover = dict.fromkeys(batch.cover)
        self._retry_at = time.monotonic() + RETRY_S
        if self.is_filling and not self._artifacts.session.is_away:
            self.reason = self.reason or reason

    def decline(self, reason: str, *, is_declined: bool = True) -> None:
        """Nothing more is stored; said once, unless a fill says it."""
        self._session.heartbeat.beat_soon()  # others may wait for what is given back
        if is_declined:
            self._task.tally.note_full()
        if self.reason:
            return
        self.reason, self.is_declined = reason, is_declined
        if not self.is_filling:
            if reason != self._artifacts.reason and self._task.by.said.is_news("left"):
                log.warning("prepcache: new samples are not stored: %s", reason)
            self._artifacts.reason = reason

    # -- one commit

    def _commit(self, batch: Batch, until: float | None) -> wire.Committed | None:
        """Commits a batch, or what others have not taken of it; None where that is nothing."""
        before = batch.leases
        failed: errors.PrepcacheError | None = None
        try:
            for _ in range(TRIES):  # see invariants 5 and 6
                if lost := self._lease_bare(batch):
                    batch.leave(lost, self._task.producer)
                if not batch.indices:
                    return None
                limit_s = None if until is None else max(0.0, until - time.monotonic())
                leases = [held.lease for held in batch.leases]
                try:
                    return self._session.commit(leases, batch.file.fd, limit_s=limit_s)
                except (errors.LeaseLapsed, errors.UnknownSession, errors.StagedFileRefused) as error:
                    failed = error
                    forsake(self._session, batch.leases)  # else it may wait for itself
            if isinstance(failed, errors.StagedFileRefused):
                raise failed
            told = "the daemon took this job's items back before they were stored"
            raise errors.StoreError(told) from failed
        except BaseException:
            forsake(self._session, [held for held in batch.leases if held not in before])
            raise

    def _lease_bare(self, batch: Batch) -> set[bytes]:
        """Leases what no lease covers; what of it others have made meanwhile, or are making."""
        artifacts, lost, looks = self._artifacts, set[bytes](), 0
        while bare := [digest for digest in batch.bare if digest not in lost]:
            generation = artifacts.generation  # before it is asked what is there
            is_made = self._task.catalogue.is_shared(batch.indices).tolist()
            made = {digest for digest, is_there in zip(batch.cover, is_made, strict=True) if is_there}
            lost |= made.intersection(bare)
            asked = [digest for digest in bare if digest not in lost][: wire.MAX_ITEMS]
            if not asked:
                break
            digests = np.frombuffer(b"".join(asked), "u1").reshape(-1, DIGEST_BYTES)
            answer = artifacts.lease(
                artifacts.recipe.digest, generation, digests,
                want=len(asked), cost_s=0.0, nbytes=batch.file.nbytes, wait_s=0.0,
            )  # fmt: skip
            if answer.look_again is not None:
                if (looks := looks + 1) > MAX_LOOKS:
                    told = "the daemon keeps announcing new samples, but never has them all"
                    raise errors.DaemonError(told)
                continue
            if answer.is_declined:
                raise errors.Declined(answer.reason or "the cache has no room")
            granted = [asked[at] for at in answer.granted] if answer.lease is not None else []
            if answer.lease is not None:
                batch.cover.update(dict.fromkeys(granted, HeldLease(answer.lease)))
            lost.update(set(asked).difference(granted))
        return lost

    # -- at the end of the process

    def on_close(self) -> None:
        """Commits what waits, of all chunks of a stream; a job, no worker, waits for a daemon that starts."""
        is_worker, alike, by = parent_process() is not None, [*_COMMITTERS], self._task.by
        lost = sum(one._commit_rest(is_worker) for one in alike if one._artifacts is self._artifacts)
        if lost and (not is_worker or by.said.is_news("lost")):  # else those of each epoch would say it
            which = f"{count_text(lost, 'sample', 'samples')} that this job"
            told = f"{by.name}: {'samples that workers' if is_worker else which} made could not be stored"
            log.warning("prepcache: %s: the daemon does not answer", told)

    def _commit_rest(self, is_worker: bool) -> int:
        """Commits what waits, as long as it may take; how many samples are lost."""
        if os.getpid() != self.pid:
            return 0
        if self.collect is not None:
            self.collect()
        if self.is_idle:
            return 0
        session, nbytes, given_s, todo = self._artifacts.session, self.nbytes, 0.0, list(self._todo)
        others_are_late = any(batch.is_late and batch not in todo for batch in _WAITING)
        if session.is_away and not (is_worker or others_are_late):
            given_s = session.wait_at_end()
        began = time.monotonic()
        limit_s = max(waits.FREE_S, given_s, self._allowed_s(nbytes))
        if not session.is_gone:  # in an outage the thread may be in a request that nobody answers
            self._retry_at = 0.0
            with on_own_time(limit_s):
                self.flush(began + limit_s)
            self._charge(began + given_s, nbytes)
        lost = sum(len(batch.indices) for batch in list(self._todo))
        self._todo.clear()  # said once: a spawned worker calls this twice
        return lost


def _end(reference: weakref.WeakMethod[Callable[[], None]]) -> None:
    if (end := reference()) is not None:
        end()
