"""Samples made on access: leased before they are made, and committed while training goes on.

A lazy data set makes all of its samples so; another those that its fill left, where the daemon was gone, and
those that were purged while it is open.

Invariants:
    1. Every process has its own: a DataLoader worker leases and commits under its own session, and commits at
       the latest when it ends.
    2. While the daemon answers, a sample is made under a lease: jobs and workers that read one cold data set
       call the function once for each item. What others have leased is waited for. One request leases what is
       missing of a batch or, where others want it too, a share of that. Only items that are asked for one by
       one and cost less than a request may be made twice.
    3. A process that waits for others has committed what it made, or a thread is at it: no two wait for each
       other. What was made is committed after `COMMIT_S` in any case.
    4. Until then it is in memory, and is given from there. While `MAX_BYTES` of it wait, samples are made
       without a lease and not kept.
    5. What is leased and not committed is given back: others may wait for it.
    6. Samples that were made while something that counts in the recipe changed are dropped.
    7. While the daemon is away, what was made goes into files of this job and waits for it, up to
       `AWAY_BYTES`. Where it is gone for good, nothing more is kept.
    8. What waits here is committed though its data set is dropped: the timer or thread that will do it keeps
       this alive, and nothing else but the data set does.
    9. A process that ends waits for all its commits together as long as a fill would (backlog.py). A job that
       has made something while its daemon was away gives a daemon that lives `HANDOVER_S` in all to take it.
    10. To make one asks nothing of the daemon: it is made where that may hang.
    11. A worker that is at its last commits takes a SIGTERM after them: a job that was interrupted ends its
       DataLoader's workers while they, interrupted with it, are at that.

Locking: `_turn`, then `_committing`, then `_changed`, which guards what is leased and what was made. It is
held for a request for a lease, and for no other; nor while the function runs, or a thread waits. At its end
the job takes no `_turn`.
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
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np

from prepcache.artifact.sample_tree import copied
from prepcache.daemon import waits
from prepcache.daemon.description import script_run
from prepcache.daemon.wait_budget import on_own_time
from prepcache.errors import PrepcacheError, SampleError
from prepcache.fill.backlog import BACKLOG
from prepcache.fill.call import Part, weight
from prepcache.fill.collect import Collected, Task
from prepcache.fill.commit import AWAY_BYTES, Batch, Commits, Outcome, waiting_bytes
from prepcache.fill.filler import COMMIT_LEASES, STALLED_S
from prepcache.fill.leases import Share, forsake
from prepcache.fill.pacing import COMMIT_BYTES, COMMIT_ITEMS, Pace
from prepcache.fill.recipe_guard import line
from prepcache.forks import ForkLock
from prepcache.index.artifact_set import ArtifactSet

log = logging.getLogger("prepcache")

WAIT_S = 0.25
"""One long poll for what others are making; other threads of the process lease between two of them."""
COMMIT_S = 1.0
"""What was made is committed so soon: other jobs, and workers of this one, may wait for it."""
COMMIT_PAUSES = 20
"""Or after so many times as long as the last commit took: committing takes a twentieth of a thread's time."""
LONGEST_PAUSE_S = 30.0
LEASE_FROM_S = 2e-3
"""An item that costs less, and is asked for alone, is leased when it is committed: asking takes as long."""
SHARED_S = 10.0
"""So long after others had, or waited for, items of a batch, a lease leaves them their share of the next."""
MAX_BYTES = COMMIT_BYTES
"""What may wait in memory."""
RETRY_S = 5.0
"""How often what waits for the daemon is offered to it."""

Call = Callable[[int], tuple[Part, bool]]
"""Makes the sample of a distinct item; whether that may be kept."""


