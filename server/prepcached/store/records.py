"""What the store takes, gives and counts: records, sums, and who reads what. Pure: no clocks, no I/O.

Invariants:
    1. The effective limit is the budget, or less where the filesystem would fall under `min_free`. Files that
       are on the disk and reserved, as those being committed, are not taken off what is free twice.
    2. A digest is in one session's `held` or in its `gone`, never in both. `gone` names files that were
       removed while the session had them mapped: their bytes stay on disk until it lets go.
    3. A hold that nobody touched for `idle_s` protects nothing; its session can still be told to let go.

Locking: none here; the store's `memory` lock guards what changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from prepcache.protocol import inspection, status_text
from prepcache.protocol.units import size_text

HEADROOM_SHARE, HEADROOM_BYTES = 50, 256 << 20
"""The background keeps 1/50 of the limit free ahead of commits, and at most so much."""
MAX_TOLD = 100
"""Users whose sums are told."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the store may take; `None` asks for the default.

    Args:
        max_bytes: bytes on disk; see `Root.filled_in`.
        min_free_bytes: what stays free on the filesystem.
        hold_idle_s: a hold that nobody touched for so long may be evicted.
        user_quota_bytes: bytes on disk of one user's entries; None: no limit but the budget.
        quotas: the same for some users, by uid.
    """

    max_bytes: int | None = None
    min_free_bytes: int | None = None
    hold_idle_s: float = 1800.0
    user_quota_bytes: int | None = None
    quotas: Mapping[int, int] = field(default_factory=dict)


class Filter(inspection.EntryFilter, frozen=True):
    """Which entries; every member that is not None narrows."""

    keys: tuple[str, ...] | None = None


class RecipeRecord(inspection.Recipe, frozen=True):
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What `check` or a start found wrong."""

    code: str
    what: str
    is_repaired: bool = False
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class UserBytes:
    """What the entries of one user take on disk, and what they may take (None: no quota)."""

    owner: int
    disk_bytes: int
    quota_bytes: int | None


@dataclass(slots=True)
class Counters:
    """Sums over all entries, and counts since the start."""

    entries: int = 0
    size_bytes: int = 0
    pinned_bytes: int = 0
    cost_s: float = 0.0
    commits: int = 0
    declined: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    merges: int = 0
    merged_bytes: int = 0
    damaged: int = 0
    scrubbed_bytes: int = 0
    recovered: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Stats(Counters):
    """Counters and gauges of the store. Bytes are bytes on disk (blocks), except `size_bytes`.

    `index_bytes` do not count against the budget; `yielding_bytes` are those of `disk_bytes` that may be
    evicted. `evictions_per_s` is over the last minute.
    """

    disk_bytes: int
    unlinked_bytes: int
    staged_bytes: int
    reserved_bytes: int
    held_bytes: int
    yielding_bytes: int
    max_bytes: int
    min_free_bytes: int
    effective_limit_bytes: int
    free_bytes: int
    evictions_per_s: float
    coldest_age_s: float | None
    index_bytes: int
    users: tuple[UserBytes, ...] = ()


