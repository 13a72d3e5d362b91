"""The fill: preprocesses what is missing, together with every other job that wants the same.

Invariants:
    1. An item is preprocessed under a live lease; over jobs whose leases do not lapse, each item once.
    2. Whatever the daemon does (refuses, declines, dies), the fill ends, and raises only what the
       preprocessing function or its samples give cause for, or an interrupt.
    3. However it ends, what was preprocessed is committed, or kept in this job, and leases are given back.
       What was made while something that counts in the recipe changed is kept in this job.
    4. At most one batch is in memory, and one is waited for before the next but one is committed.
    5. While the daemon is away the fill goes on without leases.
    6. Where items expand, a preparation ends with a view of all samples, or raises.

NOTE [ When to commit ]
    At 128 MB, or a 32nd of a small cache; when the oldest sample has waited for 4 s, and for 2 % of the
    fill's time so far; when somebody waits for what this job has; when nothing is left to lease; at the end.
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections import deque
from collections.abc import Callable

import numpy as np

from prepcache.errors import DaemonUnreachable, LimitExceeded, PrepcacheError, PreprocessError, SampleError
from prepcache.fill.call import Part
from prepcache.fill.commit import is_full, waiting_bytes
from prepcache.fill.on_access import OnAccess
from prepcache.fill.pending import Collected
from prepcache.fill.recipe_guard import line
from prepcache.fill.share import COMMIT_BYTES, COMMIT_ITEMS, COMMIT_LEASES, Pace, Share
from prepcache.fill.workers import workers_of
from prepcache.index.item_index import Array, View
from prepcache.keys.randomness import Guard, describe
from prepcache.protocol.units import count_text, size_text
from prepcache.report import WITHOUT, ended_early

WAIT_S = 1.0
"""One long poll; between two of them progress is shown."""
FILE_BYTES = 16 << 10
"""What a file takes beyond its samples: header, borders, blocks."""
MAX_FILLS = 3
"""How often what is missing of a data set that expands is made and stored; then as often for this job."""


def prepare(here: OnAccess, positions: range | None) -> View | None:
    """Fills up what is missing, or only what is at these positions; where items expand, a view of all.

    Raises:
        PreprocessError, SampleError: the message names the item; what was done before it stays done.
    """
    by, catalogue = here.task.by, here.task.catalogue
    here.run()  # into files of this job, where the fill finds it
    if by.is_in_executor:
        raise RuntimeError(
            f"{by.name}: this thread belongs to executor=, which preprocesses the items: it would wait "
            "for itself forever. Prepare the data set in another thread, or pass another executor"
        )
    with by.artifacts.filling:
        here.committer.has_dropped = False
        if by.is_expanded and positions is None:
            return _whole_view(here)
        missing = catalogue.missing
        if positions is not None:
            wanted = catalogue.distinct.inverse[positions.start :: positions.step]
            missing = np.intersect1d(missing, wanted)
        # Where nothing can be kept, each sample is made when it is asked for.
        if len(missing) and (by.is_expanded or by.artifacts.mode.is_writing):
            Fill(here, missing).run()
        return None


def _whole_view(here: OnAccess) -> View:
    """A view of all samples; what is purged meanwhile is made again."""
    by, catalogue = here.task.by, here.task.catalogue
    for fills in range(2 * MAX_FILLS + 1):
        view = View(catalogue)
        if view.is_whole:
            count = len(catalogue.distinct.inverse)
            if count and not len(view) and not by.is_stream:
                which = count_text(count, "item", "items")
                by.say(f"{by.name} yielded no sample for any of {which}: is a yield missing?", is_wrong=True)
            return view
        if fills == 2 * MAX_FILLS or here.committer.has_dropped:
            break
        Fill(here, catalogue.missing, is_stored=fills < MAX_FILLS).run()
    where = f"the samples fit neither into the cache nor into {tempfile.gettempdir()} or /var/tmp"
    raise OSError(errno.ENOSPC, f"{by.name}: {where}: free some space, or set TMPDIR")


class Fill:
    """One run over the missing items `todo` of one data set."""

    def __init__(self, here: OnAccess, todo: Array, *, is_stored: bool = True) -> None:
        task, by = here.task, here.task.by
        self._task, self._by, self._todo, self._is_stored = task, by, todo, is_stored
        self._artifacts = by.artifacts
        self._session = self._artifacts.session
        self._committer = here.committer
        executor = by.executor if os.getpid() == by.opened_in else None  # no thread feeds it in a child
        self._workers = workers_of(executor, by.num_workers, by.job, task.originals.item)
        self._pace = Pace(self._workers.slots)
        self._waited: list[int] = []
        self._share = Share(self._artifacts, task.catalogue, todo, self._pace, self._waited.extend)
        self._queue: deque[int] = deque()
        self._collected, self._kept = Collected(task), Collected(task)
        self._unfinished: dict[int, Collected] = {}
        self._is_stopped = self._was_away = False
        self._computed: list[int] = []
        self._changed: dict[int, list[str]] = {}
        self._unobserved: dict[int, str] = {}
        self._notices: list[tuple[str, str]] = []
        self._nothing: list[int] = []
        total = len(task.catalogue.distinct)
        self._progress = by.shown(total, total - len(todo))

    def run(self) -> None:
        task, by, committer = self._task, self._by, self._committer
        said, was_full = self._artifacts.reason, self._artifacts.is_full
        committer.is_filling = True
        try:
            task.originals.compare(self._todo)
            self._try_one()
            with by.job.guard.filling():
                self._fill()
        except (KeyboardInterrupt, PreprocessError, SampleError) as error:
            self._progress.close()
            total = len(task.catalogue.distinct)
            by.say_of_it(ended_early(error, task.catalogue.kept, total), is_wrong=True)
            raise
        finally:
            self._progress.close()
            reason, is_declined = committer.reason, committer.is_declined
            committer.reason, committer.is_declined, committer.is_filling = "", False, False
        self._note_end(reason, is_declined=is_declined)
        self._say_end("" if reason == said or (was_full and is_declined) else reason)  # its numbers differ
        by.refuse_draws(self._workers.drawn)

    def _try_one(self) -> None:
        """Makes a sample of a wrapped dataset before any is stored: one that draws is refused."""
        job, index = self._by.job, int(self._todo[0])
        if self._by.is_wrapped and not self._artifacts.has_mapped:
            with Guard(job.guard.drawn) as watched:
                next(iter(job.parts(index, self._task.originals.item(index))), None)
            self._by.refuse_draws(watched.drawn)

    def _fill(self) -> None:
        if not self._artifacts.mode.is_writing:
            self._stop(f"PREPCACHE={self._artifacts.mode.value}: no daemon is asked")
        elif not self._is_stored:
            self._stop("they are removed from the cache while it is filled")
        else:
            self._share.suit_cache()
        try:
            while self._step():
                self._report_progress()
        finally:
            try:  # an interrupt may come twice
                self._workers.close()
                self._flush_kept()
                self._flush()
                self._committer.wait()
            finally:
                self._share.release_all()
        self._report_progress()

    def _note_end(self, reason: str, *, is_declined: bool) -> None:
        task, artifacts = self._task, self._artifacts
        if artifacts.mode.is_writing:
            artifacts.reason = reason
        artifacts.is_known = artifacts.is_known and (not reason or is_declined)
        computed = np.array([*{*self._computed}.difference(self._waited)], "i8")
        found = task.tally.note_fill(computed, self._waited, self._pace.cost_s)
        artifacts.session.heartbeat.note_found(*found)
        self._by.keeps = self._by.is_lazy or bool(reason and not is_declined)

    def _say_end(self, reason: str) -> None:
        """Says what there is to say. `reason`: why it stored no more, where that was not said before."""
        task, by, drawn = self._task, self._by, self._workers.drawn
        task.say_changed(self._changed)
        task.say_notices(self._notices)
        for index, why in list(self._unobserved.items())[:1]:
            task.say_unobserved(index, why)
        for index in self._nothing[:1]:
            item = task.originals.item(index)
            by.say(f"{by.name} returned None for {item!r:.200}: is a return missing?", "nothing")
        if drawn:
            by.say(describe(by.name, drawn), "drawn")
        if reason and self._artifacts.mode.is_writing:
            why = WITHOUT if reason == self._artifacts.client.budget.warned else reason
            by.say_of_it(f"new samples are not stored: {why}", "left")

    def _step(self) -> bool:
        if self._by.is_expanded and self._committer.has_dropped:
            return False  # all samples are needed
        if self._committer.reason:
            self._stop(self._committer.reason)
        self._was_away |= self._session.is_away
        self._feed()
        if self._workers.pending:
            self._take(self._workers.take())
            return True
        if self._is_stopped or not self._session.is_away:  # in an outage each file would take a descriptor
            self._flush()
        self._committer.wait()  # leases may lapse, and items be wanted once more
        if not self._share.open:
            return False
        if self._is_stopped:
            return self._by.is_expanded
        if not self._share.fresh:
            self._wait()
        return True

    # -- getting work

    def _feed(self) -> None:
        if self._is_stopped and self._by.is_expanded:
            # How many samples an item gives is known only by expanding it: this job makes all of them.
            self._queue.extend(self._share.take_rest())
        while self._workers.has_room:
            lapsed = []  # before they were begun
            while self._queue and not (self._is_stopped or self._share.is_ours(self._queue[0])):
                lapsed.append(self._queue.popleft())
            if lapsed:
                self._share.reopen(lapsed)  # at once: it looks through all items
            if not self._queue and (self._is_stopped or not self._ask(self._share.take)):
                return
            count = min(self._pace.chunk(len(self._queue)), len(self._queue))
            self._workers.submit([self._queue.popleft() for _ in range(count)])

    def _wait(self) -> None:
        """Waits until others commit or give up what they hold, or the daemon ends their leases."""
        holders = self._share.holders
        self._progress.waiting(holders, self._share.open)
        if self._ask(lambda coming: self._share.wait(WAIT_S, coming)) and holders:
            text = f"{holders[0].who} began items and did not store them: this job preprocesses them"
            self._by.say_of_it(text, "taken")

    def _ask(self, ask: Callable[[int], list[int]]) -> bool:
        """Queues what is granted; whether anything is. Sharing ends where there is no room, or no daemon."""
        coming = int(self._workers.pending * self._pace.item_bytes)
        granted: list[int] = []
        try:
            granted = ask(self._collected.nbytes + coming + FILE_BYTES)
        except LimitExceeded as error:  # commits make room
            may_help = bool(self._collected.indices) or not self._committer.is_idle
            self._flush()
            self._committer.wait()
            if not (may_help and self._committer.is_idle):
                self._stop(error.message)
        except PrepcacheError as error:
            self._was_away |= self._session.is_away
            is_away = self._session.is_away or (self._was_away and not self._session.is_gone)
            if not (isinstance(error, DaemonUnreachable) and is_away):  # else it goes on, and shares later
                self._stop(error.message)
        else:
            if self._share.reason:
                self._stop(self._share.reason, is_declined=True)
        self._queue.extend(granted)
        if self._share.is_waited_for:
            self._share.is_waited_for = False
            self._flush()
        return bool(self._queue)

    # -- taking what is made

    def _take(self, parts: list[Part]) -> None:
        for part in parts:
            if part.error is not None:
                raise self._task.failure(part)
            self._notices.extend(part.notices)
            try:
                if part.is_last and part.index not in self._unfinished:
                    self._take_whole(part)
                else:
                    self._take_cut(part)
            except SampleError as error:  # no column can hold it
                raise self._task.refusal(part.index, error) from None
            except OSError as error:  # no file takes the parts of one item
                self._committer.drop(1, error)
                return
        self._by.job.guard.note_call()
        collected = self._collected
        is_large = len(collected.indices) >= COMMIT_ITEMS or len(collected.leases) >= COMMIT_LEASES
        if is_large or self._pace.is_commit_due(collected.nbytes):
            self._flush()
        if self._kept.nbytes >= COMMIT_BYTES:  # few files, as each takes a descriptor
            self._flush_kept()

    def _take_cut(self, part: Part) -> None:
        index = part.index
        cut = self._unfinished.setdefault(index, Collected(self._task))
        cut.add(part, self._share.lease_of(index))
        if not part.is_last:
            return
        del self._unfinished[index]
        self._note_made(part, cut.cost_s, cut.nbytes)
        if self._share.is_taken(index):
            self._hand_in(cut)
        else:
            self._committer.keep(cut)

    def _take_whole(self, part: Part) -> None:
        self._note_made(part, part.cost_s, part.nbytes)
        if len(part.samples) == 1 and part.samples[0] is None:
            self._nothing.append(part.index)
        if self._share.is_taken(part.index):
            self._collected.add(part, self._share.lease_of(part.index))
        elif self._by.is_expanded:  # it can't be made again on access
            self._kept.add(part, None)

    def _note_made(self, part: Part, cost_s: float, nbytes: int) -> None:
        """Gives an item up that is not to be stored: it changed, or what it read could not be observed."""
        self._pace.note(cost_s, nbytes)
        self._computed.append(part.index)
        if changed := self._task.originals.changed(part.index):
            self._changed[part.index] = changed
        if part.unobserved:
            self._unobserved[part.index] = part.unobserved
        if changed or part.unobserved:
            self._share.settle((part.index,))

    # -- committing

    def _flush(self) -> None:
        self._pace.uncommitted_since = math.inf
        if (collected := self._collected).indices:
            self._hand_in(collected)
            self._collected = Collected(self._task)  # not before: an interrupt may come
            self._share.suit_cache()
            self._committer.wait(1)  # invariant 4

    def _flush_kept(self) -> None:
        if self._kept.indices:
            self._committer.keep(self._kept)
            self._kept = Collected(self._task)

    def _hand_in(self, collected: Collected) -> None:
        if changed := self._by.job.guard.check():
            self._stop(line(changed))
            self._committer.keep(collected)
            self._share.settle(collected.indices)
            return
        self._committer.submit(collected, self._share, self._workers.observed())
        if is_full():
            self._stop(f"{size_text(waiting_bytes())} are waiting for a daemon that does not answer")

    def _stop(self, reason: str, *, is_declined: bool = False) -> None:
        """Nothing more is leased. What was made is committed."""
        self._committer.decline(reason, is_declined=is_declined)
        if not self._is_stopped:
            self._is_stopped = True
            self._share.reopen(self._queue)
            self._queue.clear()

    def _report_progress(self) -> None:
        self._progress.advance(len(self._computed), len(self._waited), self._pace.item_bytes)
