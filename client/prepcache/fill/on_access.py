"""Samples made on access: leased before they are made, and committed while training goes on.

A lazy data set makes all of its samples so; another those that its fill left, where the daemon was gone, and
those that were purged while it is open.

Invariants:
    1. Every process has its own: a DataLoader worker leases and commits under its own session, and commits at
       the latest when it ends.
    2. A sample is made under a lease or, in an outage, under a lock: jobs and workers that read one cold data
       set call the function once for each item. What others have is waited for. One request leases a share
       of what is missing of a batch. Items that are asked for one by one and cost less than a request may be
       made twice, and so may those of an outage that leasing names (leases.py).
    3. A process that waits for others has a thread commit what it made: no two wait for each other. What was
       made is committed after `COMMIT_S` in any case.
    4. Until then it is in memory, and is given from there. While `MAX_BYTES` of it wait, samples are made
       without a lease and not kept.
    5. What is leased and not committed is given back: others may wait for it.
    6. Samples that were made while something that counts in the recipe changed are dropped.

Locking: `_changed`, the committer's, guards what is being made and what was made. It is never held over a
request, nor while the function runs. One thread at a time asks for leases.
Not here: the thread, and what becomes of a batch (background_commit.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prepcache.artifact.sample_tree import copied
from prepcache.daemon.description import script_run
from prepcache.errors import PrepcacheError, SampleError
from prepcache.fill.background_commit import AWAY_BYTES, THREAD, Committer, waiting_bytes
from prepcache.fill.call import Part, weight
from prepcache.fill.collect import Collected, Task
from prepcache.fill.filler import COMMIT_LEASES
from prepcache.fill.leases import Share
from prepcache.fill.pacing import COMMIT_BYTES, COMMIT_ITEMS, Pace
from prepcache.fill.recipe_guard import line
from prepcache.index.artifact_set import ArtifactSet

log = logging.getLogger("prepcache")

WAIT_S = 0.25
"""One long poll for what others are making; other threads of the process ask between two of them."""
COMMIT_S = 1.0
"""What was made is committed so soon: other jobs, and workers of this one, may wait for it."""
COMMIT_PAUSES = 20
"""Or after so many times as long as the last commit took: committing takes a twentieth of a thread's time."""
LONGEST_PAUSE_S = 30.0
LEASE_FROM_S = 2e-3
"""An item that costs less, and is asked for alone, is leased when it is committed: asking takes as long."""
MAX_BYTES = COMMIT_BYTES
"""What may wait in memory."""

Call = Callable[[int], tuple[Part, bool]]
"""Makes the sample of a distinct item; whether that may be kept."""


