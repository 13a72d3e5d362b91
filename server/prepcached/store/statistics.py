"""What the store says of itself."""

from __future__ import annotations

from prepcached.store import queries
from prepcached.store.core import Core, io_told
from prepcached.store.records import Stats, UserBytes

RATE_S = 60.0
"""The eviction rate is that of the last minute."""


def stats(core: Core) -> Stats:
    """See `Store.stats`."""
    with io_told("the disk could not be asked"):
        core.look_at_staging()
        free = core.root.free_bytes()
        index_bytes = core.index.disk_bytes()
    with core.index.read() as conn:
        coldest = queries.coldest_used_at(conn)
    now, ticks = core.clock(), core.monotonic()
    with core.memory:
        ledger, counters = core.ledger, core.counters
        recent = sum(1 for at in core.recent_evictions if ticks - at <= RATE_S)
        return Stats(
            entries=counters.entries,
            size_bytes=counters.size_bytes,
            disk_bytes=ledger.on_disk,
            unlinked_bytes=ledger.unlinked_bytes,
            staged_bytes=ledger.staged_bytes,
            stray_bytes=ledger.stray_bytes,
            reserved_bytes=ledger.reserved_bytes,
            held_bytes=core.holds.held_bytes(ticks),
            pinned_bytes=counters.pinned_bytes,
            yielding_bytes=core.idle_bytes(),
            max_bytes=ledger.max_bytes,
            min_free_bytes=ledger.min_free_bytes,
            effective_limit_bytes=ledger.limit(free),
            free_bytes=free,
            cost_s=counters.cost_s,
            commits=counters.commits,
            declined=counters.declined,
            evictions=counters.evictions,
            evicted_bytes=counters.evicted_bytes,
            evictions_per_s=recent / RATE_S,
            coldest_age_s=None if coldest is None else max(0.0, now - coldest),
            merges=counters.merges,
            merged_bytes=counters.merged_bytes,
            damaged=counters.damaged,
            scrubbed_bytes=counters.scrubbed_bytes,
            index_bytes=index_bytes,
            recipes_bytes=core.recipe_bytes.total(),
            recovered=dict(counters.recovered),
            users=tuple(UserBytes(*one) for one in core.quotas.told()),
        )