@dataclass(slots=True)
class Ledger:
    """Bytes on disk by what they are, and the limits. Of the reserved bytes `placed_bytes` are on disk
    already."""

    max_bytes: int
    min_free_bytes: int
    holds: Holds
    live_bytes: int = 0
    staged_bytes: int = 0
    reserved_bytes: int = 0
    placed_bytes: int = 0

    @property
    def on_disk(self) -> int:
        return self.live_bytes + self.holds.unlinked_bytes() + self.staged_bytes

    def limit(self, free_bytes: int, placed_bytes: int = 0) -> int:
        on_disk = self.on_disk + self.placed_bytes + placed_bytes
        return max(0, min(self.max_bytes, on_disk + free_bytes - self.min_free_bytes))

    def shortfall(self, size_bytes: int, free_bytes: int, placed_bytes: int = 0) -> int:
        """How much must go before so many more fit, of which some are on the disk already; 0 or less when
        they fit now."""
        return self.on_disk + self.reserved_bytes + size_bytes - self.limit(free_bytes, placed_bytes)

    def refusal(self, size_bytes: int, free_bytes: int) -> str:
        """Why so many more bytes are not taken."""
        limit = self.limit(free_bytes)
        may_hold = f"{size_text(limit)} (set PREPCACHED_MAX_BYTES, then run `prepcached stop`)"
        if limit < self.max_bytes:
            disk_space = status_text.free(free_bytes, self.min_free_bytes)
            may_hold = f"{size_text(limit)}, because the disk has {disk_space}"
        if size_bytes > limit:
            return f"{size_text(size_bytes)} exceed the cache's limit: {may_hold}"
        promised = self.reserved_bytes
        more = f"; {size_text(promised)} are reserved for uploads and commits under way" if promised else ""
        return (
            f"no room for {size_text(size_bytes)} more: the cache's limit is {may_hold}, "
            f"and all entries are in use by jobs, pinned, or not yet committed{more}"
        )

    def headroom(self, free_bytes: int) -> int:
        return min(self.limit(free_bytes) // HEADROOM_SHARE, HEADROOM_BYTES)


@dataclass(slots=True)
class Quotas:
    """The users' bytes on disk, and their limits. Commits side by side may exceed one for a second."""

    default_bytes: int | None = None
    by_owner: Mapping[int, int] = field(default_factory=dict)
    used: Counter[int] = field(default_factory=Counter)

    def of(self, owner: int) -> int | None:
        return self.by_owner.get(owner, self.default_bytes)

    def shortfall(self, owner: int, size_bytes: int = 0) -> int:
        """How many of the user's bytes must go before so many more fit; 0 or less when they fit now."""
        limit = self.of(owner)
        return 0 if limit is None else self.used[owner] + size_bytes - limit

    def over(self) -> list[int]:
        return [owner for owner in self.used if self.shortfall(owner) > 0]

    def refusal(self, owner: int, size_bytes: int) -> str:
        used, quota = size_text(self.used[owner]), size_text(self.of(owner) or 0)
        return (
            f"no room for {size_text(size_bytes)} more: your entries take {used} of your quota of {quota} "
            "(user_quota), and the rest of them are in use by jobs or pinned"
        )

    def users(self) -> tuple[UserBytes, ...]:
        """The largest first."""
        largest = self.used.most_common(MAX_TOLD)
        return tuple(UserBytes(owner, size, self.of(owner)) for owner, size in largest if size)


class Holds:
    """The holds of all sessions. Memory is the product: one dict slot a hold, the time shared by a batch."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self._held: dict[str, dict[bytes, float]] = {}
        self._gone: dict[str, dict[bytes, int]] = {}
        self._bytes: dict[bytes, int] = {}
        self._pinned: set[bytes] = set()

    def take(self, session: str, found: Iterable[tuple[bytes, int, bool]], now: float) -> None:
        """Holds what was found (digest, bytes on disk, is pinned), also what was removed before."""
        held, gone = self._held.setdefault(session, {}), self._gone.get(session, {})
        for digest, disk_bytes, is_pinned in found:
            self._bytes.setdefault(digest, disk_bytes)
            held[digest] = now
            gone.pop(digest, None)
            if is_pinned:
                self._pinned.add(digest)

    def touch(self, session: str, digests: Iterable[bytes], now: float) -> list[bytes]:
        held = self._held.get(session, {})
        touched = [digest for digest in digests if digest in held]
        held.update(dict.fromkeys(touched, now))
        return touched

    def drop(self, session: str, digests: Iterable[bytes] | None = None) -> None:
        held, gone = self._held.get(session, {}), self._gone.get(session, {})
        free = set()
        for digest in list(held) + list(gone) if digests is None else list(digests):
            gone.pop(digest, None)
            if held.pop(digest, None) is not None:
                free.add(digest)
        for others in self._held.values():
            free = free.difference(others)  # walks through the smaller of the two
        for digest in free:
            self._bytes.pop(digest, None)
            self._pinned.discard(digest)
        if not held:
            self._held.pop(session, None)
        if not gone:
            self._gone.pop(session, None)

    def is_held(self, digest: bytes, now: float) -> bool:
        """Whether any session holds it, and not weakly."""
        return any(now - held[digest] < self.idle_s for held in self._held.values() if digest in held)

    def count(self, digest: bytes) -> int:
        return sum(digest in held for held in self._held.values())

    def removed(self, digests: Collection[bytes]) -> None:
        """Their files were unlinked: whoever held one keeps its bytes on disk until it lets go."""
        for digest in digests:
            disk_bytes = self._bytes.pop(digest, 0)
            for session, held in self._held.items():
                if held.pop(digest, None) is not None:
                    self._gone.setdefault(session, {})[digest] = disk_bytes
        self._pinned.difference_update(digests)

    def pin(self, digest: bytes, is_pinned: bool) -> None:
        """The entry's pin changed; matters only while it is held."""
        if is_pinned and digest in self._bytes:
            self._pinned.add(digest)
        else:
            self._pinned.discard(digest)

    def to_let_go(self, session: str) -> list[bytes]:
        return list(self._gone.get(session, {}))

    def by_session(self) -> dict[str, tuple[int, int]]:
        """How many artifacts each holds, and their bytes on disk."""
        found = {}
        for name in self._held.keys() | self._gone.keys():
            held, gone = self._held.get(name, {}), self._gone.get(name, {})
            size = sum(self._bytes.get(digest, 0) for digest in held) + sum(gone.values())
            found[name] = len(held) + len(gone), size
        return found

    def held_bytes(self, now: float, *, pinned_too: bool = True) -> int:
        """Bytes that holds protect from eviction, each digest once."""
        loose = set(self._bytes)
        for held in self._held.values():
            if len(held) < len(loose):
                loose.difference_update([one for one, at in held.items() if now - at < self.idle_s])
            else:
                loose.difference_update([one for one in loose if now - held.get(one, -inf) < self.idle_s])
        return sum(
            size
            for digest, size in self._bytes.items()
            if (pinned_too or digest not in self._pinned) and digest not in loose
        )

    def unlinked_bytes(self) -> int:
        """Bytes of unlinked files that somebody still has mapped, each digest once."""
        merged: dict[bytes, int] = {}
        for gone in self._gone.values():
            merged.update(gone)
        return sum(merged.values())
