"""The fill: preprocesses what is missing, together with every other job that wants the same.

Invariants:
    1. An item is preprocessed under a live lease; over jobs whose leases do not lapse, each item once.
    2. Whatever the daemon does (refuses, declines, dies), the fill ends, and raises only what the
       preprocessing function or its samples give cause for, or an interrupt.
    3. However it ends, what was preprocessed is committed, or kept in this job, and leases are given back.
       What was made while something that counts in the recipe changed is kept in this job.
    4. At most one batch is in memory, and one is waited for before the next but one is committed.
    5. While the daemon is away the fill goes on without leases.

NOTE [ When to commit ]
    At 128 MB, or a 32nd of a small cache; when 30 s of work and 2 % of all work so far are
    uncommitted; when somebody waits for what this job has; when it has nothing left to lease; at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache.errors import (
    DaemonUnreachable,
    LimitExceeded,
    PrepcacheError,
    SampleError,
)
from prepcache.fill.call import Part
from prepcache.fill.commit import Committer, is_full, waiting_bytes
from prepcache.fill.pacing import COMMIT_BYTES, COMMIT_ITEMS, COMMIT_LEASES, Pace
from prepcache.fill.pending import Batch, Collected, Task
from prepcache.fill.recipe_guard import line
from prepcache.fill.share import Share
from prepcache.fill.workers import Workers
from prepcache.index.item_index import Array
from prepcache.keys.observation.context import Notice
from prepcache.protocol.observed import with_draws
from prepcache.protocol.units import size_text

if TYPE_CHECKING:
    from prepcache.progress import Progress

WAIT_S = 1.0
"""One long poll; between two of them progress is shown."""
FILE_BYTES = 16 << 10
"""What a file takes beyond its samples: header, borders, blocks."""


@dataclass(slots=True)
class Filled:
    """How a fill went, by distinct items.

    Args:
        computed: made here and kept, in the cache or in this job; `waited`: made by other jobs meanwhile.
        changed: names in items that changed since the opening; `unobserved`: why what was read is unknown.
        nothing: the function returned None for them.
        late: how many of the computed are in commits that go on, and are waited for no more.
        is_declined: the cache had no room for the rest; `reason`: why it ended early, or "".
    """

    computed: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    changed: dict[int, list[str]] = field(default_factory=dict)
    unobserved: dict[int, str] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    drawn: set[str] = field(default_factory=set)
    nothing: list[int] = field(default_factory=list)
    late: int = 0
    is_declined: bool = False
    reason: str = ""
    seconds: float = 0.0


class Fill:
    """One run over the missing items `todo` of one data set; closes the workers at the end."""

    def __init__(
        self,
        task: Task,
        workers: Workers,
        watcher: Progress,
        committer: Committer,
        todo: Array,
    ) -> None:
        self._task = task
        self._artifacts = task.by.artifacts
        self._session = self._artifacts.session
        self._workers = workers
        self._watcher = watcher
        self._committer = committer
        self._filled = Filled()
        self._pace = Pace(workers.slots)
        self._share = Share(self._artifacts, task.catalogue, todo, self._pace, self._note_found)
        self._queue: deque[int] = deque()
        self._collected, self._refused = Collected(task), Collected(task)
        self._unfinished: dict[int, Collected] = {}
        self._is_stopped = False
        self._is_alone = False
        self._was_away = False
        if self._artifacts.mode.is_writing:
            self._share.suit_cache()
        else:
            self._stop(f"PREPCACHE={self._artifacts.mode.value}: no daemon is asked")

    def run(self) -> Filled:
        self._committer.is_filling = True
        try:
            try:
                while self._step():
                    self._report_progress()
            finally:
                try:  # an interrupt may come twice
                    self._workers.close()
                    self._keep_refused()
                    self._flush()
                    self._committer.wait()
                finally:
                    self._share.release_all()
            self._note_trouble()
        finally:
            self._committer.end_filling()  # what is made on access may be stored
        filled = self._filled
        filled.computed = np.setdiff1d(filled.computed, filled.waited).tolist()
        filled.late, filled.drawn = self._committer.late_items, self._workers.drawn
        filled.seconds = self._pace.cost_s
        self._report_progress()
        return filled

    def _step(self) -> bool:
        self._note_trouble()
        if not self._is_stopped:
            self._feed()
        elif self._task.by.job.is_expanded:
            self._feed_alone()
        if self._workers.pending:
            self._take(self._workers.take())
            return True
        if self._is_stopped or not self._session.is_away:  # in an outage each file would take a descriptor
            self._flush()
        self._committer.wait()  # leases may lapse, and items be wanted once more
        if not self._share.open:
            return False
        if self._is_stopped:
            return self._task.by.job.is_expanded
        if not self._share.fresh:
            self._wait()
        return True

    def _note_trouble(self) -> None:
        if self._committer.reason:
            self._stop(self._committer.reason, is_declined=self._committer.is_declined)
        self._was_away |= self._session.is_away

    # -- getting work

    def _feed(self) -> None:
        while self._workers.has_room and not self._is_stopped:
            lapsed = []  # before they were begun
            while self._queue and not self._share.is_ours(self._queue[0]):
                lapsed.append(self._queue.popleft())
            if lapsed:
                self._share.reopen(lapsed)  # at once: it looks through all items
            if not self._queue and not self._lease():
                return
            self._submit_chunk()

    def _feed_alone(self) -> None:
        """Sharing is over, but how many samples an item gives is known only by expanding it."""
        if not self._is_alone:
            if self._workers.pending or self._collected.indices:
                return  # what was leased is committed first
            self._is_alone = True
            self._pace.commit_bytes = COMMIT_BYTES  # few files, as each takes a descriptor
        self._queue.extend(self._share.take_rest())
        while self._workers.has_room and self._queue:
            self._submit_chunk()

    def _submit_chunk(self) -> None:
        count = min(self._pace.chunk(len(self._queue)), len(self._queue))
        self._workers.submit([self._queue.popleft() for _ in range(count)])

    def _lease(self) -> bool:
        granted = self._ask(self._share.take)
        if self._share.is_waited_for:
            self._share.is_waited_for = False
            self._flush()
        return granted

    def _wait(self) -> None:
        """Waits until others commit or give up what they hold, or the daemon ends their leases."""
        holders = self._share.holders
        self._watcher.waiting(holders, self._share.open)
        if self._ask(partial(self._share.wait, WAIT_S)) and holders:
            text = f"{holders[0].who} has leased items and not stored them: this job takes them over"
            self._task.by.say_of_it(text, "taken")

    def _ask(self, ask: Callable[[int], list[int]]) -> bool:
        """Queues what is granted; whether anything is. Sharing ends where there is no room for it, and where
        the daemon is gone or fails; the job goes on."""
        coming = int(self._workers.pending * self._pace.item_bytes)
        granted: list[int] = []
        try:
            granted = ask(self._collected.nbytes + coming + FILE_BYTES)
        except LimitExceeded as error:
            if not self._collected.indices and (self._committer.is_idle or self._committer.late_items):
                self._stop(error.message)
            self._flush()
            self._committer.wait()
        except PrepcacheError as error:
            self._was_away |= self._session.is_away
            is_away = self._session.is_away or (self._was_away and not self._session.is_gone)
            if not (isinstance(error, DaemonUnreachable) and is_away):  # else it goes on, and shares later
                self._stop(error.message)
        else:
            if self._share.reason:
                self._stop(self._share.reason, is_declined=True)
        self._queue.extend(granted)
        return bool(granted)

    def _note_found(self, found: Array) -> None:
        self._filled.waited.extend(found.tolist())

    # -- taking what is made

    def _take(self, parts: list[Part]) -> None:
        for part in parts:
            if part.refusal is not None:
                raise self._task.refusal(part.index, part.refusal)
            if part.error is not None:
                raise self._task.failure(part)
            if part.notices:
                self._filled.notices.extend(part.notices)
            try:
                if part.is_last and part.index not in self._unfinished:
                    self._take_whole(part)
                else:
                    self._take_cut(part)
            except SampleError as error:  # no column can hold it
                raise self._task.refusal(part.index, error) from None
        self._task.by.job.guard.note_call()
        if self._is_flush_due():
            self._flush()

    def _take_cut(self, part: Part) -> None:
        index = part.index
        cut = self._unfinished.setdefault(index, Collected(self._task))
        cut.add(part, self._share.lease_of(index))
        if not part.is_last:
            return
        del self._unfinished[index]
        self._pace.note(cut.cost_s, cut.nbytes)
        if self._is_refused(part):
            self._committer.keep(partial(cut.batch, []), cut.indices)
        else:
            self._filled.computed.append(index)
            self._hand_in(cut)

    def _take_whole(self, part: Part) -> None:
        index = part.index
        self._pace.note(part.cost_s, part.nbytes)
        if self._is_refused(part):
            if self._task.by.job.is_expanded:  # it can't be made again on access
                self._refused.add(part, None)
                if self._refused.nbytes >= COMMIT_BYTES:
                    self._keep_refused()
            return
        if len(part.samples) == 1 and part.samples[0] is None:
            self._filled.nothing.append(index)
        self._collected.add(part, self._share.lease_of(index))
        self._filled.computed.append(index)

    def _is_refused(self, part: Part) -> bool:
        """Whether an item's samples are not to be stored: they were made of bytes that its digest does not
        stand for, or of something that was not observed."""
        if changed := self._task.originals.changed(part.index):
            self._filled.changed[part.index] = changed
        if part.unobserved:
            self._filled.unobserved[part.index] = part.unobserved
        is_refused = bool(changed or part.unobserved)
        if is_refused:
            self._share.settle((part.index,))
        return is_refused

    def _is_flush_due(self) -> bool:
        collected = self._collected
        return (
            self._pace.is_commit_due(collected.nbytes)
            or len(collected.indices) >= COMMIT_ITEMS
            or collected.leases >= COMMIT_LEASES
        )

    # -- committing

    def _keep_refused(self) -> None:
        if (refused := self._refused).indices:
            self._committer.keep(partial(refused.batch, []), refused.indices)
            self._refused = Collected(self._task)

    def _flush(self) -> None:
        if (collected := self._collected).indices:
            self._hand_in(collected)
            self._collected = Collected(self._task)  # not before: an interrupt may come
            if not self._is_alone:
                self._share.suit_cache()
            self._committer.wait(1)  # invariant 4

    def _observed(self) -> list[dict[str, Any]]:
        return with_draws(self._workers.observed(), self._workers.drawn)

    def _hand_in(self, collected: Collected) -> None:
        indices, session = collected.indices, None if self._is_alone else self._session

        def make() -> Batch:
            return collected.batch(self._observed(), session)

        self._pace.uncommitted_s = 0.0
        changed = [] if self._is_alone else self._task.by.job.guard.check()
        if changed:
            self._stop(line(changed))
        if changed or self._is_alone:
            self._committer.keep(make, indices)
            self._share.settle(indices)
        else:
            self._committer.submit(make, self._share, indices=indices)
            if is_full():
                self._stop(f"{size_text(waiting_bytes())} are waiting for a daemon that does not answer")

    def _stop(self, reason: str, *, is_declined: bool = False) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._filled.reason, self._filled.is_declined = reason, is_declined
            self._share.reopen(self._queue)
            self._queue.clear()

    def _report_progress(self) -> None:
        computed, waited = len(self._filled.computed), len(self._filled.waited)
        self._watcher.advance(computed, waited, self._pace.item_bytes)