class OnAccess:
    """Makes samples and commits them, for one process.

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
        self._changed = threading.Condition(threading.Lock())
        self._committing = threading.Lock()
        self._share = Share(
            artifacts.sharing, task.recipe, task.catalogue, artifacts.generation, np.empty(0, "i4"),
            lambda found, useless: artifacts.drop(useless), self._unlocked,
        )  # fmt: skip
        self._pace = Pace()
        self._making: dict[int, int] = {}
        """The thread that makes each item."""
        self._made: dict[int, Part] = {}
        """What is not committed yet."""
        self._uncollected: list[int] = []
        """What of it is in no batch yet."""
        self._made_bytes = self._grants = self._commits = 0
        self._aside: list[Batch] = []
        self._is_due = self._is_late = False
        self._commit_bytes = 0
        self._commit_s = 0.0
        self._shared_at = -math.inf
        self._timer: threading.Timer | None = None
        # A forked or spawned worker ends without atexit; in the job itself the session ends first.
        at_end = Finalize(None, _end, (weakref.WeakMethod(self.end),), exitpriority=100)
        weakref.finalize(self, at_end.cancel).atexit = False
        artifacts.session.at_close(self.end)
        artifacts.session.at_return(self.flush_soon)

    @property
    def wants_more(self) -> bool:
        """Whether samples would be taken."""
        session = self._artifacts.session
        if self.is_declined or self._made_bytes >= MAX_BYTES or len(self._made) >= COMMIT_ITEMS:
            return False
        if session.is_gone and not session.is_away:
            return False
        return waiting_bytes() < AWAY_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be committed."""
        return not (self._made or self._aside)

    @property
    def is_collecting(self) -> bool:
        """Whether anything waits for its first commit."""
        return bool(self._made)

    # -- making

    def samples(self, indices: Sequence[int], call: Call) -> dict[int, Any]:
        """The samples of distinct items that were missing: made here, or by others meanwhile."""
        found: dict[int, Any] = {}
        left, moved_at = list(indices), time.monotonic()
        try:
            while left:
                is_alone = time.monotonic() - moved_at > STALLED_S
                mine = self._begin(left, is_single=len(indices) == 1, is_alone=is_alone)
                for index in mine:
                    self._make(index, call, found)
                self._read(left, found)
                if mine or len(found) > len(indices) - len(left):
                    moved_at = time.monotonic()
                left = [index for index in left if index not in found]
        except BaseException:
            self._give_up(left)
            raise
        return found

    def _begin(self, left: list[int], *, is_single: bool, is_alone: bool) -> list[int]:
        """What this thread makes next; nothing where it has waited for others.

        Args:
            is_single: the item is all that was asked for.
            is_alone: others have stood still for too long.
        """
        me, missing = threading.get_ident(), self._task.catalogue.is_missing
        with self._changed:
            # The function asks for another item of the very batch that it is at.
            if nested := [index for index in left if self._making.get(index) == me]:
                return nested
            todo = [index for index in left if index not in self._made and missing(index)]
            if len(todo) < len(left):
                return []
            if is_alone:  # those too at which another thread has stood still
                mine = todo
            elif not (todo := [index for index in todo if index not in self._making]):
                self._changed.wait(WAIT_S)
                return []
            elif is_single and 0 < self._pace.item_s < LEASE_FROM_S:
                self._share.take_unleased(todo)
                mine = todo
            else:
                mine = self._leased(todo)
            self._making.update(dict.fromkeys(mine, me))
            return mine

    def _leased(self, todo: list[int]) -> list[int]:
        """What may be made of these. Call it with the lock."""
        share, artifacts = self._share, self._artifacts
        self._task.catalogue.place()
        todo = [index for index in todo if self._task.catalogue.is_missing(index)]
        if not todo:
            return []
        share.generation = artifacts.generation
        share.want(todo)
        among = np.asarray(todo)  # another thread would wait for what this one does not make after an error
        if share.holders:
            self._shared_at = time.monotonic()
        is_shared = time.monotonic() - self._shared_at < SHARED_S
        pace = self._pace
        want = pace.want(len(todo), len(share.holders)) if is_shared else pace.want_all(len(todo))
        cost_s, nbytes = want * pace.item_s, int(want * pace.item_bytes)
        try:
            granted = share.take(want, cost_s, nbytes, among)
            if not granted and not share.reason and share.has_rest:
                self.flush_soon()
                if self._made and not artifacts.session.is_away and not self._is_late:
                    self._wait_for_commit()
                    return []
                self._is_late = False
                granted = share.wait(want, cost_s, nbytes, WAIT_S, among)
        except PrepcacheError:
            if artifacts.session.is_away:
                return []  # without a lease then
            granted = self._unleased(todo)
        finally:
            artifacts.generation = share.generation
        if share.reason:
            self._decline(share.reason)
            granted = self._unleased(todo)
        self._grants += bool(granted)
        if share.is_waited_for:
            self._shared_at, share.is_waited_for = time.monotonic(), False
            self.flush_soon()
        return granted

    def _wait_for_commit(self) -> None:
        """Others may want what was made here: waits for a thread to commit it, which needs the lock. Where
        that takes too long, the daemon is asked next: if it hangs, that begins an outage."""
        session, commits, began = self._artifacts.session, self._commits, time.monotonic()
        until = began + max(waits.FREE_S, BACKLOG.allowed_s(0, session.spare_s))
        while commits == self._commits and not session.is_away:
            if (left_s := until - time.monotonic()) <= 0:
                self._is_late = True
                break
            self._changed.wait(min(left_s, WAIT_S))
        waited_s = time.monotonic() - began
        session.waited_in_vain(waited_s if self._is_late else BACKLOG.beyond_s(self._made_bytes, waited_s))

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        """A wait within what is done with the lock."""
        self._changed.release()
        try:
            yield
        finally:
            self._changed.acquire()

    def _unleased(self, todo: list[int]) -> list[int]:
        """They are made all the same, and not kept."""
        self._share.settle(todo)
        return todo

    def _make(self, index: int, call: Call, found: dict[int, Any]) -> None:
        if self._making.get(index) != threading.get_ident():
            return  # the function has asked for it, at another item
        part, is_kept = call(index)
        found[index] = copied(part.samples[0])  # the next call may give the same memory
        kept = part.copied() if is_kept else None
        nbytes = weight(part.samples[0])
        with self._changed:
            self._making.pop(index, None)  # a thread that goes on alone may have been quicker
            self._changed.notify_all()
            self._pace.note(part.cost_s, nbytes)
            if index in self._made:
                return
            if kept is None or not self._share.is_taken(index):
                self._share.settle((index,))
                return
            self._made[index] = kept
            self._made_bytes += nbytes
            self._uncollected.append(index)
            is_due = self._is_commit_due()
            self._set_timer(max(COMMIT_S, min(LONGEST_PAUSE_S, COMMIT_PAUSES * self._commit_s)))
        if is_due:
            self.flush_soon()

    def _is_commit_due(self) -> bool:
        if not self._commit_bytes:
            self._pace.commit_bytes = self._artifacts.commit_bytes()
            self._commit_bytes = self._pace.commit_bytes // 2
        is_full = self._made_bytes >= self._commit_bytes or len(self._uncollected) >= COMMIT_ITEMS // 2
        return is_full or self._grants >= COMMIT_LEASES

    def _read(self, left: list[int], found: dict[int, Any]) -> None:
        """Adds what is there by now."""
        catalogue = self._task.catalogue
        for index in left:
            if index in found:
                continue
            part = self._made.get(index)  # a commit makes it found in the catalogue first
            slot, row = (None, 0) if part is not None else catalogue.slot_of(index)
            if part is not None:
                found[index] = copied(part.samples[0])
            elif slot is not None:
                found[index] = slot.artifact.sample(row)

    def _give_up(self, left: list[int]) -> None:
        """The function raised, or was interrupted: others may make these."""
        me = threading.get_ident()
        with self._changed:
            mine = [index for index, thread in self._making.items() if thread == me and index in left]
            for index in mine:
                del self._making[index]
            self._share.settle(
                [index for index in left if index not in self._made and index not in self._making]
            )
            self._changed.notify_all()
        self.flush_soon()

    # -- committing

    def adopt(self, batches: list[Batch]) -> None:
        """Takes what could not be given to the daemon."""
        self._task.catalogue.note_waiting(batches)
        with self._changed:
            self._aside += batches
            if self._aside:
                self._set_timer(RETRY_S)

    def flush_soon(self) -> None:
        """Has a thread commit what was made, unless one is about to."""
        is_due, self._is_due = not self._is_due, True
        if is_due and not self.is_idle:
            try:
                threading.Thread(target=self._behind(), name="prepcache-keep", daemon=True).start()
                return
            except RuntimeError:  # there are too many: at the next sample, or at the end
                pass
        self._is_due &= not is_due

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

    def _behind(self) -> Callable[[], None]:
        """For a thread: it sees the context variables that are set here, and count."""
        return partial(copy_context().run, self._flush_behind)

    def _flush_behind(self) -> None:
        """In a thread that nobody waits for; those of many data sets come one after the other."""
        session = self._artifacts.session
        with self._changed:
            if self._made_bytes < self._commit_bytes and session.is_away:
                self._is_due, self._grants = False, 0
                if session.is_away:  # still: if the daemon answers from now on, this is called again
                    self._cancel_timer()
                    self._set_timer(RETRY_S)
                    session.watch_for_return()
                    return
                self._is_due = True
        with on_own_time(waits.COMMITTER_S), _turn:
            self.flush()

    def _cancel_timer(self) -> None:
        """Call it with the lock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Commits what was made, as the process ends.

        A thread that is at it has time of its own: it is waited for only while the daemon answers. A daemon
        that is away and lives is waited for by the job itself; its workers have too little time for that.
        """
        if os.getpid() == self.pid and self._committing.locked():
            try:
                self._artifacts.session.limits()
            except PrepcacheError:
                return
        nbytes, given_s = self._made_bytes + sum(batch.nbytes for batch in list(self._aside)), 0.0
        if self._artifacts.session.is_away and parent_process() is None and not self.is_idle:
            given_s = self._artifacts.session.wait_at_end()
        session, began = self._artifacts.session, time.monotonic()
        limit_s = max(waits.FREE_S, given_s, BACKLOG.allowed_s(nbytes, session.spare_s))
        with on_own_time(limit_s):
            self.flush(began + limit_s)
        session.waited_in_vain(BACKLOG.beyond_s(nbytes, time.monotonic() - began))

    def flush(self, until: float = math.inf) -> None:
        """Commits what was made; returns when that is done. Never raises.

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
            with self._changed:
                aside, self._aside, self._is_due, self._grants = self._aside, [], False, 0
                self._cancel_timer()
                indices, self._uncollected = self._uncollected, []
            for number, batch in enumerate(aside):
                if time.monotonic() >= until:
                    self.adopt(aside[number:])
                    break
                self._commit(batch, until)
            if indices:
                self._commit_made(indices, until)
        finally:
            self._committing.release()

    def _commit_made(self, indices: list[int], until: float) -> None:
        """What was made of these waits no more then, whatever becomes of it."""
        try:
            for batch in () if self._has_changed() else self._batches(indices):
                self._commit(batch, until)
                if self.is_declined:
                    break
        finally:
            with self._changed:
                self._share.settle([index for index in indices if self._share.is_taken(index)])
                for index in indices:
                    self._made_bytes -= weight(self._made.pop(index).samples[0])
                self._commits += 1
                self._changed.notify_all()

    def _batches(self, indices: list[int]) -> Iterator[Batch]:
        """What was made of these, in parts that suit the size of the cache: one that has no room is full."""
        collected, limit = Collected(self._task), self._pace.commit_bytes
        for index in indices:
            with contextlib.suppress(SampleError):  # too many trees: it was looked at when it was made
                collected.add(self._made[index], self._share.lease_of(index))
            if collected.nbytes >= limit:
                yield collected.batch(self._observed())
                collected = Collected(self._task)
        if not collected.is_empty:
            yield collected.batch(self._observed())

    def _has_changed(self) -> bool:
        steady = self._task.steady
        changed = steady.changed(is_due=True)
        if changed:
            self._artifacts.reason = line(changed)
            if steady.is_news():
                log.warning("prepcache: %s: %s", self._artifacts.recipe.name, self._artifacts.reason)
        return bool(changed)

    def _commit(self, batch: Batch, until: float) -> None:
        artifacts, began = self._artifacts, time.monotonic()
        edition = self._task.catalogue.edition
        commits = Commits(artifacts.sharing, artifacts.recipe.digest, self._task.producer, edition)
        limit_s = None if until == math.inf else max(0.0, until - began)
        for outcome in commits.commit(batch, artifacts.generation, limit_s):
            if outcome.is_cut_off and limit_s is None:  # a thread has waited, on its own time
                artifacts.session.give_up_for_now(outcome.reason)
            self._note(outcome)
        self._commit_s = time.monotonic() - began

    def _note(self, outcome: Outcome) -> None:
        """What became of a batch."""
        artifacts, indices, is_again = self._artifacts, outcome.batch.indices, outcome.batch.is_offered_again
        aside = outcome.aside
        if outcome.committed is None:  # by the next beat: one that is at a hanging commit cannot be released
            forsake(artifacts.session, outcome.batch.leases)
        if outcome.is_lapsed and is_again:
            artifacts.look()
            self._task.catalogue.place()
            if not self._task.catalogue.is_shared(np.asarray(indices)).all():
                aside = outcome.batch  # a commit of its own that was given up may have its items
        elif outcome.is_retryable and is_again:
            aside = None
            self._decline(outcome.reason)
        elif outcome.committed is None and aside is None and not outcome.is_lapsed:
            self._decline(outcome.reason)
        if aside is not None:
            if not is_again:
                self._task.catalogue.add_local(outcome.kept)
            self.adopt([aside])
        committed, useless = outcome.committed, None
        if committed is not None:
            useless = self._share.map_committed(committed, outcome.batch.observed)
            artifacts.drop(useless or [])
        with self._changed:
            if committed and useless is not None and committed.generation == artifacts.generation + 1:
                artifacts.generation = committed.generation
            self._share.settle(indices, is_committed=outcome.committed is not None)

    def _decline(self, reason: str) -> None:
        """No more is kept; said once, and not where the fill has said it."""
        if not self.is_declined and reason != self._artifacts.reason:
            log.warning("prepcache: samples preprocessed on access are no longer stored: %s", reason)
        self.is_declined, self._artifacts.reason = True, reason


_turn = ForkLock()
"""Held by the one thread of the process that commits: each has a connection while it does."""


def _end(reference: weakref.WeakMethod[Callable[[], None]]) -> None:
    """The end of what is still there of it, as its process ends."""
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


def made_by(recipe: str) -> dict[str, Any]:
    """The job that makes artifacts of a recipe of this name, for people, and for a rebuilt index."""
    import socket

    return {
        "recipe": recipe,
        "script": Path(script_run()).name or "python",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "uid": os.getuid(),
        "at": time.time(),
    }
