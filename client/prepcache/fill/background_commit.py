"""The committer: commits in a thread of its own, while preprocessing goes on.

Invariants:
    1. Batches are committed one after the other, in the order in which they came: two commits never name
       the same lease at once.
    2. Each batch has outcomes that are taken once: of its commit or, where that was left behind, of what this
       job has of it.
    3. Wherever an interrupt meets the caller, what he may wait for is in the thread's hands, and its outcome
       is there until it is taken.
    4. A batch that is left behind is in files of this job, and no longer in its memory.
    5. The thread waits on its own time. What was waited for in vain is lost to the daemon: it goes off the
       process's wait budget, but for what one more answer takes.

NOTE [ Left behind ]
    A commit that takes too long (backlog.py) is waited for no more: the job goes on with the samples that it
    has, and with its other leases. The commit goes on in the thread, on its own time: it costs nothing.
    When it ends, the artifact is held for nobody, since nothing maps it; what the daemon could not be given
    is offered to it later, as what a fill leaves over is; its leases are given back, those that other
    commits wait for with the last of these. Where no file takes its samples, they are made again on access.

Locking: `_lock` decides between an outcome and its being left; never held while waiting.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prepcache.daemon import waits
from prepcache.daemon.wait_budget import on_own_time
from prepcache.errors import ArtifactError, PrepcacheError
from prepcache.fill.backlog import BACKLOG
from prepcache.fill.commit import Batch, Commits, Outcome
from prepcache.fill.leases import HeldLease, forsake

log = logging.getLogger("prepcache")

Adopter = Callable[[], Callable[[list[Batch]], None]]
"""Gives what takes the batches that no daemon could be given."""


@dataclass(slots=True, eq=False)
class _Job:
    """A batch that was handed in, and what became of it, once that is known."""

    batch: Batch
    generation: int
    outcomes: list[Outcome] | None = None
    is_left: bool = False

    @property
    def leases(self) -> list[HeldLease]:
        """Those that cover its items: its commit leases once more what has lapsed."""
        held = (one for one in list(self.batch.cover.values()) if one is not None)
        return list({id(one): one for one in held}.values())


class Committer:
    """The thread; started by the first batch.

    Args:
        commits: how one batch is committed.
        adopter: called by the thread that waits, when a commit is left behind.
    """

    def __init__(self, commits: Commits, adopter: Adopter = lambda: to_nobody) -> None:
        self._commits = commits
        self._adopter = adopter
        self._adopt: Callable[[list[Batch]], None] = to_nobody
        self._todo: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._handed_in: deque[_Job] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: threading.Thread | None = None
        self._is_awaited = False
        self._has_told = False
        self._lock = threading.Lock()

    @property
    def in_flight(self) -> int:
        """How many batches have no outcome that was taken."""
        return len(self._handed_in)

    @property
    def items_in_flight(self) -> int:
        """How many items are in them."""
        return sum(len(job.batch.indices) for job in self._handed_in)

    def submit(self, batch: Batch, generation: int) -> None:
        """Hands in a batch; nobody else touches it until its outcome is taken."""
        job = _Job(batch, generation)
        for held in job.leases:
            held.behind.add(job)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="prepcache-commit", daemon=True)
            try:
                self._thread.start()
                self._last = self._thread
            except RuntimeError:  # there are too many
                self._thread = None
                job.outcomes = [self._commits.keep(batch, "no thread can be started to commit in")]
                self._give_back(job)
        if job.outcomes is None:
            self._todo.put(job)
        self._handed_in.append(job)

    def outcomes(self, *, is_waiting: bool) -> list[Outcome]:
        """The outcomes of the next batch; none if there are none yet, or nothing is in flight.

        Args:
            is_waiting: waits for them, for as long as backlog.py allows.
        """
        if not self._handed_in:
            return []
        job = self._handed_in[0]
        if job.outcomes is None and not job.is_left:  # it is, where an interrupt came before its outcome
            if not is_waiting:
                return []
            self._wait_for(job)
        if job.is_left:
            return [self._left(job)]
        self._handed_in.popleft()
        return job.outcomes or []

    def _wait_for(self, job: _Job) -> None:
        """Until it has outcomes, or is left behind."""
        began, nbytes = time.monotonic(), job.batch.nbytes
        session = self._commits.session
        until = began + BACKLOG.allowed_s(nbytes, session.spare_s)
        try:
            while job.outcomes is None and not job.is_left:
                try:  # it may ring for an earlier one
                    self._bell.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    self._leave(job)
        finally:
            waited_s = time.monotonic() - began
            session.waited_in_vain(waited_s if job.is_left else BACKLOG.beyond_s(nbytes, waited_s))

    def _leave(self, job: _Job) -> None:
        """See NOTE [ Left behind ]; unless the commit has just ended. Nothing here waits."""
        self._adopt = self._adopter()
        with self._lock:
            if job.outcomes is None:
                BACKLOG.leave(job)
                job.is_left = True

    def _left(self, job: _Job) -> Outcome:
        """What this job has of a batch that was left behind."""
        if not self._is_awaited:
            self._is_awaited = True
            self._commits.session.at_close(self.end)
        kept, reason = [], ""
        try:
            kept = job.batch.spill(self._commits.producer)
        except (OSError, ArtifactError) as error:
            reason = f"the daemon is slow, and samples could not be written to a temporary file: {error}"
        self._handed_in.popleft()
        return Outcome(job.batch, kept=kept, reason=reason, is_left=True)

    def close(self) -> None:
        """Lets the thread end after what it has in hand."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread = None

    def end(self) -> None:
        """Waits a little for what was left behind, as the process ends."""
        if self._last is not None:
            self._last.join(BACKLOG.goodbye_s())

    def _run(self) -> None:
        while True:
            job = self._todo.get()
            if job is None:
                return
            with on_own_time(waits.COMMITTER_S):
                outcomes = self._commits.commit(job.batch, job.generation)
            if reasons := [one.reason for one in outcomes if one.is_cut_off]:
                self._commits.session.give_up_for_now(reasons[0])
            with self._lock:
                job.outcomes = outcomes
            if job.is_left:
                self._settle(job, outcomes)
            self._give_back(job)
            del job, outcomes  # a batch holds 128 MB, until its outcomes are taken and dropped
            self._bell.put(None)

    def _settle(self, job: _Job, outcomes: list[Outcome]) -> None:
        """Of a batch that was left behind."""
        BACKLOG.end(job)
        for outcome in outcomes:
            with contextlib.suppress(PrepcacheError):
                if outcome.committed is not None:
                    self._commits.session.drop_hold(outcome.committed.artifacts)
                    continue
                forsake(self._commits.session, outcome.batch.leases)
                if outcome.aside is not None:
                    self._adopt([outcome.aside])
                elif outcome.reason and not self._has_told:
                    self._has_told = True
                    log.warning(
                        "prepcache: some samples are not stored, and only this job has them: %s",
                        outcome.reason,
                    )

    def _give_back(self, job: _Job) -> None:
        """Those of its leases that nothing else is to come of: the share did not, as its commit went on."""
        for held in job.leases:
            held.behind.discard(job)
        if over := [held for held in job.leases if held.is_over]:
            forsake(self._commits.session, over)


def to_nobody(batches: list[Batch]) -> None:
    """Where nobody takes what a daemon could not be given."""
