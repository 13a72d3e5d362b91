"""What each user's entries take, and may take. Pure accounting: no locks, no clocks, no I/O.

Invariants:
    1. `used` is the sum of the bytes on disk of a user's entries; `reserved` is what his commits under way
       were promised. Both are kept under the store's `memory` lock.
    2. A user over his quota loses his own coldest entries first, and is declined when what is left is held or
       pinned. Nobody else's entries go for him.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from prepcache.protocol.units import size_text

MAX_TOLD = 100


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
