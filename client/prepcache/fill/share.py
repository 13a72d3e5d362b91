"""A job's share of the missing items: which it may preprocess, which others do, which nobody has yet.

Invariants:
    1. Every item of the share is in one state: fresh (not asked for yet), held (another job has it),
       ours (this job makes it), handed in (being committed), or settled (there, refused, or given up).
    2. An item is preprocessed only while it is ours: under a lease. Exceptions: items that cost less than a
       request, and outages, in which each job takes what is fresh in a random order of its own, so that two
       mostly make different items until little is left. What was made is leased when it is committed.
    3. The generation never skips an artifact: it rises only with an answer that named all those between.
    4. A request names only as many items as the daemon may have to look at. What was asked for and not
       granted is held, and is asked for again only when nothing fresh is left.
    5. A lease is one item a worker before something has been measured, then `LEASE_S` of work that fits into
       one commit, and near the end so little that jobs which share the rest end together.

Locking: `_lock` guards the states; never held over a request.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prepcache.daemon.session import Session
from prepcache.errors import DaemonError, Declined, FutureGeneration
from prepcache.index.artifact_set import ArtifactSet
from prepcache.index.item_index import MISSING, Array, Catalogue
from prepcache.protocol import wire

LEASE_S = 1.5
"""Work in one lease: long beside a request (2 ms), short beside a fill."""
END_SHARE = 6
"""Of the work that seems left, a lease is at most so small a part: what others took since is not seen."""
LEAST_S = 0.05
"""Less work than this is not worth a request; jobs that share the rest end within so much of each other."""
CHUNK_S = 0.1
"""Work that one worker gets at once; at its end it replies."""
COMMIT_BYTES = 128 << 20
UNKNOWN_BYTES = 4 << 20
"""While the daemon has not told how large the cache is; 256 such files may wait (commit.py)."""
COMMIT_SHARE_OF_CACHE = 32
"""A small cache gets small artifacts: what is evicted, or declined, is one of so many."""
COMMIT_ITEMS, COMMIT_LEASES = 1 << 18, 128
"""At most so many in one commit."""
COMMIT_S = 4.0
COMMIT_SHARE = 0.02
"""Uncommitted work may be lost: at most COMMIT_S, or this share of all time so far if that is more."""
_MEMORY = 0.98
"""How much of its weight a measurement keeps with each later one."""
SETTLED, FRESH, HELD, OURS, HANDED_IN = range(5)
MAX_LOOKS = 32
"""Times in a row that a daemon says to look again, and there is nothing of what is missing."""
MIN_WINDOW = 256
"""Fewest items that a request names while there are as many: it passes over most of what others hold."""


@dataclass(slots=True)
class Pace:
    """What was measured; `cost_s`: seconds inside the function so far, over all workers."""

    slots: int = 1
    commit_bytes: int = COMMIT_BYTES
    cost_s: float = 0.0
    began_at: float = math.inf
    uncommitted_since: float = math.inf
    _cost: float = 0.0
    _nbytes: float = 0.0
    _count: float = 0.0

    def note(self, cost_s: float, nbytes: int) -> None:
        self.cost_s += cost_s
        # By the clock: beside a cheap function, most of the time goes into keeping what it gives.
        self.uncommitted_since = min(self.uncommitted_since, time.monotonic() - cost_s)
        self.began_at = min(self.began_at, self.uncommitted_since)
        self._cost = _MEMORY * self._cost + cost_s
        self._nbytes = _MEMORY * self._nbytes + nbytes
        self._count = _MEMORY * self._count + 1

    @property
    def item_s(self) -> float:
        return self._cost / self._count if self._count else 0.0

    @property
    def item_bytes(self) -> float:
        return self._nbytes / self._count if self._count else 0.0

    def want(self, fresh: int, others: int) -> int:
        """How many items to lease, of `fresh` that nobody is known to have, beside so many other jobs."""
        if not self._count:
            return self.slots
        item_s = max(self.item_s, 1e-6)
        left_s = fresh * item_s / (self.slots * (others + 1))
        span_s = max(LEAST_S, min(LEASE_S, left_s / END_SHARE))
        most = min(wire.MAX_ITEMS, int(self.commit_bytes / max(1.0, self.item_bytes)))
        return max(self.slots, min(most, int(span_s * self.slots / item_s)))

    def chunk(self, queued: int) -> int:
        if not self._count:
            return 1
        fair = queued if self.slots == 1 else -(-queued // (2 * self.slots))
        return max(1, min(fair, int(CHUNK_S / max(self.item_s, 1e-6))))

    def is_commit_due(self, nbytes: int) -> bool:
        now = time.monotonic()
        is_old = now - self.uncommitted_since > max(COMMIT_S, COMMIT_SHARE * (now - self.began_at))
        return is_old or nbytes >= self.commit_bytes


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease of this job; `left`: its items that are not settled."""

    lease: wire.Lease
    left: set[int] = field(default_factory=set)
    is_dead: bool = False


