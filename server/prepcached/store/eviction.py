"""What fits, and what must go. Pure accounting: no locks, no clocks, no I/O.

Invariants:
    1. `on_disk` is what the root takes now; a reservation is what somebody was promised and is still
       to be written. Every reservation is given back in one place, where it was made.
    2. The effective limit is the budget, or less where the filesystem would fall under `min_free`.
    3. Eviction takes the least recently used of what is neither held nor pinned, all or nothing: when
       even that would not make enough room, nothing is evicted and the write is declined. So a data
       set larger than the budget keeps a steady part of itself instead of thrashing.
    4. `Quotas.used` is the sum of the bytes on disk of a user's entries; `reserved` is what his commits under
       way were promised. As the ledger's, these are kept under the store's `memory` lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prepcache.protocol.units import size_text

if TYPE_CHECKING:
    from prepcached.store.queries import Doomable

HEADROOM_SHARE = 50
"""The background keeps 1/50 of the limit free, so that commits need not wait for an eviction..."""
HEADROOM_BYTES = 256 << 20
"""...but never more than this."""
MAX_TOLD = 100
"""Users whose sums are told."""


@dataclass(slots=True)
class Ledger:
    """Bytes on disk by what they are, and the limits. The caller keeps the numbers true."""

    max_bytes: int
    min_free_bytes: int
    live_bytes: int = 0
    unlinked_bytes: int = 0
    staged_bytes: int = 0
    reserved_bytes: int = 0

    @property
    def on_disk(self) -> int:
        return self.live_bytes + self.unlinked_bytes + self.staged_bytes

    def limit(self, free_bytes: int) -> int:
        """The effective limit, given what the filesystem has free."""
        return max(0, min(self.max_bytes, self.on_disk + free_bytes - self.min_free_bytes))

    def shortfall(self, size_bytes: int, free_bytes: int) -> int:
        """How much must go before `size_bytes` more fit; 0 or less when they fit now."""
        return self.on_disk + self.reserved_bytes + size_bytes - self.limit(free_bytes)

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


def choose(
    coldest: Iterable[Doomable], need_bytes: int, is_protected: Callable[[bytes], bool]
) -> list[Doomable] | None:
    """As `idle_of`; None when all idle ones together are not enough."""
    chosen = idle_of(coldest, need_bytes, is_protected)
    return chosen if sum(row.disk_bytes for row in chosen) >= need_bytes else None


def idle_of(
    coldest: Iterable[Doomable], need_bytes: int, is_protected: Callable[[bytes], bool]
) -> list[Doomable]:
    """The entries to evict for `need_bytes`, or all idle ones where they are not enough.

    Args:
        coldest: least recently used first; read only as far as needed.
        need_bytes: bytes on disk to be freed; 0 or less needs nothing.
        is_protected: whether a digest is held.
    """
    chosen: list[Doomable] = []
    if need_bytes <= 0:
        return chosen
    for candidate in coldest:
        if is_protected(candidate.digest):
            continue
        chosen.append(candidate)
        need_bytes -= candidate.disk_bytes
        if need_bytes <= 0:
            break
    return chosen
