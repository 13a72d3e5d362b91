"""A job's share of the missing items: which it may preprocess, which others do, which nobody has yet.

Invariants:
    1. Every item of the share is in one state: fresh (not asked for yet), held (another job has it),
       ours (this job makes it), handed in (being committed), or settled (there, refused, or given up).
    2. An item is preprocessed only while it is ours: under a lease or, while the daemon is away, under a
       lock, which is kept until what was made is committed. Exceptions: items that cost less than a request,
       the lease during which an outage begins or ends, and an outage in which nothing more may be waited.
    3. The generation never skips an artifact: it rises only with an answer that named all those between.
    4. A request names only as many items as the daemon may have to look at. What was asked for and not
       granted is held, and is asked for again only when nothing fresh is left.

NOTE [ Outages ]
    While the daemon does not answer, a user's jobs share out items by file locks. Digests are divided into
    `BUCKETS`, and for each a byte of a file can be locked (open file description locks, fcntl(2)): who has
    it makes the items of that bucket. The daemon does not know of that: when it answers again, they are left
    to that job for `LEFT_S`, in which it commits them. Where the filesystem has no such locks, everything
    may be taken.

Locking: `_lock` guards the states; never held over a request.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from prepcache import forks
from prepcache.errors import DaemonError, Declined, FutureGeneration
from prepcache.fill.pacing import Pace
from prepcache.index.item_index import MISSING, Array, Catalogue
from prepcache.protocol import wire
from prepcache.protocol.places import cache_folder

if TYPE_CHECKING:
    from prepcache.daemon.session import Session
    from prepcache.index.artifact_set import ArtifactSet

SETTLED, FRESH, HELD, OURS, HANDED_IN = range(5)
MAX_LOOKS = 32
"""Times in a row that a daemon says to look again, and there is nothing of what is missing."""
MIN_WINDOW = 256
"""Fewest items that a request names while there are as many: it passes over most of what others hold."""
BUCKETS = 1 << 12
"""Most locks of one job: for each, the kernel searches all locks of the file."""
LOCKED_S = 0.05
"""What others have locked is looked at again after so long."""
LEFT_S = 2.0
"""After an outage, what others have locked is left to them for so long: the daemon does not know of it."""
_FLOCK = struct.Struct("hhqqi0q")


class BucketLocks:
    """Locks on items of one recipe, by buckets: they end when nothing refers to this, or with the process."""

    def __init__(self, recipe: str) -> None:
        self._path = cache_folder(os.environ) / "locks" / recipe[:2]
        self._base = int(recipe[2:14], 16) * BUCKETS
        self._fd = -1
        self.is_used = False
        forks.note(self)

    def take(self, bucket: int) -> bool:
        """Locks a bucket; False where another `BucketLocks` has it, also one of this process."""
        self.is_used = True
        return self._ask(fcntl.F_OFD_SETLK, bucket, 1, os.O_CREAT) is not None

    def is_taken(self, bucket: int = 0, count: int = BUCKETS) -> bool:
        """Whether another has one of these buckets locked."""
        return self._ask(fcntl.F_OFD_GETLK, bucket, count) == fcntl.F_WRLCK

    def _ask(self, command: int, bucket: int, count: int, flags: int = 0) -> int | None:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._base + bucket, count, 0)
        try:
            if self._fd < 0:
                if flags:
                    self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
            return int(_FLOCK.unpack(fcntl.fcntl(self._fd, command, asked))[0])
        except OSError as error:
            return None if isinstance(error, BlockingIOError) else fcntl.F_UNLCK

    def after_fork(self) -> None:
        """In a child: the locks are its parent's."""
        fd, self._fd, self.is_used = self._fd, -1, False
        if fd >= 0:
            os.close(fd)

    __del__ = after_fork


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease of this job.

    Args:
        generation: the newest of the recipe when it was granted: what others made of its items is newer.
        left: its items that are not settled.
        is_dead: it lapsed or was given back.
        is_whole: all its settled items were committed, so that the daemon has ended it itself.
    """

    lease: wire.Lease
    generation: int
    left: set[int] = field(default_factory=set)
    is_dead: bool = False
    is_whole: bool = True


class Share:
    """What one job asks for and gets, of the distinct items `todo`.

    Args:
        on_found: called with items that other jobs have made.

    Attributes:
        holders: the jobs that have items which were asked for last.
        is_waited_for: others wait for what this job has made.
        reason: why nothing is granted any more, or "".
        taken: how many items other jobs had at the last answer: made and not committed yet, or to be made.
        locks: under which this job makes items in an outage.
    """

    def __init__(
        self,
        artifacts: ArtifactSet,
        catalogue: Catalogue,
        todo: Array,
        pace: Pace,
        on_found: Callable[[Array], None],
    ) -> None:
        self.pace = pace
        self.holders: tuple[wire.Holder, ...] = ()
        self.is_waited_for = False
        self.reason = ""
        self.taken = 0
        self.locks = BucketLocks(artifacts.recipe.digest)
        self._artifacts = artifacts
        self._session = artifacts.sharing
        self._catalogue = catalogue
        self._on_found = on_found
        self._lock = threading.RLock()
        self._state = np.zeros(len(catalogue.distinct), "u1")
        self._state[todo] = FRESH
        self._leases: dict[int, HeldLease] = {}
        self._locked: set[int] = set()
        """Items that were taken in an outage, and are not settled."""
        self._left_until = 0.0
        """When what others have locked is asked for all the same (monotonic seconds); 0 where none is."""
        self._order: Array | None = None
        self._asked_as: str | None = None
        self._looks = 0

    @property
    def fresh(self) -> int:
        return int(np.count_nonzero(self._state == FRESH))

    @property
    def open(self) -> int:
        """How many items this job has not, and wants: fresh ones and those that others have."""
        return int(np.count_nonzero((self._state == FRESH) | (self._state == HELD)))

    def lease_of(self, index: int) -> HeldLease | None:
        held = self._leases.get(index)
        return None if held is None or held.is_dead else held

    def is_ours(self, index: int) -> bool:
        """Whether this job may preprocess an item now."""
        return self.lease_of(index) is not None or (index in self._locked and self._session.is_away)

    def is_taken(self, index: int) -> bool:
        """Whether this job has an item, and it is not settled."""
        return bool(self._state[index] == OURS)

    def take_cheap(self, indices: Sequence[int]) -> None:
        """Takes items that are leased when they are committed: asking first costs more than making them."""
        self._state[np.asarray(indices)] = OURS

    def hand_in(self, indices: Sequence[int]) -> None:
        self._state[np.asarray(indices)] = HANDED_IN

    def want(self, indices: Sequence[int]) -> None:
        at = np.asarray(indices)
        self._state[at[self._state[at] == SETTLED]] = FRESH

    def take(self, coming: int = 0, among: Array | None = None) -> list[int]:
        """Leases some fresh items, passing over what others hold and what has been made meanwhile.

        Args:
            coming: bytes that are not committed yet: there must be room for them, too.
            among: only these, which a thread of the job asks for.

        Returns:
            Items, in order; none where nothing fresh is left or, with `reason`, where the cache has no room.
        """
        while True:
            generation = self._artifacts.generation
            self._settle_found(among)  # a beat may have looked
            fresh = self._in_state(FRESH, among) if among is not None else self._fresh_in_order()
            want = self.pace.want(len(fresh), len(self.holders))
            if self._session.is_away:
                return self._take_locked(fresh, want)
            window = fresh[: min(wire.MAX_ITEMS, max(MIN_WINDOW, 8 * want))]
            if not len(window):
                return []
            if not len(window := self._unlocked(window)):
                continue
            granted = self._ask(window, want, coming, 0.0, generation)
            if self.reason:
                return []
            if granted is not None:
                last = len(window) if len(granted) < want else np.isin(window, granted).nonzero()[0][-1]
                passed = window[:last]  # by place: a batch's items come in the order of the batch
                with self._lock:
                    self._state[passed[self._state[passed] == FRESH]] = HELD
                self._count_taken()
            if granted:
                return granted

    def wait(self, wait_s: float, coming: int = 0, among: Array | None = None) -> list[int]:
        """As `take`, of what others hold: waits until some of it is free or made, at most `wait_s`."""
        want = self.pace.want(1, len(self.holders))
        if self._session.is_away:
            has_waited = self._session.wait_for_return(wait_s)
            return [] if has_waited else self._take_locked(self._in_state(HELD, among), want, is_forced=True)
        generation = self._artifacts.generation
        self._settle_found(among)
        held = self._in_state(HELD, among)[: wire.MAX_ITEMS]
        if not len(held):
            return []
        if not len(held := self._unlocked(held)):
            time.sleep(min(wait_s, LOCKED_S))
            return []
        granted = self._ask(held, want, coming, wait_s, generation) or []
        if granted and not self.holders:  # the job that had them has ended, and none has the others
            with self._lock:
                self._state[held[self._state[held] == HELD]] = FRESH
        self._count_taken()
        return granted

    def _fresh_in_order(self) -> Array:
        """The fresh items; where machines share a bucket without a lead, in this machine's own random order:
        what two of them make at the same time is then mostly different, until little is left."""
        if not self._session.order:
            return self._in_state(FRESH, None)
        if self._order is None:
            heads = self._catalogue.distinct.digests[:, :8].copy().view("u8").ravel()
            self._order = np.argsort(heads * np.uint64(self._session.order))
        fresh: Array = self._order[self._state[self._order] == FRESH]
        return fresh

    def _in_state(self, state: int, among: Array | None) -> Array:
        return np.flatnonzero(self._state == state) if among is None else among[self._state[among] == state]

    def _count_taken(self) -> None:
        self.taken = int(np.count_nonzero(self._state == HELD))  # once a request: there may be a million

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
                raise DaemonError("the daemon keeps announcing artifacts that do not exist")
            return None
        self._looks = 0
        self.holders = tuple(answer.held)
        # A restarted daemon knows of no lease: what was made under one is committed before others make it.
        known, self._asked_as = self._asked_as, self._session.header
        self.is_waited_for |= answer.is_waited_for or known not in (None, self._asked_as)
        self.is_waited_for |= bool(self._locked)
        if answer.is_declined:
            self.reason = answer.reason or "the cache has no room"
        if answer.lease is None:
            return []
        held = HeldLease(answer.lease, generation)
        granted: list[int] = window[np.asarray(answer.granted, "i8")].tolist()
        held.left.update(granted)
        with self._lock:
            self._state[granted] = OURS
            self._leases.update(dict.fromkeys(granted, held))
        return granted

    def _unlocked(self, window: Array) -> Array:
        """What of these may be asked for: not what others have locked, shortly after an outage."""
        if self.locks.is_used and not self._locked:  # batches that wait keep those that they were made under
            self.locks = BucketLocks(self._artifacts.recipe.digest)
        if not self.locks.is_taken():
            self._left_until = 0.0
            return window
        self._left_until = self._left_until or time.monotonic() + LEFT_S
        if time.monotonic() > self._left_until:
            return window
        buckets = self._buckets(window)
        taken = [bucket for bucket in np.unique(buckets).tolist() if self.locks.is_taken(bucket, 1)]
        is_locked = np.isin(buckets, taken)
        self._state[window[is_locked]] = HELD
        free: Array = window[~is_locked]
        return free

    def _take_locked(self, window: Array, want: int, *, is_forced: bool = False) -> list[int]:
        """Takes items of buckets that this job gets: no daemon answers. By force, also of others' buckets."""
        self._left_until = 0.0
        if not self.locks.is_used:  # the outage has just begun
            for bucket in np.unique(self._buckets(np.flatnonzero(self._state >= OURS))).tolist():
                self.locks.take(bucket)
        order = np.random.default_rng().permutation(BUCKETS)[buckets := self._buckets(window)]
        granted: list[int] = []
        got: dict[int, bool] = {}
        for at in np.argsort(order, kind="stable").tolist():
            if (bucket := int(buckets[at])) not in got:
                got[bucket] = self.locks.take(bucket) or is_forced
            if got[bucket]:
                granted.append(int(window[at]))
            else:
                self._state[window[at]] = HELD
            if len(granted) == want:
                break
        self._state[granted] = OURS
        self._locked.update(granted)
        return granted

    def _buckets(self, indices: Array) -> Array:
        numbers: Array = self._catalogue.distinct.digests[indices, :2].astype("i4") @ (256, 1)
        return numbers % BUCKETS

    def _settle_found(self, among: Array | None = None) -> None:
        """Items that are there by now need not be asked for: of these, or of all."""
        at: Any = slice(None) if among is None else among
        with self._lock:
            is_there, state = self._catalogue.places.artifact[at] != MISSING, self._state[at]
            found = np.flatnonzero(is_there & ((state == FRESH) | (state == HELD)))
            found = found if among is None else among[found]
            self._state[found] = SETTLED
        if len(found):
            self._count_taken()
            self._on_found(found)

    def settle(self, indices: Iterable[int], *, is_committed: bool = False) -> None:
        """Settles items. A lease with uncommitted items is given back with its last one."""
        with self._lock:
            for index in indices:
                self._state[index] = SETTLED
                self._locked.discard(index)
                held = self._leases.pop(index, None)
                if held is None:
                    continue
                held.left.discard(index)
                held.is_whole &= is_committed
                if not (held.left or held.is_whole or held.is_dead):
                    forsake(self._session, [held])

    def reopen(self, indices: Iterable[int]) -> None:
        """These are to be asked for again: their lease lapsed. Others may have made them long ago."""
        with self._lock:
            self.settle(indices := list(indices))
            self._state[indices] = FRESH

    def take_rest(self) -> list[int]:
        """All fresh and held items, for a job that goes on without sharing; they are settled then."""
        rest: list[int] = np.flatnonzero((self._state == FRESH) | (self._state == HELD)).tolist()
        self.settle(rest)
        self._count_taken()
        return rest

    def release_all(self) -> None:
        """Gives back all that is still leased, but for what is being committed."""
        # Else it and its fill keep each other, and files, until garbage is collected.
        self._on_found = lambda found: None
        self.settle([index for index in list(self._leases) if self._state[index] != HANDED_IN])


def forsake(session: Session, leases: Iterable[HeldLease]) -> None:
    """Gives leases back with the next request for one, or the next beat, which tells jobs that wait for
    their items. It takes no time, so that it may be called with a lock."""
    for held in leases:
        held.is_dead = True
        session.heartbeat.note_lost(held.lease.id)
