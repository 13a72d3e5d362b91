"""What the store takes, gives and counts: plain records and sums; no locks, no clocks, no I/O.

Invariants:
    1. `Ledger.on_disk` is what the root takes now; a reservation is what somebody was promised. Every
       reservation is given back in one place, where it was made.
    2. The effective limit is the budget, or less where the filesystem would fall under `min_free`. Files that
       are on the disk and reserved, as those being committed, are not taken off what is free twice.
    3. `Quotas.used` is the sum of the bytes on disk of a user's entries; `reserved` is what his commits under
       way were promised.

The store's `memory` lock guards what changes here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from prepcache.protocol import inspection
from prepcache.protocol.units import size_text

HEADROOM_SHARE = 50
"""The background keeps 1/50 of the limit free, so that commits need not wait for an eviction..."""
HEADROOM_BYTES = 256 << 20
"""...but never more than this."""
MAX_TOLD = 100
"""Users whose sums are told."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the store may take; `None` asks for the default.

    Args:
        max_bytes: bytes on disk; default min(200 GiB, a quarter of what is free at the first start),
            remembered in the root.
        min_free_bytes: what stays free on the filesystem; default max(5 % of it, 10 GiB).
        hold_idle_s: a hold that nobody touched for so long weakens and may be evicted.
        user_quota_bytes: bytes on disk that the entries of one user may take; None: no limit but the budget.
        quotas: the same for some users, by uid.
    """

    max_bytes: int | None = None
    min_free_bytes: int | None = None
    hold_idle_s: float = 1800.0
    user_quota_bytes: int | None = None
    quotas: Mapping[int, int] = field(default_factory=dict)


class Filter(inspection.EntryFilter, frozen=True):
    """Which entries; every member that is not None narrows. All None is every entry.

    Args:
        keys: exactly these.
    """

    keys: tuple[str, ...] | None = None


class RecipeRecord(inspection.Recipe, frozen=True):
    """A recipe, and whose it is (scopes.py)."""

    scope: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `check` or a start found wrong, whether it was mended, and how."""

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

    `index_bytes` do not count against the budget. `yielding_bytes` are those of `disk_bytes` that may be
    evicted; the others are held, pinned or open.

    `users` have entries or a quota of their own, the largest first, at most 100 of them.

    Saturation is read from `effective_limit_bytes` (the budget, or less where the disk is short),
    `evictions_per_s` (over the last minute) and `coldest_age_s`.
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
    """Bytes on disk by what they are, and the limits. The caller keeps the numbers true.

    `placed_bytes` are those of `reserved_bytes` that are on the disk already.
    """

    max_bytes: int
    min_free_bytes: int
    live_bytes: int = 0
    unlinked_bytes: int = 0
    staged_bytes: int = 0
    reserved_bytes: int = 0
    placed_bytes: int = 0

    @property
    def on_disk(self) -> int:
        return self.live_bytes + self.unlinked_bytes + self.staged_bytes

    def limit(self, free_bytes: int, placed_bytes: int = 0) -> int:
        """The effective limit, given what the filesystem has free."""
        on_disk = self.on_disk + self.placed_bytes + placed_bytes
        return max(0, min(self.max_bytes, on_disk + free_bytes - self.min_free_bytes))

    def shortfall(self, size_bytes: int, free_bytes: int, placed_bytes: int = 0) -> int:
        """How much must go before `size_bytes` more fit; 0 or less when they fit now.

        Args:
            placed_bytes: so much of these is on the disk already.
        """
        return self.on_disk + self.reserved_bytes + size_bytes - self.limit(free_bytes, placed_bytes)

    def refusal(self, size_bytes: int, free_bytes: int) -> str:
        """Why so many more bytes are not taken: what there is room for, and by which setting."""
        limit = self.limit(free_bytes)
        may_hold = f"{size_text(limit)} (--max-bytes)"
        if limit < self.max_bytes:
            may_hold = (
                f"{size_text(limit)}, because the disk has {size_text(free_bytes)} free, of which "
                f"{size_text(self.min_free_bytes)} must stay free (--min-free)"
            )
        if size_bytes > limit:
            return f"{size_text(size_bytes)} exceed the cache's limit: {may_hold}"
        promised = self.reserved_bytes
        more = f"; {size_text(promised)} are reserved for uploads and commits under way" if promised else ""
        return (
            f"no room for {size_text(size_bytes)} more: the cache's limit is {may_hold}, "
            f"and all entries are in use by jobs, pinned, or not yet committed{more}"
        )

    def headroom(self, free_bytes: int) -> int:
        """What the background keeps free ahead of commits."""
        return min(self.limit(free_bytes) // HEADROOM_SHARE, HEADROOM_BYTES)


@dataclass(slots=True)
class Quotas:
    """The users' bytes and limits.

    Args:
        default_bytes: of users who have no quota of their own; None: no limit.
        by_owner: quotas of some users.
    """

    default_bytes: int | None = None
    by_owner: Mapping[int, int] = field(default_factory=dict)
    used: Counter[int] = field(default_factory=Counter)
    reserved: Counter[int] = field(default_factory=Counter)

    def of(self, owner: int) -> int | None:
        return self.by_owner.get(owner, self.default_bytes)

    def shortfall(self, owner: int, size_bytes: int = 0) -> int:
        """How many of the user's bytes must go before so many more fit; 0 or less when they fit now."""
        limit = self.of(owner)
        return 0 if limit is None else self.used[owner] + self.reserved[owner] + size_bytes - limit

    def over(self) -> list[int]:
        """The users who are over their quotas."""
        return [owner for owner in self.used if self.shortfall(owner) > 0]

    def refusal(self, owner: int, size_bytes: int) -> str:
        """Why so many more bytes of a user are not taken."""
        used, quota = size_text(self.used[owner]), size_text(self.of(owner) or 0)
        return (
            f"no room for {size_text(size_bytes)} more: your entries take {used} of your quota of {quota} "
            "(user_quota), and the rest of them are in use by jobs or pinned"
        )

    def told(self) -> list[tuple[int, int, int | None]]:
        """(owner, bytes on disk, quota) of those who have entries, the largest first."""
        return [(owner, size, self.of(owner)) for owner, size in self.used.most_common(MAX_TOLD) if size]
