"""The fill: preprocesses what is missing, together with every other job that wants the same.

Invariants:
    1. An item is preprocessed under a live lease; over jobs whose leases do not lapse, each item once.
    2. Whatever the daemon does (refuses, declines, dies), the fill ends, and raises only what the
       preprocessing function or its samples give cause for, or an interrupt.
    3. However it ends, what was preprocessed is committed, or kept in this job, and leases are given back.
       What was made while something that counts in the recipe changed is kept in this job.
    4. At most one batch is being written while another is collected: memory stays below two of them.
    5. A commit that takes too long is left behind (backlog.py): what it holds is kept in this job, too.
    6. While the daemon is away (it starts, restarts or stands still) the fill goes on without leases. What it
       makes so is committed as soon as the daemon answers; up to `AWAY_BYTES` of it wait in files of this
       job.

NOTE [ When to commit ]
    At 128 MB, near the end at as much as is left to make; when 30 s of work and 2 % of all work so far are
    uncommitted; when somebody waits for what this job has; when this job has nothing left to lease; and at
    the end.

Not here: leases (leases.py), how much (pacing.py), calling the function (workers.py), commits (commit.py).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from prepcache.errors import (
    DaemonUnreachable,
    LimitExceeded,
    PrepcacheError,
    SampleError,
)
from prepcache.fill.background_commit import Adopter, Committer, to_nobody
from prepcache.fill.call import Part, weight
from prepcache.fill.collect import Collected, Cut, Task
from prepcache.fill.commit import AWAY_BYTES, Batch, Commits, Outcome, waiting_bytes
from prepcache.fill.leases import Share
from prepcache.fill.pacing import COMMIT_BYTES, COMMIT_ITEMS, Pace
from prepcache.fill.recipe_guard import line
from prepcache.fill.workers import Crew
from prepcache.index.item_index import Array
from prepcache.keys.observation.context import Notice
from prepcache.protocol import wire
from prepcache.protocol.observed import with_draws
from prepcache.protocol.units import size_text

log = logging.getLogger("prepcache")

WAIT_S = 1.0
"""One long poll; between two of them progress is shown."""
STALLED_S = 660.0
"""Holders without progress for so long are not waited for. The daemon ends a stalled lease after 600 s."""
FILE_BYTES = 16 << 10
"""What a file takes beyond its samples: header, borders, blocks."""
MAX_LAPSES = 3
"""Batches in a row whose leases lapse before they are committed, and nobody else makes their items."""
COMMIT_LEASES = 128
"""Bounds what one commit names."""


class Watcher(Protocol):
    """Shows how a fill goes."""

    def advance(self, computed: int, waited: int, pace: Pace, taken: int) -> None:
        """So many items are done by now, and so many more are in the hands of other jobs."""

    def waiting(self, holders: Sequence[wire.Holder], left: int) -> None:
        """Nothing to do but to wait for others."""


@dataclass(slots=True)
class Filled:
    """How a fill went.

    Args:
        computed: distinct items preprocessed here and kept, in the cache or in this job.
        waited: distinct items that other jobs made meanwhile.
        changed: positions' items that changed after the opening, and the names in them that did.
        unobserved: items made while what the function read could not be observed, and why.
        notices: what the user should be told of the function.
        drawn: global random generators that the function drew from.
        nothing: items for which it returned None.
        aside: what is kept in this job for want of a daemon, for when it answers again.
        left: those of the computed whose commits were left behind, and go on.
        is_declined: the cache had no room for the rest.
        is_cut_off: the daemon was gone.
        reason: why it ended early, or "".
    """

    computed: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    changed: dict[int, list[str]] = field(default_factory=dict)
    unobserved: dict[int, str] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    drawn: set[str] = field(default_factory=set)
    nothing: list[int] = field(default_factory=list)
    aside: list[Batch] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    is_declined: bool = False
    is_cut_off: bool = False
    reason: str = ""
    seconds: float = 0.0


class Fill:
    """One run over the missing items of one data set.

    Args:
        session: as in session.py.
        crew: calls the function; closed at the end.
        clock: monotonic seconds.
        stalled_s: how long holders without progress are waited for.
        commit_bytes: how large a batch gets.
        adopter: as in background_commit.py.
    """

    def __init__(
        self,
        task: Task,
        session: Any,
        crew: Crew,
        watcher: Watcher,
        *,
        clock: Callable[[], float] = time.monotonic,
        stalled_s: float = STALLED_S,
        commit_bytes: int = COMMIT_BYTES,
        adopter: Adopter = lambda: to_nobody,
    ) -> None:
        self._task = task
        self._session = session
        self._crew = crew
        self._watcher = watcher
        self._clock = clock
        self._stalled_s = stalled_s
        self._pace = Pace(crew.slots, commit_bytes)
        self._share = Share(
            session, task.recipe, task.catalogue, task.generation, task.todo, self._found_by_others
        )
        self._commits = Commits(session, task.recipe.digest, task.producer, task.catalogue.edition)
        self._adopter = adopter
        self._committer = Committer(self._commits, adopter)
        self._queue: deque[int] = deque()
        self._collected = Collected(task)
        self._outgoing: Batch | None = None
        self._unfinished: dict[int, Cut] = {}
        self._fresh = 0
        self._filled = Filled()
        self._is_stopped = False
        self._is_alone = False
        self._is_away = False
        self._still_since: tuple[Any, float] | None = None
        self._lapses = 0

    def run(self) -> Filled:
        """Fills.

        Raises:
            PreprocessError: the function raised; the message names the item, `__cause__` is its exception.
            SampleError: it returned what no column can hold.
        """
        has_failed = False
        try:
            while self._step():
                self._report_progress()
            return self._filled
        except BaseException:
            has_failed = True
            self._crew.close()
            self._flush()
            raise
        finally:
            try:  # an interrupt may come twice
                self._note_all(is_waiting=True)
                self._crew.close()
                if self._filled.aside and has_failed:  # nobody gets what was filled
                    self._adopter()(self._filled.aside)
            finally:
                self._committer.close()
                self._share.release_all()
            self._filled.drawn = self._crew.drawn
            self._filled.seconds = self._pace.cost_s
            self._report_progress()

    @property
    def generation(self) -> int:
        """The newest generation that the catalogue has seen."""
        return self._share.generation

    def _step(self) -> bool:
        """Does one thing; whether there is more to do."""
        self._note_all(is_waiting=False)
        if self._session.is_away:
            self._is_away = True
            if (waiting := waiting_bytes()) > AWAY_BYTES:
                self._stop(f"{size_text(waiting)} are waiting for a daemon that does not answer")
        elif self._is_away and not self._session.is_gone:
            self._share_again()
        if not self._is_stopped:
            self._feed()
        elif self._task.is_expanded:
            self._feed_alone()
        if self._crew.pending:
            self._take(self._crew.take())
            return True
        self._flush()
        if self._committer.in_flight:
            self._note_all(is_waiting=True)
            return True
        if self._is_stopped:
            return self._task.is_expanded and self._share.has_rest
        if not self._share.open:
            return False
        if not self._share.fresh:
            self._wait()
        return True

    def _share_again(self) -> None:
        """The daemon answers again: offers what was made meanwhile."""
        self._is_away = False
        aside, self._filled.aside = self._filled.aside, []
        for batch in aside:
            self._committer.submit(batch, self._share.generation)
        self._flush()

    # -- getting work

    def _feed(self) -> None:
        """Hands leased items to the crew; leases more when they run out."""
        while self._crew.has_room and not self._is_stopped:
            lapsed = []  # before they were begun
            while self._queue and not self._share.is_ours(self._queue[0]):
                lapsed.append(self._queue.popleft())
            if lapsed:
                self._share.reopen(lapsed)  # at once: it looks through all items
            if not self._queue and not self._lease():
                return
            count = min(self._pace.chunk(len(self._queue)), len(self._queue))
            self._crew.submit([self._queue.popleft() for _ in range(count)])

    def _feed_alone(self) -> None:
        """Sharing is over, but how many samples an item gives is known only by expanding it."""
        if not self._is_alone and (self._crew.pending or not self._collected.is_empty):
            return  # what was leased is committed first
        self._is_alone = True
        self._queue.extend(self._share.take_rest())
        while self._crew.has_room and self._queue:
            count = min(self._pace.chunk(len(self._queue)), len(self._queue))
            self._crew.submit([self._queue.popleft() for _ in range(count)])

    def _lease(self) -> bool:
        """Leases fresh items; whether any were granted."""
        want = self._pace.want(self._share.fresh, len(self._share.holders))
        granted = self._granted(want, self._share.take)
        if self._share.is_waited_for:
            self._share.is_waited_for = False
            self._flush()
        self._queue.extend(granted)
        self._fresh = self._share.fresh
        return bool(granted)

    def _wait(self) -> None:
        """Waits until others commit or give up what they hold; goes on without them if they stand still."""
        want = self._pace.want(1, len(self._share.holders))
        self._watcher.waiting(self._share.holders, self._share.open)
        granted = self._granted(want, partial(self._share.wait, wait_s=WAIT_S))
        self._queue.extend(granted)
        seen = (self._share.open, tuple((h.who, h.items, h.done) for h in self._share.holders))
        now = self._clock()
        if granted or self._still_since is None or self._still_since[0] != seen:
            self._still_since = (seen, now)
        elif now - self._still_since[1] > self._stalled_s:
            names = ", ".join(holder.who for holder in self._share.holders) or "nobody"
            self._stop(f"{names}: no progress for {self._stalled_s:.0f} s; this job preprocesses by itself")

    def _granted(self, want: int, ask: Callable[[int, float, int], list[int]]) -> list[int]:
        """What is granted of so many; sharing ends where there is no room for them."""
        granted = self._guarded(lambda: ask(want, *self._expected(want)))
        if self._share.reason:
            self._stop(self._share.reason, is_declined=True)
        return granted

    def _expected(self, want: int) -> tuple[float, int]:
        """Seconds of the wanted items, and bytes of them and all that is not committed yet."""
        coming = int((want + self._crew.pending) * self._pace.item_bytes)
        return want * self._pace.item_s, self._collected.nbytes + coming + FILE_BYTES

    def _guarded(self, ask: Callable[[], list[int]]) -> list[int]:
        """What is granted; a daemon that is gone or fails ends the sharing, never the job."""
        try:
            return ask()
        except LimitExceeded as error:
            if self._collected.is_empty and not self._committer.in_flight:
                self._stop(error.message)
            self._flush()
        except PrepcacheError as error:
            is_unreachable = isinstance(error, DaemonUnreachable)
            if is_unreachable and self._may_return():
                return []
            self._filled.is_cut_off |= is_unreachable
            self._stop(error.message)
        return []

    def _may_return(self) -> bool:
        """Whether the daemon is away, or was until a moment ago: the fill goes on, and shares later."""
        self._is_away |= self._session.is_away
        return self._is_away and (self._session.is_away or not self._session.is_gone)

    def _found_by_others(self, found: Array, useless: list[wire.ArtifactRef]) -> None:
        self._filled.waited.extend(found.tolist())
        self._lapses = 0 if len(found) else self._lapses
        self._drop(useless)

    # -- taking what is made

    def _take(self, part: Part) -> None:
        """One part of an item that was preprocessed."""
        if part.refusal is not None:
            raise self._task.refusal(part.index, part.refusal)
        if part.error is not None:
            raise self._task.failure(part)
        self._filled.notices.extend(part.notices)
        self._task.steady.settle()
        cut = self._unfinished.get(part.index)
        if part.is_last and cut is None:
            self._keep(part)
            return
        if cut is None:
            cut = self._unfinished[part.index] = Cut(self._task, part.index)
        self._named(part.index, lambda: cut.add(part))
        if part.is_last:
            del self._unfinished[part.index]
            self._pace.note(cut.cost_s, cut.nbytes)
            if self._is_refused(part):
                self._task.catalogue.add_local(cut.pieces)
            else:
                self._outgoing = cut.batch(self._share.lease_of(part.index), self._observed())
                self._hand_in()

    def _keep(self, part: Part) -> None:
        """A whole item."""
        index = part.index
        self._pace.note(part.cost_s, weight(part.samples[0]) if part.samples else 0)
        if self._is_refused(part):
            self._keep_here(part)
            return
        if len(part.samples) == 1 and part.samples[0] is None:
            self._filled.nothing.append(index)
        self._named(index, lambda: self._collected.add(part, self._share.lease_of(index)))
        if self._is_flush_due():
            self._flush()

    def _is_refused(self, part: Part) -> bool:
        """Whether an item's samples are not to be stored: they were made of bytes that its digest does not
        stand for, or of something that was not observed."""
        if changed := self._task.changed(part.index):
            self._filled.changed[part.index] = changed
        if part.unobserved:
            self._filled.unobserved[part.index] = part.unobserved
        is_refused = bool(changed or part.unobserved)
        if is_refused:
            self._share.settle((part.index,))
        return is_refused

    def _keep_here(self, part: Part) -> None:
        """Keeps in this job what is not stored, where it can't be made again on access."""
        if self._task.is_expanded:
            collected = Collected(self._task)
            self._named(part.index, lambda: collected.add(part, None))
            self._task.catalogue.add_local(collected.batch([]).spill(self._task.producer))

    def _is_flush_due(self) -> bool:
        collected = self._collected
        return (
            self._pace.is_commit_due(collected.nbytes, self._left)
            or len(collected.indices) >= COMMIT_ITEMS
            or collected.leases >= COMMIT_LEASES
        )

    @property
    def _left(self) -> int:
        """Items that this job may still have to make, as of its last lease."""
        return self._fresh + len(self._queue) + self._crew.pending

    def _named(self, index: int, add: Callable[[], None]) -> None:
        """Adds a sample; one that no column can hold is refused with its item's name."""
        try:
            add()
        except SampleError as error:
            raise self._task.refusal(index, error) from None

    # -- committing

    def _flush(self) -> None:
        """Commits what is collected, in the background; first what an interrupt has left outgoing."""
        self._hand_in()
        if not self._collected.is_empty:
            batch = self._collected.batch(self._observed())
            self._outgoing, self._collected = batch, Collected(self._task)
            self._hand_in()

    def _observed(self) -> list[dict[str, Any]]:
        """What the function was seen to read, and the generators that it drew from."""
        return with_draws(self._crew.observed(), self._crew.drawn)

    def _hand_in(self) -> None:
        """Has the outgoing batch committed. It stays that until others have it: whatever is done for it
        before, an interrupt may come (invariant 3). One that is handed in twice is found committed.
        """
        if self._outgoing is not None:
            self._note_all(is_waiting=True)  # invariant 4
        if (batch := self._outgoing) is None:
            return
        self._pace.uncommitted_s = 0.0
        changed = [] if self._is_alone else self._task.steady.changed(is_due=True, is_filling=True)
        if changed:
            self._stop(line(changed))
        if changed or self._is_alone:
            self._note(self._commits.keep(batch))
        else:
            self._committer.submit(batch, self._share.generation)
        self._outgoing = None

    def _note_all(self, *, is_waiting: bool) -> None:
        """Notes the outcomes that are there, or waits for all."""
        while outcomes := self._committer.outcomes(is_waiting=is_waiting):
            for outcome in outcomes:
                self._note(outcome)
            self._count_lapse(outcomes)

    def _count_lapse(self, outcomes: Sequence[Outcome]) -> None:
        """Of one batch, whose leases may have lapsed one by one."""
        self._lapses = self._lapses + 1 if all(outcome.is_lapsed for outcome in outcomes) else 0
        if self._lapses > MAX_LAPSES:
            self._stop("leases keep lapsing before their samples are committed")

    def _note(self, outcome: Outcome) -> None:
        """What became of a batch."""
        indices = outcome.batch.indices
        if outcome.batch.is_offered_again:
            self._note_offered(outcome)
            return
        if outcome.is_lapsed:
            self._share.reopen(indices)
            return
        self._filled.computed.extend(indices)
        if outcome.committed is not None:
            self._drop(self._share.note_commit(outcome.committed, outcome.batch.observed))
        else:
            self._task.catalogue.add_local(outcome.kept)
            self._put_aside(outcome)
        self._share.settle(indices, is_committed=outcome.committed is not None or outcome.is_left)
        if outcome.is_left and outcome.kept:
            self._filled.left.extend(indices)
            self._task.catalogue.note_waiting([outcome.batch])
        if outcome.reason and not (outcome.is_cut_off and self._may_return()):
            self._stop(outcome.reason, is_declined=outcome.is_declined)

    def _note_offered(self, outcome: Outcome) -> None:
        """What became of a batch that this job had kept, and that was offered to the daemon once more."""
        if outcome.committed is not None:
            self._drop(self._share.note_commit(outcome.committed, outcome.batch.observed))
        else:
            self._put_aside(outcome)

    def _put_aside(self, outcome: Outcome) -> None:
        self._filled.is_cut_off |= outcome.is_cut_off
        if outcome.aside is not None:
            self._filled.aside.append(outcome.aside)

    def _drop(self, useless: list[wire.ArtifactRef]) -> None:
        """Gives up holds on artifacts that nothing here needs."""
        if useless:
            self._guarded(lambda: self._session.drop_hold(useless) or [])

    def _stop(self, reason: str, *, is_declined: bool = False) -> None:
        """No more sharing: the rest is preprocessed on access."""
        if not self._is_stopped:
            self._is_stopped = True
            self._filled.reason, self._filled.is_declined = reason, is_declined
            self._share.reopen(self._queue)
            self._queue.clear()

    def _report_progress(self) -> None:
        done = len(self._filled.computed) + self._committer.items_in_flight + len(self._collected.indices)
        self._watcher.advance(done, len(self._filled.waited), self._pace, self._share.taken)