class Share:
    """What one job asks for and gets, of the distinct items `todo`.

    Attributes:
        holders: the jobs that have items which were asked for last.
        is_waited_for: others wait for what this job has made.
        reason: why nothing is granted any more, or "".
    """

    def __init__(
        self,
        artifacts: ArtifactSet,
        catalogue: Catalogue,
        todo: Array,
        pace: Pace,
        on_found: Callable[[list[int]], None],
    ) -> None:
        self.pace = pace
        self.holders: tuple[wire.Holder, ...] = ()
        self.is_waited_for = False
        self.reason = ""
        self._artifacts = artifacts
        self._session = artifacts.session
        self._catalogue = catalogue
        self._on_found = on_found
        self._lock = threading.RLock()
        self._state = np.zeros(len(catalogue.distinct), "u1")
        self._state[todo] = FRESH
        self._leases: dict[int, HeldLease] = {}
        self._was_away = False  # when items were taken since the last answer
        self._order: Array | None = None
        self._asked_as: str | None = None
        self._looks = 0

    @property
    def fresh(self) -> int:
        return int(np.count_nonzero(self._state == FRESH))

    @property
    def open(self) -> int:
        return int(np.count_nonzero((self._state == FRESH) | (self._state == HELD)))

    def lease_of(self, index: int) -> HeldLease | None:
        held = self._leases.get(index)
        return None if held is None or held.is_dead else held

    def is_ours(self, index: int) -> bool:
        if (held := self._leases.get(index)) is None:
            return self.is_taken(index) and self._session.is_away
        return not held.is_dead

    def is_taken(self, index: int) -> bool:
        return bool(self._state[index] == OURS)

    def suit_cache(self) -> None:
        """Commits what fits into the cache: how large that is, a daemon that starts has not told yet."""
        budget = self._artifacts.budget_bytes()
        self.pace.commit_bytes = min(COMMIT_BYTES, budget // COMMIT_SHARE_OF_CACHE) or UNKNOWN_BYTES

    def mark(self, indices: Sequence[int], state: int) -> None:
        self._state[np.asarray(indices)] = state

    def want(self, indices: Sequence[int]) -> None:
        at = np.asarray(indices)
        self._state[at[self._state[at] == SETTLED]] = FRESH

    def take(self, coming: int = 0, among: Array | None = None) -> list[int]:
        """Leases some fresh items, in order; none where nothing fresh is left or, with `reason`, where the
        cache has no room.

        Args:
            coming: bytes that are not committed yet: there must be room for them, too.
            among: only these, which a thread of the job asks for.
        """
        while True:
            generation = self._artifacts.generation
            self._settle_found(among)  # a beat may have looked
            fresh = self._in_state(FRESH, among) if among is not None else self._fresh_in_order()
            # What is left of a batch says nothing of what is left to do.
            left = len(fresh) if among is None else int((self._catalogue.places.artifact == MISSING).sum())
            want = self.pace.want(left, len(self.holders))
            if self._session.is_away:
                return self._take_unleased(fresh, want)
            window = fresh[: min(wire.MAX_ITEMS, max(MIN_WINDOW, 8 * want))]
            if not len(window):
                return []
            granted = self._ask(window, want, coming, 0.0, generation)
            if self.reason:
                return []
            if granted is not None:
                last = len(window) if len(granted) < want else np.isin(window, granted).nonzero()[0][-1]
                passed = window[:last]  # by place: a batch's items come in the order of the batch
                with self._lock:
                    self._state[passed[self._state[passed] == FRESH]] = HELD
            if granted:
                return granted

    def wait(self, wait_s: float, coming: int = 0, among: Array | None = None) -> list[int]:
        """As `take`, of what others hold: waits until some of it is free or made, at most `wait_s`."""
        want = self.pace.want(1, len(self.holders))
        if self._session.is_away:
            return self._take_unleased(self._in_state(HELD, among), want)
        generation = self._artifacts.generation
        self._settle_found(among)
        held = self._in_state(HELD, among)[: wire.MAX_ITEMS]
        if not len(held):
            return []
        granted = self._ask(held, want, coming, wait_s, generation) or []
        if granted and not self.holders:  # the job that had them has ended, and none has the others
            with self._lock:
                self._state[held[self._state[held] == HELD]] = FRESH
        return granted

    def _fresh_in_order(self) -> Array:
        """The fresh items; of machines that share a bucket without a lead, each has an order of its own."""
        if not self._session.order:
            return self._in_state(FRESH, None)
        if self._order is None:
            heads = self._catalogue.distinct.digests[:, :8].copy().view("u8").ravel()
            self._order = np.argsort(heads * np.uint64(self._session.order))
        fresh: Array = self._order[self._state[self._order] == FRESH]
        return fresh

    def _in_state(self, state: int, among: Array | None) -> Array:
        return np.flatnonzero(self._state == state) if among is None else among[self._state[among] == state]

    def _ask(self, window: Array, want: int, coming: int, wait_s: float, generation: int) -> list[int] | None:
        """One request; None if the answer was to look again, which has been done then."""
        self.reason = ""
        try:
            answer = self._artifacts.lease(
                self._artifacts.recipe.digest, generation, self._catalogue.distinct.digests[window],
                want=want, cost_s=want * self.pace.item_s, nbytes=int(want * self.pace.item_bytes) + coming,
                wait_s=wait_s, left=self.open,
            )  # fmt: skip
        except FutureGeneration:
            if generation == 0:
                raise
            self._artifacts.generation = 0  # another root, or a rebuilt index
            return None
        except Declined as error:  # the recipe itself
            self.reason = error.message
            return []
        if answer.look_again is not None:
            before = self.open
            self._settle_found()
            self._looks = self._looks + 1 if self.open == before else 0
            if self._looks > MAX_LOOKS:
                raise DaemonError("the daemon keeps announcing samples that it does not have")
            return None
        self._looks = 0
        self.holders = tuple(answer.held)
        # The daemon knows of no lease on what was made in an outage, or before it was restarted: that is
        # committed before others make it.
        known, self._asked_as = self._asked_as, self._session.header
        self.is_waited_for |= answer.is_waited_for or self._was_away or known not in (None, self._asked_as)
        self._was_away = False
        if answer.is_declined:
            self.reason = answer.reason or "the cache has no room"
        if answer.lease is None:
            return []
        held = HeldLease(answer.lease)
        granted: list[int] = window[np.asarray(answer.granted, "i8")].tolist()
        held.left.update(granted)
        with self._lock:
            self._state[granted] = OURS
            self._leases.update(dict.fromkeys(granted, held))
        return granted

    def _take_unleased(self, window: Array, want: int) -> list[int]:
        granted: list[int] = np.random.default_rng().permutation(window)[:want].tolist()
        with self._lock:
            self._state[granted] = OURS
        self._was_away = True
        return granted

    def _settle_found(self, among: Array | None = None) -> None:
        """Settles what is there by now, of these items or of all."""
        at: Any = slice(None) if among is None else among
        with self._lock:
            is_there, state = self._catalogue.places.artifact[at] != MISSING, self._state[at]
            found = np.flatnonzero(is_there & ((state == FRESH) | (state == HELD)))
            found = found if among is None else among[found]
            self._state[found] = SETTLED
        if len(found):
            self._on_found(found.tolist())

    def settle(self, indices: Iterable[int]) -> None:
        """Settles items. A lease is given back with its last one."""
        with self._lock:
            for index in indices:
                self._state[index] = SETTLED
                held = self._leases.pop(index, None)
                if held is None:
                    continue
                held.left.discard(index)
                if not (held.left or held.is_dead):
                    forsake(self._session, [held])

    def reopen(self, indices: Iterable[int]) -> None:
        """These are to be asked for again: their lease lapsed, and others may have made them."""
        with self._lock:
            self.settle(indices := list(indices))
            self._state[indices] = FRESH

    def take_rest(self) -> list[int]:
        rest: list[int] = np.flatnonzero((self._state == FRESH) | (self._state == HELD)).tolist()
        self.settle(rest)
        return rest

    def release_all(self) -> None:
        """Gives back all that is still leased, but for what is being committed."""
        self.settle([index for index in list(self._leases) if self._state[index] != HANDED_IN])


def forsake(session: Session, leases: Iterable[HeldLease]) -> None:
    """Gives leases back with the next request or beat. It takes no time, and may be called with a lock."""
    for held in leases:
        held.is_dead = True
        session.heartbeat.note_lost(held.lease.id)
