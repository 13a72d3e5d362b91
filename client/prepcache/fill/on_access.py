"""Samples made on access: leased before they are made, and committed while training goes on.

Invariants:
    1. Every process has its own, and its own session; the threads of a process share it.
    2. A sample is made while the share says that its item is this job's: jobs and workers that read one cold
       data set call the function once for each item.
    3. One thread at a time leases; threads make different items at once, and wait for one that another
       makes. A thread that is waited for, or may be for `PATIENCE_S`, makes its own, which is not kept.
    4. A process that waits for others has a thread commit what it made: no two wait for each other. What was
       made is committed after `SOON_S`, after an outage, or, where the cache is full, at once: others wait.
    5. Until it is in files it is in memory, at most half a batch of it, and is given from there. It is in
       files before another process gets the data set, and before all is prepared.
    6. What is leased and not committed is given back: others may wait for it.
    7. Samples that were made while something that counts in the recipe changed are given to the job, and not
       stored.

Locking: `_turn` is held while items are leased, and never over a call; `_submitting` while what was made
goes into files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from prepcache import forks
from prepcache.artifact.sample_tree import copied
from prepcache.errors import PrepcacheError, SampleError
from prepcache.fill.call import Part
from prepcache.fill.commit import Committer, is_full
from prepcache.fill.pending import Collected, Task
from prepcache.fill.recipe_guard import line
from prepcache.fill.share import COMMIT_ITEMS, COMMIT_LEASES, OURS, Pace, Share
from prepcache.keys.observation.watches import present
from prepcache.keys.randomness import Guard, describe
from prepcache.protocol.wire import with_draws

POLL_S = 0.25
"""One long poll for what others are making."""
SOON_S = 1.0
"""What was made is committed so soon: other jobs, and workers of this one, may wait for it."""
PATIENCE_S = 5.0
"""Longest wait of a thread for which the call that it waits for may be waiting."""
LEASE_FROM_S = 2e-3
"""An item that costs less, and is asked for alone, is leased when it is committed: asking takes as long."""
LOOK_AGAIN_S = 5.0
"""How often a lazy data set that misses, and keeps nothing, asks what others have committed meanwhile."""


class OnAccess:
    """Makes samples and has them committed."""

    def __init__(self, task: Task) -> None:
        self.pid = os.getpid()
        self.task = task
        self._job = task.by.job  # made before workers are forked
        self.committer = Committer(task)
        self._artifacts = artifacts = task.by.artifacts
        self._turn = threading.RLock()
        self._is_made = threading.Condition()
        self._submitting = threading.Lock()
        self._pace = Pace()
        self._share = Share(artifacts, task.catalogue, np.empty(0, "i4"), self._pace, lambda found: None)
        self._made: dict[int, Part] = {}  # what is in no file yet
        self._made_bytes = self._grants = 0
        self._guards: dict[int, Guard] = {}  # of the calls that are under way, by `id`
        forks.note(self)

    # -- making

    def samples(self, indices: Sequence[int], *, is_single: bool) -> dict[int, Any]:
        """The samples of distinct items that are missing; `is_single`: the job asks for them one by one."""
        by, guard, session = self.task.by, self._job.guard, self._artifacts.session
        self._job.refuse_itself()
        drifted = guard.check_first() if self._artifacts.mode.is_writing else []
        if drifted:
            by.say_of_it(line(drifted), "drifted")
        is_keeping = by.keeps or self._artifacts.has_lost
        watched = Guard(guard.drawn)
        self._guards[id(watched)] = watched
        try:
            with self._job.filling(), watched:
                is_there = self._artifacts.mode.is_writing and (session.is_away or not session.is_gone)
                if is_keeping and not drifted and is_there and not self.committer.reason and not is_full():
                    made = self._shared(indices, is_single=is_single)
                else:
                    if is_keeping:
                        self._artifacts.look(not_within_s=LOOK_AGAIN_S)
                    made = {index: self._unkept(index) for index in indices}
        finally:
            del self._guards[id(watched)]
        if watched.drawn:
            by.say(describe(by.name, watched.drawn), "drawn")
        return made

    def _drawn(self) -> set[str]:
        for watched in list(self._guards.values()):
            watched.check()
        return self._job.guard.drawn

    def _unkept(self, index: int) -> Any:
        slot, row = self.task.catalogue.slot_of(index)
        if slot is not None:
            return slot.artifact.sample(row)
        part, _ = self._call(index, self.task.originals.item(index))
        return copied(part.samples[0])  # the next call may give the same memory

    def _call(self, index: int, item: Any) -> tuple[Part, bool]:
        """Makes a sample of an item; whether it may be kept."""
        task, by = self.task, self.task.by
        (part,) = self._job.parts(index, item)
        self._job.guard.note_call()
        if part.error is not None:
            raise task.failure(part)
        if by.is_wrapped:
            by.refuse_draws(self._drawn())
        task.tally.note_made(index, part.cost_s)
        task.say_notices(part.notices)
        changed = task.originals.changed(index)
        if part.unobserved:
            task.say_unobserved(index, part.unobserved)
        elif changed:
            task.say_changed({index: changed})
        return part, not (part.unobserved or changed)

    def _shared(self, indices: Sequence[int], *, is_single: bool) -> dict[int, Any]:
        """Samples that are made here, or by others meanwhile."""
        if not self._pace.cost_s:
            self._share.suit_cache()
        by, began = self.task.by, time.monotonic()
        found: dict[int, Any] = {}
        while left := self._unread(indices, found):
            todo: list[int] = []
            granted: list[int] = []
            try:
                with self._turn:
                    todo = [index for index in left if not self._share.is_taken(index)]
                    granted = self._granted(todo, is_single=is_single) if todo else []
                for index in granted:
                    self._make(index, found)
            except BaseException:  # the function raised, or was interrupted: others may make these
                # Not all that it wants: another thread may be making the rest by now.
                taken = [index for index in granted or todo if self._share.is_taken(index)]
                self._share.settle(index for index in taken if index not in self._made)
                self._flush_soon()
                raise
            if todo:
                began = time.monotonic()
            else:
                with self._is_made:
                    self._is_made.wait(POLL_S)
            is_late = time.monotonic() - began > PATIENCE_S
            may_be_called_for = is_late and (self._job.observer is None or present())
            if not granted and (by.is_in_executor or may_be_called_for):
                found |= {index: self._unkept(index) for index in left}
        return found

    def _unread(self, indices: Sequence[int], found: dict[int, Any]) -> list[int]:
        """Reads what is there by now; what is still missing."""
        catalogue = self.task.catalogue
        for index in indices:
            if index in found:
                continue
            # Before the catalogue: what is no more here is there by then.
            if (part := self._made.get(index)) is not None:
                found[index] = copied(part.samples[0])
                continue
            slot, row = catalogue.slot_of(index)
            if slot is not None:
                found[index] = slot.artifact.sample(row)
        return [index for index in indices if index not in found]

    def _granted(self, todo: list[int], *, is_single: bool) -> list[int]:
        """What may be made of these now; nothing where others had them, who were waited for."""
        share, among = self._share, np.asarray(todo)
        if is_single and 0 < self._pace.item_s < LEASE_FROM_S:
            share.mark(todo, OURS)
            return todo
        share.want(todo)
        try:
            granted = share.take(among=among)
            if not granted and not share.reason:
                self._flush_soon()
                granted = share.wait(POLL_S, among=among)
        except PrepcacheError:
            if self._artifacts.session.is_away:
                return []  # they are taken without a lease then
            share.settle(todo)  # they are made all the same, and not kept
            return todo
        if share.reason:
            self.committer.decline(share.reason)
            self._flush_soon()
            share.settle(todo)
            return todo
        self._grants += bool(granted) and not self._artifacts.session.is_away
        if share.is_waited_for:
            share.is_waited_for = False
            self._flush_soon()
        return granted

    def _make(self, index: int, found: dict[int, Any]) -> None:
        try:
            part, is_kept = self._call(index, self.task.originals.compared(index))
            if is_kept and (looked := part.looked_at()).error is not None:
                raise self.task.failure(looked)
            found[index] = copied(part.samples[0])  # the next call may give the same memory
            self._pace.note(part.cost_s, part.nbytes)
            if not (is_kept and self._share.is_taken(index)):
                self._share.settle((index,))
                return
            self._made[index] = part.copied()
        finally:
            with self._is_made:
                self._is_made.notify_all()
        self._made_bytes += part.nbytes
        self.committer.collect = self.run
        is_batch = self._made_bytes >= self._pace.commit_bytes // 2 or len(self._made) >= COMMIT_ITEMS // 2
        if is_batch or self._grants >= COMMIT_LEASES:
            self.run()
        else:
            self.committer.soon(0.0 if self.committer.reason else SOON_S)

    # -- committing

    def _flush_soon(self) -> None:
        if self._made:
            self.committer.soon()

    def run(self, *, is_waiting: bool = True) -> None:
        if os.getpid() == self.pid and self._submitting.acquire(blocking=is_waiting):
            try:
                self._submit()
            finally:
                self._submitting.release()

    def before_fork(self) -> None:
        self.run(is_waiting=False)  # a function that forks may be called by what submits

    def _submit(self) -> None:
        made, self._grants = dict(self._made), 0
        if made and (changed := self._job.guard.check()):
            self._artifacts.reason = line(changed)
            self.task.by.say_of_it(line(changed), "drifted")
        elif made:
            collected = Collected(self.task)
            for index, part in made.items():
                with contextlib.suppress(SampleError):  # too many trees: it was looked at when it was made
                    collected.add(part, self._share.lease_of(index))
            if collected.indices:
                observed = with_draws(self._job.observed(), self._drawn())
                self.committer.submit(collected, self._share, observed)
        for index in made:
            del self._made[index]
        # Not before: a process that ends waits for what is on its way into files.
        self.committer.collect = None
        if self._made:
            self.committer.collect = self.run
        self._made_bytes = sum(part.nbytes for part in list(self._made.values()))
        if made:  # a fork before anything is made asks the daemon nothing
            self._share.suit_cache()
        self._share.settle([index for index in made if self._share.is_taken(index)])
