"""What the store takes and gives beside the protocol's messages: plain records, no behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prepcache.protocol import inspection


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the store may take; `None` asks for the default.

    Args:
        max_bytes: bytes on disk; default min(200 GiB, a quarter of what is free at the first start),
            remembered in the root.
        min_free_bytes: what stays free on the filesystem; default max(5 % of it, 10 GiB).
        artifact_bytes: the largest artifact that is taken at all; default the budget.
        hold_idle_s: a hold that nobody touched for so long weakens and may be evicted.
        user_quota_bytes: bytes on disk that the entries of one user may take; None: no limit but the budget.
        quotas: the same for some users, by uid.
    """

    max_bytes: int | None = None
    min_free_bytes: int | None = None
    artifact_bytes: int | None = None
    hold_idle_s: float = 1800.0
    user_quota_bytes: int | None = None
    quotas: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filter(inspection.EntryFilter):
    """Which entries; every member that is not None narrows. All None is every entry.

    Args:
        keys: exactly these.
    """

    keys: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RecipeRecord(inspection.Recipe):
    """A recipe, and whose it is (scopes.py)."""

    scope: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `check` found wrong, and whether it was mended."""

    code: str
    what: str
    is_repaired: bool = False


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

    `index_bytes` lie beside what counts against the budget. `yielding_bytes` are those of
    `disk_bytes` that go for new ones; the others are held, pinned or open, and some are several of these.

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