class OnAccess:
    """Makes samples and has them committed, for one process.

    Args:
        task: gives catalogue and producer; its `todo` is not used.
        committer: of the same data set.
        observed: what the function was seen to read beside its items.
    """

    def __init__(
        self,
        artifacts: ArtifactSet,
        task: Task,
        committer: Committer,
        observed: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self.pid = os.getpid()
        self.committer = committer
        self._artifacts = artifacts
        self._task = task
        self._observed = observed
        self._changed = committer.changed
        self._share = Share(artifacts, task.catalogue, np.empty(0, "i4"), lambda found: None)
        self._pace = Pace()
        self._making: dict[int, int] = {}
        """The thread that makes each item."""
        self._made: dict[int, Part] = {}
        """What is not committed yet."""
        self._uncollected: list[int] = []
        """What of it is in no batch yet."""
        self._made_bytes = self._grants = self._commit_bytes = 0
        self._is_asking = False
        committer.collect = weakref.WeakMethod(self.run)
        artifacts.session.at_return(self.flush_soon)

    @property
    def wants_more(self) -> bool:
        """Whether samples would be taken."""
        session = self._artifacts.session
        if self.committer.reason or self._made_bytes >= MAX_BYTES or len(self._made) >= COMMIT_ITEMS:
            return False
        return (session.is_away or not session.is_gone) and waiting_bytes() < AWAY_BYTES

    @property
    def is_collecting(self) -> bool:
        """Whether anything waits for its first commit."""
        return bool(self._made)

    # -- making

    def samples(self, indices: Sequence[int], call: Call, *, is_single: bool = False) -> dict[int, Any]:
        """The samples of distinct items that were missing: made here, or by others meanwhile.

        Args:
            is_single: the job asks for samples one by one.
        """
        found: dict[int, Any] = {}
        left = list(indices)
        try:
            while left:
                for index in self._begin(left, is_single=is_single):
                    self._make(index, call, found)
                self._read(left, found)
                left = [index for index in left if index not in found]
        except BaseException:
            self._give_up(left)
            raise
        return found

    def _begin(self, left: list[int], *, is_single: bool) -> list[int]:
        """What this thread makes next; nothing where it has waited for others."""
        me, missing = threading.get_ident(), self._task.catalogue.is_missing
        with self._changed:
            # The function asks for another item of the very batch that it is at.
            if nested := [index for index in left if self._making.get(index) == me]:
                return nested
            todo = [index for index in left if index not in self._made and missing(index)]
            if len(todo) < len(left):
                return []
            todo = [index for index in todo if index not in self._making]
            if not todo or self._is_asking:
                self._changed.wait(WAIT_S)
                return []
            if is_single and 0 < self._pace.item_s < LEASE_FROM_S:
                self._share.take_unleased(todo)
                self._making.update(dict.fromkeys(todo, me))
                return todo
            self._is_asking = True
        mine: list[int] = []
        try:
            mine = self._leased(todo)
        except BaseException:  # an interrupt after the grant
            self._share.settle([index for index in todo if self._share.is_taken(index)])
            raise
        finally:
            with self._changed:
                self._is_asking = False
                self._making.update(dict.fromkeys(mine, me))
                self._changed.notify_all()
        return mine

    def _leased(self, todo: list[int]) -> list[int]:
        """What may be made of these."""
        share, artifacts, pace = self._share, self._artifacts, self._pace
        todo = [index for index in todo if self._task.catalogue.is_missing(index)]
        if not todo:
            return []
        share.want(todo)
        among = np.asarray(todo)  # another thread would wait for what this one does not make after an error
        want = pace.want(len(todo), len(share.holders))
        cost_s, nbytes = want * pace.item_s, int(want * pace.item_bytes)
        try:
            granted = share.take(want, cost_s, nbytes, among)
            if not granted and not share.reason:
                self.flush_soon()
                granted = share.wait(want, cost_s, nbytes, WAIT_S, among)
        except PrepcacheError:
            if artifacts.session.is_away:
                return []  # under a lock then
            granted = self._unleased(todo)
        if share.reason:
            self.committer.decline(share.reason)
            granted = self._unleased(todo)
        self._grants += bool(granted)
        if share.is_waited_for:
            share.is_waited_for = False
            self.flush_soon()
        return granted

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
            self._making.pop(index, None)
            self._changed.notify_all()
            self._pace.note(part.cost_s, nbytes)
            if kept is None or not self._share.is_taken(index):
                self._share.settle((index,))
                return
            self._made[index] = kept
            self._made_bytes += nbytes
            self._uncollected.append(index)
        pause_s = max(COMMIT_S, min(LONGEST_PAUSE_S, COMMIT_PAUSES * self.committer.last_s))
        THREAD.schedule(self, 0.0 if self._is_commit_due() else pause_s)

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
            self._share.settle([index for index in mine if index not in self._made])
            self._changed.notify_all()
        self.flush_soon()

    # -- committing

    def flush_soon(self) -> None:
        """Has the thread commit what was made."""
        if self._uncollected:
            THREAD.schedule(self)

    def flush(self) -> None:
        """Commits what was made; returns when that is done."""
        self.run()
        self.committer.flush(is_retrying=False)

    def run(self) -> None:
        """Hands over what was made, in batches that suit the cache: one that has no room is full."""
        if os.getpid() != self.pid:
            return
        THREAD.cancel(self)  # else it keeps all this until then
        with self._changed:
            indices, self._uncollected, self._grants = self._uncollected, [], 0
        collected, left = Collected(self._task), set(indices)
        try:
            for index in indices if indices and not self._has_changed() else ():
                with contextlib.suppress(SampleError):  # too many trees: it was looked at when it was made
                    collected.add(self._made[index], self._share.lease_of(index))
                is_over = index == indices[-1] and not collected.is_empty
                if is_over or collected.nbytes >= self._pace.commit_bytes:
                    batch = collected.batch(self._observed(), self._share)
                    batch.on_end = self._forget
                    left.difference_update(batch.indices)
                    self.committer.submit(batch)
                    collected = Collected(self._task)
        finally:
            self._forget(list(left))

    def _forget(self, indices: Sequence[int]) -> None:
        """What was made of these waits no more: it is committed, or in a file of this job, or dropped."""
        with self._changed:
            for index in indices:
                if (part := self._made.pop(index, None)) is not None:
                    self._made_bytes -= weight(part.samples[0])
            self._share.settle([index for index in indices if self._share.is_taken(index)])
            self._changed.notify_all()

    def _has_changed(self) -> bool:
        steady = self._task.steady
        changed = steady.changed(is_due=True)
        if changed:
            self._artifacts.reason = line(changed)
            if steady.is_news():
                log.warning("prepcache: %s: %s", self._artifacts.recipe.name, self._artifacts.reason)
        return bool(changed)


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
