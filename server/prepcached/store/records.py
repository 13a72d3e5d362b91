"""What the store takes and gives: plain frozen records, no behaviour, no I/O.

Invariants:
    1. Every record is made of JSON-able values and tuples of them.
    2. `key`, `digest` and `recipe` are 64 lower-case hex digits here; the index keeps them as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prepcache.digests import Digest, Key, RecipeDigest
from prepcache.protocol.observed import Chunk


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
class StagedFile:
    """A file that a client wrote into the staging folder: its name there and its length."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """One artifact of a recipe, as `resolve` and `commit` answer it."""

    key: Key
    digest: Digest
    size_bytes: int
    items: int
    rows: int
    cost_s: float
    observed: tuple[Chunk, ...] = ()
    edition: int = 0


@dataclass(frozen=True, slots=True)
class Resolved:
    """The artifacts of a recipe: all of them if `is_complete`, else those since the generation asked for.

    `is_damaged`: asked from 0, what happened to the recipe last is that a damaged artifact was removed.
    """

    generation: int
    is_complete: bool
    artifacts: tuple[ArtifactRef, ...]
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """The generation after a commit, and the artifacts that it brought, in the order they were staged."""

    generation: int
    artifacts: tuple[ArtifactRef, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as people and the inspection endpoints see it; in a listing without what it observed."""

    key: Key
    digest: Digest
    recipe: RecipeDigest
    name: str
    size_bytes: int
    disk_bytes: int
    items: int
    rows: int
    cost_s: float
    owner: int
    created_at: float
    used_at: float
    is_pinned: bool
    holds: int
    producer: Mapping[str, Any] = field(default_factory=dict)
    observed: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries; every member that is not None narrows. All None is every entry.

    Args:
        name: the recipe's name: exact, or a prefix where it ends in `*`.
        recipe: the recipe's digest, or its first hex digits (at least 4).
        owner: uid.
        older_than_s: not used for so long.
        produced_by: found in one of the producer's values (script, host, user...).
        keys: exactly these.
        is_pinned: pinned ones, or the others.
        key: the first hex digits of a key (at least 4).
    """

    name: str | None = None
    recipe: str | None = None
    owner: int | None = None
    older_than_s: float | None = None
    produced_by: str | None = None
    keys: tuple[str, ...] | None = None
    is_pinned: bool | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing; `cursor` asks for the next, None at the end."""

    entries: tuple[Entry, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class RecipeRecord:
    """A recipe that the store knows; in a listing without its readable parts.

    Args:
        scope: whose it is (scopes.py).
    """

    digest: RecipeDigest
    name: str
    generation: int
    created_at: float
    entries: int
    size_bytes: int
    parts: Mapping[str, Any] | None = None
    scope: str = ""


@dataclass(frozen=True, slots=True)
class NameSums:
    """What the entries of all recipes of one name come to."""

    name: str
    recipes: int
    entries: int
    items: int
    size_bytes: int
    cost_s: float
    used_at: float


@dataclass(frozen=True, slots=True)
class Removed:
    """What a purge removed, or would; the first 10,000 keys; how many were pinned."""

    entries: int
    size_bytes: int
    disk_bytes: int
    keys: tuple[Key, ...] = ()
    pinned: int = 0


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification read, the keys of damaged ones, which are gone, and those it could not read."""

    checked: int
    read_bytes: int
    bad: tuple[Key, ...]
    unreadable: tuple[Key, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and gauges of the store. Bytes are bytes on disk (blocks), except `size_bytes`.

    `index_bytes` lie beside what counts against the budget. `yielding_bytes` are those of
    `disk_bytes` that go for new ones; the others are held, pinned or open, and some are several of these.

    `stray_bytes` lie in the staging folder without a lease: they count against nothing and are swept.

    `users` have entries or a quota of their own, the largest first, at most 100 of them.

    Saturation is read from `effective_limit_bytes` (the budget, or less where the disk is short),
    `evictions_per_s` (over the last minute) and `coldest_age_s`.
    """

    entries: int
    size_bytes: int
    disk_bytes: int
    unlinked_bytes: int
    staged_bytes: int
    stray_bytes: int
    reserved_bytes: int
    held_bytes: int
    pinned_bytes: int
    yielding_bytes: int
    max_bytes: int
    min_free_bytes: int
    effective_limit_bytes: int
    free_bytes: int
    cost_s: float
    commits: int
    declined: int
    evictions: int
    evicted_bytes: int
    evictions_per_s: float
    coldest_age_s: float | None
    merges: int
    merged_bytes: int
    damaged: int
    scrubbed_bytes: int
    index_bytes: int
    recovered: Mapping[str, int] = field(default_factory=dict)
    users: tuple[UserBytes, ...] = ()
