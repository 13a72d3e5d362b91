"""What is kept of samples made on access: committed in small artifacts while training goes on.

A lazy data set makes all of its samples so; another those that its fill left, where the daemon was gone.

Invariants:
    1. Every process has its own: a DataLoader worker commits what it made, under its own session, at the
       latest when it ends.
    2. Samples are leased when they are committed, in one request for many: none is asked for one by one.
       What another process has made by then is dropped.
    3. At most two batches are in memory: one being collected, one being committed. What is made while
       `COMMIT_BYTES` wait for the next commit is given to the job, and not kept.
    4. What is leased and not committed is given back: others may wait for it.
    5. Samples that were made while something that counts in the recipe changed are dropped.
    6. While the daemon is away, what was collected is mapped from files of this job and waits for it, up to
       `AWAY_BYTES`. Where it is gone for good, nothing more is collected.
    7. What an interrupt has met half collected is dropped, with what was collected before it.
    8. What waits here is committed though its data set is dropped: the timer or thread that will do it keeps
       this alive, and nothing else but the data set does.
    9. A process that ends waits for all its commits together as long as a fill would (backlog.py). A job that
       has made something while its daemon was away gives a daemon that lives `HANDOVER_S` in all to take it.
    10. To make one asks nothing of the daemon: it is made where that may hang.
    11. What is asked for while it waits to be committed is not made again, where that would cost more than
       to bring it into a file of this job.
    12. A worker that is at its last commits takes a SIGTERM after them: a job that was interrupted ends its
       DataLoader's workers while they, interrupted with it, are at that.

Locking: `_turn`, then `_committing`, then `_lock`, which guards what is collected and is not held while a
batch is committed. At its end the job takes no `_turn`.
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
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from functools import partial
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from prepcache.daemon import waits
from prepcache.daemon.description import script_run
from prepcache.daemon.wait_budget import on_own_time
from prepcache.errors import ArtifactError, DaemonUnreachable, PrepcacheError
from prepcache.fill.backlog import BACKLOG
from prepcache.fill.call import Part
from prepcache.fill.collect import Collected, Task
from prepcache.fill.commit import AWAY_BYTES, Batch, Commits, forsake, waiting_bytes
from prepcache.fill.leases import HeldLease
from prepcache.fill.pacing import COMMIT_BYTES, COMMIT_ITEMS, COMMIT_S
from prepcache.fill.recipe_guard import line
from prepcache.index.artifact_set import ArtifactSet
from prepcache.protocol import wire
from prepcache.protocol.observed import chunks_of

log = logging.getLogger("prepcache")

RETRY_S = 5.0
"""How often what waits for the daemon is offered to it; and work that is done again before a folder that took
no file is asked to take one."""
VAIN_S = 0.05
"""Work that is done again before what waits is brought into a file, and committed; that takes half of it."""
OWN_S = 5.0
"""What a thread that commits may wait for the daemon; the job waits for it at its end alone."""
MAX_LOOKS = 8
"""Tries to lease while others keep committing."""


class Keeper:
    """Collects and commits, for one process.

    Args:
        task: gives recipe, catalogue and producer; its `todo` is not used.
        observed: what the function was seen to read beside its items.
    """

    def __init__(
        self, artifacts: ArtifactSet, task: Task, observed: Callable[[], list[dict[str, Any]]]
    ) -> None:
        self.pid = os.getpid()
        self.is_declined = False
        self._artifacts = artifacts
        self._task = task
        self._observed = observed
        self._lock = threading.Lock()
        self._committing = threading.Lock()
        self._collected = Collected(task)
        self._pending: dict[int, float] = {}
        """What each item cost that waits to be committed, or is being committed."""
        self._brought: list[Batch] = []
        """What waits in files of this job, or in memory where no file takes it."""
        self._in_hand: list[Batch] = []
        self._aside: list[Batch] = []
        self._counted = (-1, 0)
        self._vain_s = 0.0
        self._is_due = False
        self._commit_bytes = 0
        self._timer: threading.Timer | None = None
        # A forked or spawned worker ends without atexit; in the job itself the session ends first.
        at_end = Finalize(None, _end, (weakref.WeakMethod(self.end),), exitpriority=100)
        weakref.finalize(self, at_end.cancel).atexit = False
        artifacts.session.at_close(self.end)
        artifacts.session.at_return(self._flush_soon)

    @property
    def wants_more(self) -> bool:
        """Whether samples would be taken."""
        session = self._artifacts.session
        if self._aside or session.is_gone:
            return session.is_away and not self.is_declined and waiting_bytes() < AWAY_BYTES
        return not (self.is_declined or (self._is_due and self._holds(COMMIT_BYTES)))

    def _holds(self, nbytes: int) -> bool:
        """Whether so much waits for the next commit, or as many items are collected as it takes."""
        return self._waiting_bytes >= nbytes or len(self._collected.indices) >= COMMIT_ITEMS

    @property
    def _waiting_bytes(self) -> int:
        """Of what waits for the next commit, in files of this job or in memory."""
        return self._collected.nbytes + sum(batch.nbytes for batch in list(self._brought))

    @property
    def _aside_bytes(self) -> int:
        return sum(batch.nbytes for batch in list(self._aside))

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be committed."""
        return not (self._pending or self._aside)

    @property
    def is_collecting(self) -> bool:
        """Whether anything waits for its first commit."""
        return bool(self._pending)

    def add(self, part: Part) -> None:
        """Keeps a sample that was just made; one that waits already was made in vain."""
        if self.is_declined:
            return
        self._commit_bytes = self._commit_bytes or self._artifacts.commit_bytes()
        with self._lock:
            if part.index in self._pending:
                return
            self._collect(part)
            is_due = self._holds(self._commit_bytes) or len(self._pending) >= self._count_missing()
            self._set_timer(COMMIT_S)
        if is_due:
            self._flush_soon()

    def bring(self, index: int) -> bool:
        """Brings what waits to be committed, this item among it, into a file of this job, where that costs
        less than to make it again; whether it can be read there."""
        with self._lock:
            self._vain_s += self._pending.get(index, 0.0)
            if index not in self._pending or self._vain_s < VAIN_S:
                return False
            self._vain_s = 0.0
            before = self._collected, len(self._collected.indices)
        observed = self._observed()
        with self._lock:
            is_all_observed = before == (self._collected, len(self._collected.indices))
            if is_all_observed and index in self._collected.indices:
                self._brought.append(self._collected.batch(observed))
                self._collected = Collected(self._task)
            found = [batch for batch in (*self._brought, *self._in_hand) if index in batch.indices]
        try:
            for batch in found:
                self._task.catalogue.add_local(batch.spill(self._task.producer))
        except (OSError, ArtifactError):  # no file takes it
            with self._lock:
                self._vain_s = -RETRY_S
            return False
        finally:
            self._flush_soon()
        return bool(found)

    def _flush_soon(self) -> None:
        """Has a thread commit what was collected, unless one is about to."""
        with self._lock:
            is_due, self._is_due = not self._is_due, True
        if is_due:
            try:
                threading.Thread(target=self._behind(), name="prepcache-keep", daemon=True).start()
            except RuntimeError:  # there are too many: at the next sample, or at the end
                self._is_due = False

    def _collect(self, part: Part) -> None:
        """Call it with the lock."""
        self._pending[part.index] = part.cost_s
        try:
            self._collected.add(part, None)
        finally:
            if self._collected.indices[-1:] != [part.index]:
                del self._pending[part.index]

    def _forget(self, indices: Iterable[int]) -> None:
        """These wait no more. Call it with the lock."""
        for index in indices:
            self._pending.pop(index, None)

    def adopt(self, batches: list[Batch]) -> None:
        """Takes what a fill could not give to the daemon."""
        self._task.catalogue.note_waiting(batches)
        with self._lock:
            self._aside += batches
            if self._aside:
                self._set_timer(RETRY_S)

    def _set_timer(self, after_s: float) -> None:
        """Call it with the lock."""
        if self._timer is None:
            self._timer = threading.Timer(after_s, self._behind())
            self._timer.name = "prepcache-keep"  # what it runs is ours, not the function's
            self._timer.daemon = True
            try:
                self._timer.start()
            except RuntimeError:
                self._timer = None

    def _count_missing(self) -> int:
        """How many items are missing; counted again only when something was absorbed."""
        catalogue = self._task.catalogue
        if self._counted[0] != catalogue.version:
            self._counted = (catalogue.version, len(catalogue.missing))
        return self._counted[1]

    def _behind(self) -> Callable[[], None]:
        """For a thread: it sees the context variables that are set here, and count."""
        return partial(copy_context().run, self._flush_behind)

    def _flush_behind(self) -> None:
        """In a thread that nobody waits for; those of many data sets come one after the other."""
        if self._artifacts.session.is_away and not self._holds(COMMIT_BYTES):
            with self._lock:  # it is called again when the daemon answers
                self._is_due, self._timer = False, None
                self._set_timer(RETRY_S)
            return
        with on_own_time(OWN_S), _turn:
            self.flush()

    def end(self) -> None:
        """Commits what was collected, as the process ends.

        A thread that is at it has time of its own: it is waited for only while the daemon answers. A daemon
        that is away and lives is waited for by the job itself; its workers have too little time for that.
        """
        if os.getpid() == self.pid and self._committing.locked():
            try:
                self._artifacts.session.limits()
            except PrepcacheError:
                return
        nbytes, given_s = self._waiting_bytes + self._aside_bytes, 0.0
        if self._artifacts.session.is_away and parent_process() is None and not self.is_idle:
            given_s = self._artifacts.session.wait_at_end()
        began, limit_s = time.monotonic(), max(waits.FREE_S, given_s, BACKLOG.allowed_s(nbytes))
        with on_own_time(limit_s):
            self.flush(began + limit_s)
        BACKLOG.note_wait(nbytes, time.monotonic() - began)

    def flush(self, until: float = math.inf) -> None:
        """Commits what was collected; returns when that is done. Never raises.

        Args:
            until: how long another thread's commit is waited for, and those here; monotonic seconds.
        """
        if os.getpid() != self.pid:
            return
        if not self._committing.acquire(
            timeout=-1 if until == math.inf else max(0.0, until - time.monotonic())
        ):
            return
        try:
            with self._lock:
                aside, self._aside, self._is_due = self._aside, [], False
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            try:
                for batch in aside:
                    self._commit(batch, until, is_aside=True)
            except (PrepcacheError, OSError) as error:
                self._keep_no_more(str(error))
            self._commit_waiting(until)
        finally:
            self._committing.release()

    def _commit_waiting(self, until: float) -> None:
        """What was collected, and what was brought; it waits no more then, whatever becomes of it."""
        with self._lock:
            collected, self._collected = self._collected, Collected(self._task)
            batches, self._brought = self._brought, []
        try:
            if not collected.is_empty:
                batches.append(collected.batch(self._observed()))
            self._in_hand = batches
            if batches and not self._has_changed():
                for batch in batches:
                    self._commit(batch, until, is_aside=False)
        except (PrepcacheError, OSError) as error:
            self._keep_no_more(str(error))
        finally:
            with self._lock:
                self._in_hand = []
                for indices in (collected.indices, *(batch.indices for batch in batches)):
                    self._forget(indices)

    def _keep_no_more(self, reason: str) -> None:
        has_said, self.is_declined = self.is_declined, True
        if not has_said and reason != self._artifacts.reason:  # else the fill has said it
            log.warning("prepcache: samples made on access are no longer kept: %s", reason)

    def _has_changed(self) -> bool:
        steady = self._task.steady
        changed = steady.changed(is_due=True)
        if changed:
            self._artifacts.reason = line(changed)
            if steady.is_news():
                log.warning("prepcache: %s: %s", self._artifacts.recipe.name, self._artifacts.reason)
        return bool(changed)

    def _commit(self, batch: Batch, until: float, *, is_aside: bool) -> None:
        artifacts = self._artifacts
        producer, edition = self._task.producer, self._task.catalogue.edition
        commits = Commits(artifacts.session, artifacts.recipe.digest, producer, edition)
        try:
            leased = self._lease(batch)
        except DaemonUnreachable as error:
            outcomes = [commits.cut_off(batch, error)]
        except (PrepcacheError, OSError):
            forsake(artifacts.session, batch.leases)
            raise
        else:
            limit_s = None if until == math.inf else max(0.0, until - time.monotonic())
            outcomes = [] if leased is None else commits.commit(leased, artifacts.generation, limit_s)
            if (
                is_aside
                and leased is None
                and not self._task.catalogue.is_shared(np.asarray(batch.indices)).all()
            ):
                self.adopt([batch])  # who has its items may be a commit of its own, that was given up
        for outcome in outcomes:
            if outcome.committed is None:
                forsake(artifacts.session, outcome.batch.leases)
            if outcome.committed is not None:
                chunks = dict(chunks_of(outcome.batch.observed))
                with contextlib.suppress(DaemonUnreachable):  # it is found by a later look
                    self._task.catalogue.absorb(outcome.committed.artifacts, chunks, is_own=True)
            elif outcome.is_cut_off or (outcome.is_retryable and not is_aside):
                if not is_aside:
                    self._task.catalogue.add_local(outcome.kept)
                self.adopt([] if outcome.aside is None else [outcome.aside])
            elif outcome.is_retryable:
                self._keep_no_more(outcome.reason)
            elif not outcome.is_lapsed:
                self.is_declined = True
                artifacts.reason = outcome.reason

    def _lease(self, batch: Batch) -> Batch | None:
        """What of the batch nobody has made or is making, leased; None if that is nothing."""
        artifacts, indices = self._artifacts, np.asarray(batch.indices)
        rows, mine, looks = np.arange(len(indices)), [], 0
        while looks < MAX_LOOKS:
            rows = rows[~self._task.catalogue.is_shared(indices[rows])]
            if not len(rows):
                break
            asked = rows[: wire.MAX_ITEMS]
            answer = artifacts.lease(
                artifacts.recipe.digest,
                artifacts.generation,
                self._task.catalogue.distinct.digests[indices[asked]],
                want=len(asked),  # and no bytes: what there is no room for, the commit halves
            )
            if answer.look_again is not None:
                artifacts.absorb(answer.look_again)
                self._task.catalogue.place()
                looks += 1
                continue
            rows = rows[len(asked) :]
            if answer.lease is not None:
                held = HeldLease(answer.lease, artifacts.generation)
                granted = asked[np.asarray(answer.granted, "i8")].tolist()
                digests = map(self._task.catalogue.distinct.digest, indices[granted].tolist())
                batch.cover.update(dict.fromkeys(digests, held))
                mine += granted
        if not mine:
            return None
        return batch if len(mine) == len(indices) else batch.part(mine, self._task.producer)


_turn = threading.Lock()
"""Held by the one thread of the process that commits: each has a connection while it does."""


def _after_fork_in_child() -> None:
    global _turn
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _end(reference: weakref.WeakMethod[Callable[[], None]]) -> None:
    """The end of a keeper that is still there, as its process ends."""
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


def made_by() -> dict[str, Any]:
    """Who makes artifacts, for people."""
    import socket

    return {
        "script": os.path.basename(script_run()) or "python",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "uid": os.getuid(),
        "at": time.time(),
    }
