"""The pace of a fill: what items cost, how many to lease at once, when to commit.

A lease is one item a worker before something has been measured, then `LEASE_S` of work that fits into one
commit, and near the end so little that jobs which share the rest end together.
"""

from __future__ import annotations

from dataclasses import dataclass

from prepcache.protocol.wire import MAX_ITEMS

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
COMMIT_S = 30.0
COMMIT_SHARE = 0.02
"""Uncommitted work may be lost: at most COMMIT_S of it, or this share of all work so far if that is more."""
_MEMORY = 0.98
"""How much of its weight a measurement keeps with each later one."""


@dataclass(slots=True)
class Pace:
    """What was measured; `cost_s`: seconds inside the function so far, over all workers."""

    slots: int = 1
    commit_bytes: int = COMMIT_BYTES
    cost_s: float = 0.0
    uncommitted_s: float = 0.0
    _cost: float = 0.0
    _nbytes: float = 0.0
    _count: float = 0.0

    def note(self, cost_s: float, nbytes: int) -> None:
        self.cost_s += cost_s
        self.uncommitted_s += cost_s
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
        return max(self.slots, min(self._most, int(span_s * self.slots / item_s)))

    @property
    def _most(self) -> int:
        return min(MAX_ITEMS, int(self.commit_bytes / max(1.0, self.item_bytes)))

    def chunk(self, queued: int) -> int:
        if not self._count:
            return 1
        fair = queued if self.slots == 1 else -(-queued // (2 * self.slots))
        return max(1, min(fair, int(CHUNK_S / max(self.item_s, 1e-6))))

    def is_commit_due(self, nbytes: int) -> bool:
        # Workers side by side lose only their share of a wall-clock second each.
        is_costly = self.uncommitted_s > max(COMMIT_S * self.slots, COMMIT_SHARE * self.cost_s)
        return is_costly or nbytes >= self.commit_bytes


def commit_bytes(budget_bytes: int) -> int:
    """How large a batch may get in a cache of that size; 0 where its size is not known."""
    return min(COMMIT_BYTES, budget_bytes // COMMIT_SHARE_OF_CACHE) if budget_bytes else UNKNOWN_BYTES
