"""The lease table: which session may preprocess which items; a pure state machine.

Invariants:
    1. An item of a recipe is named by at most one live lease.
    2. A lease acts only with its token, in its session, before its deadline. What lapsed, was released or
       belonged to an ended session never commits.
    3. A commit frees an item in the same step that raises the recipe's generation: nobody is granted an item
       that has just been committed.
    4. A lease that is being committed neither lapses nor is freed before the commit is finished or aborted.
    5. Clients make the ids of their leases, and name those that they give back or never heard of (`forsake`),
       so a lost or late answer does not leave a session waiting for itself.
    6. Every change that could let a waiter go on is announced through `on_change`.
    7. Beats carry a lease at most `STALL_S` (or 40 x cost) past the last progress: a process may hang and
       beat.

Locking: none; the daemon's event loop calls everything here.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from prepcache.digests import DIGEST_BYTES
from prepcache.errors import BadRequest, LeaseLapsed, LimitExceeded
from prepcache.protocol import wire

MIN_SPAN_S = 15.0
"""Shortest life of a lease between beats: three beats, so that one lost beat costs nothing."""
COST_FACTOR = 4.0
STALL_S = 600.0  # how long beats alone keep a lease whose holder reports no progress
STALL_COST_FACTOR = 40.0
MAX_LEASES, MAX_LEASED_ITEMS = wire.MAX_LEASES, 1 << 20  # of one session
MAX_FORSAKEN = 1024  # ids that are remembered
TIER_SESSION = "tier-"
"""The sessions by which the shared tier leases the items that it fetches begin with this."""
TIER_NAME = "the shared tier"  # what people read as the holder of those items
WAITING_S = 5.0
"""How long a wait is remembered: longer than one long poll and the pause between two."""


@dataclass(eq=False)
class Lease:
    id: str
    token: str
    session: str
    job: str
    recipe: str
    items: set[bytes]
    cost_s: float
    granted_at: float
    deadline: float
    progress_at: float
    is_committing: bool = False
    is_orphaned: bool = False
    waited_until: float = 0.0  # somebody waits for its items, or did a moment ago

    @property
    def span_s(self) -> float:
        return max(MIN_SPAN_S, COST_FACTOR * self.cost_s)


@dataclass(frozen=True)
class Answer:
    """Look again, or a lease on the items at these indices, or nothing; how many items sessions hold."""

    is_behind: bool = False
    lease: Lease | None = None
    granted: list[int] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    """A commit under way: its leases are kept from lapsing until `finish` or `abort`."""

    session: str
    recipe: str
    leases: tuple[Lease, ...]
    items: frozenset[bytes]


def digests(items: bytes) -> list[bytes]:
    found: list[bytes] = np.frombuffer(items, f"V{DIGEST_BYTES}").tolist()
    return found


class LeaseTable:
    """All live leases; `on_change` is called with a recipe when items became free or its generation moved."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._leases: dict[str, Lease] = {}
        self._by_item: dict[str, dict[bytes, Lease]] = {}
        self._generations: dict[str, int] = {}
        self._forsaken: deque[str] = deque(maxlen=MAX_FORSAKEN)

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def of_session(self, session: str) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.session == session]

    def leased(self, recipe: str) -> Mapping[bytes, Lease]:
        return self._by_item.get(recipe, {})

    def check_live(self, session: str, lease_id: str) -> None:
        lease = self._leases.get(lease_id)
        self._fenced(session, lease_id, lease.token if lease is not None else "")

    def generation(self, recipe: str) -> int:
        """The newest generation that this table was told of (0: none)."""
        return self._generations.get(recipe, 0)

    def knows(self, recipe: str) -> bool:
        return recipe in self._generations

    def forget_generation(self, recipe: str) -> None:
        """A commit failed and may have been done: the store is to be asked."""
        self._generations.pop(recipe, None)

    def raise_generation(self, recipe: str, generation: int) -> None:
        """Notes that the store's recipe has moved on; never goes back."""
        if generation > self._generations.get(recipe, -1):
            self._generations[recipe] = generation
            self._on_change(recipe)

    def grant(
        self,
        session: str,
        job: str,
        recipe: str,
        generation: int,
        items: bytes,
        *,
        lease_id: str,
        want: int,
        cost_s: float,
        allowed: Container[bytes] | None = None,
    ) -> Answer:
        """Grants up to `want` items that no live lease names, in one step with the generation check.

        Args:
            generation: the newest that the asker has seen.
            items: n * 32 bytes; those that are not `allowed` are passed over.
            cost_s: measured cost of the `want` items together, 0 when nothing was measured.

        Raises:
            LimitExceeded: the session has as many leases or leased items as it may have.
            BadRequest: there is a lease of that id, or it was forsaken before it was granted.
        """
        self.lapse()
        if lease_id in self._leases or lease_id in self._forsaken:
            raise BadRequest("lease must be a new id: this one is in use, or was given up", field="lease")
        if generation < self.generation(recipe):
            return Answer(is_behind=True)
        mine = self.of_session(session)
        leased = sum(len(lease.items) for lease in mine)
        if len(mine) >= MAX_LEASES or leased >= MAX_LEASED_ITEMS:
            raise LimitExceeded(
                f"{job} holds {len(mine)} leases on {leased} items; one session may hold "
                f"{MAX_LEASES} leases and {MAX_LEASED_ITEMS} items: commit some, "
                "or give some up (DELETE /v1/leases/{id})",
                leases=len(mine),
                items=leased,
            )
        # A waiting job asks for up to 65,536 items again at every change: what looks at all of them is in C.
        keys, by_item = digests(items), self.leased(recipe)
        leases = list(map(by_item.get, keys))
        others = Counter(other for other in leases if other is not None)
        held: Counter[str] = Counter()
        for other, count in others.items():
            held[other.session] += count
        free: dict[bytes, int] = {}
        for index, item in ((index, keys[index]) for index, other in enumerate(leases) if other is None):
            if len(free) == min(want, MAX_LEASED_ITEMS - leased):
                break
            if allowed is None or item in allowed:
                free.setdefault(item, index)
        if free:
            lease = self._lease(lease_id, session, job, recipe, set(free), cost_s)
            return Answer(lease=lease, granted=list(free.values()), held=held)
        for other in others:
            other.waited_until = self._clock() + WAITING_S
        return Answer(held=held)

    def begin_fetch(self, session: str, job: str, recipe: str, items: bytes) -> Commit | None:
        """Leases the free ones of these items for one commit; None where none is free."""
        free = set(digests(items)).difference(self.leased(recipe))
        if not free:
            return None
        lease = self._lease(secrets.token_hex(16), session, job, recipe, free, 0.0)
        lease.is_committing = lease.is_orphaned = True
        return Commit(session, recipe, (lease,), frozenset(free))

    def _lease(
        self, lease_id: str, session: str, job: str, recipe: str, items: set[bytes], cost_s: float
    ) -> Lease:
        now = self._clock()
        lease = Lease(
            lease_id, secrets.token_hex(16), session, job, recipe, items, max(0.0, cost_s), now, now, now
        )
        lease.deadline = now + lease.span_s
        self._leases[lease_id] = lease
        self._by_item.setdefault(recipe, {}).update(dict.fromkeys(items, lease))
        return lease

    def beat(self, session: str, progressed: Iterable[str] = ()) -> None:
        """Renews the session's leases; `progressed` names recipes whose work has moved on."""
        self.lapse()
        now = self._clock()
        moved = set(progressed)
        for lease in self.of_session(session):
            if lease.recipe in moved:
                lease.progress_at = now
            stall_at = lease.progress_at + max(STALL_S, STALL_COST_FACTOR * lease.cost_s)
            lease.deadline = max(lease.deadline, min(now + lease.span_s, stall_at))

    def begin_commit(self, session: str, pairs: Sequence[tuple[str, str]]) -> Commit:
        """Keeps the leases (id, token) of a commit from lapsing. Raises LeaseLapsed or BadRequest."""
        self.lapse()
        leases = tuple(self._fenced(session, lease_id, token) for lease_id, token in pairs)
        recipes = {lease.recipe for lease in leases}
        if len(recipes) != 1 or len({lease.id for lease in leases}) != len(leases):
            raise BadRequest("leases: a commit must name at least one lease, each once, all of one recipe")
        for lease in leases:
            if lease.is_committing:
                raise LeaseLapsed(
                    f"lease {lease.id} of {lease.job} is being committed by another request: wait for it",
                    lease=lease.id,
                )
        for lease in leases:
            lease.is_committing = True
        return Commit(session, leases[0].recipe, leases, frozenset().union(*(x.items for x in leases)))

    def finish_commit(self, commit: Commit, committed: Iterable[bytes], generation: int) -> None:
        """Frees the committed items and raises the generation; the rest stays leased."""
        by_item = self._by_item.get(commit.recipe, {})
        for item in committed:
            lease = by_item.pop(item, None)
            if lease is not None:
                lease.items.discard(item)
        if generation > self.generation(commit.recipe):
            self._generations[commit.recipe] = generation
        now = self._clock()
        for lease in commit.leases:
            lease.is_committing = False
            lease.progress_at = now
            lease.deadline = now + lease.span_s
            if not lease.items or lease.is_orphaned:
                self._free(lease)
        self._on_change(commit.recipe)

    def abort_commit(self, commit: Commit) -> None:
        self.finish_commit(commit, (), self.generation(commit.recipe))

    def release(self, session: str, lease_id: str, token: str) -> None:
        """Ends a lease at its holder's wish; raises LeaseLapsed."""
        self.lapse()
        lease = self._fenced(session, lease_id, token)
        if lease.is_committing:
            raise LeaseLapsed(f"lease {lease.id} of {lease.job} is being committed and ends with the commit")
        self._free(lease)
        self._on_change(lease.recipe)

    def forsake(self, session: str, lease_ids: Iterable[str]) -> None:
        named = set(lease_ids)
        self._forsaken.extend(named)
        self._end([lease for lease in self.of_session(session) if lease.id in named])

    def end_session(self, session: str) -> None:
        self._end(self.of_session(session))

    def lapse(self) -> None:
        now = self._clock()
        self._end([lease for lease in self if lease.deadline <= now and not lease.is_committing])

    def waited_for(self) -> list[Lease]:
        """The leases whose items somebody waits for, or did a moment ago."""
        now = self._clock()
        return [lease for lease in self if lease.waited_until > now]

    def _end(self, leases: list[Lease]) -> None:
        recipes = set()
        for lease in leases:
            if lease.is_committing:
                lease.is_orphaned = True
            else:
                self._free(lease)
                recipes.add(lease.recipe)
        for recipe in recipes:
            self._on_change(recipe)

    def _fenced(self, session: str, lease_id: str, token: str) -> Lease:
        lease = self._leases.get(lease_id)
        is_own = lease is not None and secrets.compare_digest(lease.token.encode(), token.encode())
        if lease is None or not is_own or lease.session != session:
            raise LeaseLapsed(
                f"lease {lease_id[:64]} is not live in this session: it lapsed or was released, and another "
                "job may preprocess its items; drop this work and resolve again",
                lease=lease_id[:64],
            )
        return lease

    def _free(self, lease: Lease) -> None:
        self._leases.pop(lease.id, None)
        by_item = self._by_item.get(lease.recipe, {})
        for item in lease.items:
            if by_item.get(item) is lease:
                del by_item[item]
        if not by_item:
            self._by_item.pop(lease.recipe, None)
