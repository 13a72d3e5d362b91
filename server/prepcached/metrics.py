"""Prometheus metrics of one daemon.

Invariants:
    1. Base units, `_total` for counters, counters instead of rates: https://prometheus.io/docs/practices/naming/
    2. Labels have few values: routes by their template, never by what a client put into a path.
    3. What requests count is counted here alone (`Counters`); statistics and the page read it from there.
    4. A scrape never lists entries.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

import prepcache

if TYPE_CHECKING:
    from prepcached.coordinator import Coordinator
    from prepcached.daemon import Daemon
    from prepcached.http_protocol import Slots

# Else each counter and histogram comes with a metric that says when it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]
CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)
SERVED = {
    "resolves": ("lookups", "Look-ups answered."),
    "misses": ("lookup_misses", "Look-ups that found nothing."),
    "artifacts": ("lookup_artifacts", "Artifacts named in answers to look-ups."),
    "found_items": ("hit_items", "Items that jobs found in the cache."),
    "leased_items": ("miss_items", "Items leased for preprocessing."),
    "saved_s": ("saved_seconds", "Seconds of preprocessing saved: the cost of the items that jobs found."),
    "leases": ("leases_granted", "Leases granted."),
    "declined_items": ("declined_items", "Items declined for lack of room."),
    "committed_items": ("committed_items", "Items that jobs committed."),
    "committed_bytes": ("committed_bytes", "Bytes of the artifacts that jobs committed."),
}
"""What requests count; `found_items` and `saved_s` are what jobs told that they found made."""
TIER = {
    "hits": ("tier_hits", "Artifacts fetched from the tier."),
    "hit_bytes": ("tier_read_bytes", "Bytes fetched from the tier."),
    "misses": ("tier_misses", "Requests for work whose items the tier did not have."),
    "bad": ("tier_damaged_artifacts", "Artifacts of the tier whose bytes did not match their digest."),
    "written": ("tier_written_artifacts", "Artifacts copied into the tier."),
    "written_bytes": ("tier_written_bytes", "Bytes copied into the tier."),
    "dropped": ("tier_dropped", "Recipes that were not copied because too many were waiting."),
}
_STORE = {
    "commits": ("commits", "Commits of artifacts."),
    "declined": ("declined_writes", "Commits and uploads declined for lack of room."),
    "evictions": ("evictions", "Entries evicted."),
    "evicted_bytes": ("evicted_bytes", "Bytes on disk of the entries evicted."),
    "merges": ("merges", "Merges of small artifacts."),
    "merged_bytes": ("merged_bytes", "Bytes of artifacts that merges have read."),
    "damaged": ("damaged_artifacts", "Artifacts found damaged, or different from recomputed samples."),
    "scrubbed_bytes": ("scrubbed_bytes", "Bytes of artifacts that the background check has read."),
    "tier_could_not_tell": ("tier_failures", "Requests that the tier did not answer, or refused."),
    "tier_upstream_failures": ("tier_upstream_failures", "Requests that the lead daemon did not answer."),
}
"""What the store and the tier's outages count, by their names in Stats and in GET /v1/tier."""
_GAUGES = {
    "entries": ("entries", "Entries in the index."),
    "size_bytes": ("entry_bytes", "Bytes of the entries' artifacts."),
    "disk_bytes": ("disk_bytes", "Bytes on disk that count against the budget."),
    "unlinked_bytes": ("unlinked_bytes", "Bytes on disk of removed artifacts that jobs still have mapped."),
    "staged_bytes": ("staged_bytes", "Bytes on disk in the staging folder."),
    "reserved_bytes": ("reserved_bytes", "Bytes promised to writes that are under way."),
    "index_bytes": ("index_bytes", "Bytes on disk of the index, not in the budget."),
    "held_bytes": ("held_bytes", "Bytes on disk of artifacts that jobs hold."),
    "pinned_bytes": ("pinned_bytes", "Bytes on disk of pinned entries."),
    "yielding_bytes": ("evictable_bytes", "Bytes on disk that may be evicted."),
    "max_bytes": ("budget_bytes", "The budget."),
    "min_free_bytes": ("min_free_bytes", "Bytes that the filesystem must keep free."),
    "effective_limit_bytes": (
        "limit_bytes",
        "Bytes that the cache may take: the budget, or less if the disk is too small.",
    ),
    "free_bytes": ("free_bytes", "Bytes free on the filesystem."),
    "cost_s": ("cost_seconds", "Seconds of preprocessing that the entries save."),
    "tier_up": ("tier_up", "1 while the tier answers, else 0."),
    "tier_lead_up": ("tier_lead_up", "1 while the lead daemon answers, else 0."),
    "tier_waiting": ("tier_waiting", "Recipes that wait to be copied into the tier."),
    "coldest_age_s": ("coldest_age_seconds", "Seconds since the least recently used entry was used."),
}
"""By their names in Stats."""


class Counters:
    """Counters of one registry, by the names of a table such as `SERVED`."""

    def __init__(self, registry: CollectorRegistry, table: Mapping[str, tuple[str, str]]) -> None:
        self._counters = {
            key: Counter(f"prepcache_{name}", text, registry=registry) for key, (name, text) in table.items()
        }

    def add(self, **amounts: float) -> None:
        for key, amount in amounts.items():
            self._counters[key].inc(amount)

    def __getitem__(self, key: str) -> float:
        [family] = self._counters[key].collect()
        return family.samples[0].value


class Metrics(Collector):
    """What a scrape gets: the daemon's counters, and the numbers of the store, sessions, leases and
    connections as they are then."""

    def __init__(self, daemon: Daemon, coordinator: Coordinator, slots: Slots) -> None:
        self._daemon = daemon
        self._coordinator = coordinator
        self._slots = slots
        self._registry = registry = daemon.registry
        ProcessCollector(registry=registry)
        labels = ["version", "python"]
        build = Gauge("prepcache_build_info", "The daemon's version.", labels, registry=registry)
        build.labels(prepcache.__version__, platform.python_version()).set(1)
        self._requests = Histogram(
            "prepcache_request_seconds",
            "Seconds until requests were answered, by route and status.",
            ["method", "route", "status"],
            registry=registry,
            buckets=_BUCKETS_S,
        )
        registry.register(self)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if route != "none" else "any"
        self._requests.labels(method, route, str(status)).observe(seconds)

    def text(self) -> bytes:
        """Call it in a thread: it asks the store, and reads files of /proc."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        stats = self._daemon.store.stats()
        yield GaugeMetricFamily("prepcache_sessions", "Open sessions.", len(self._daemon.sessions))
        yield GaugeMetricFamily("prepcache_leases", "Live leases.", len(self._daemon.leases))
        connections = GaugeMetricFamily("prepcache_connections", "Open connections.", labels=["listener"])
        tcp = self._slots.open[None]
        connections.add_metric(["unix"], self._slots.open.total() - tcp)
        connections.add_metric(["tcp"], tcp)
        yield connections
        refused = "Connections closed because too many were open."
        yield CounterMetricFamily("prepcache_refused_connections", refused, self._slots.refused)
        values: dict[str, Any] = asdict(stats)
        if self._coordinator.tier is not None:
            told = self._coordinator.tier.status()
            values |= {f"tier_{name}": value for name, value in told.items()}
            values["tier_up"] = int(not told["is_paused"])
            if "upstream" in told:
                values["tier_lead_up"] = int(not told["is_upstream_away"])
        users = GaugeMetricFamily(
            "prepcache_user_bytes", "Bytes on disk of a user's entries.", labels=["uid"]
        )
        quotas = GaugeMetricFamily(
            "prepcache_user_quota_bytes", "Limit on the size of a user's entries, in bytes.", labels=["uid"]
        )
        for one in stats.users:  # 100 at most
            users.add_metric([str(one.owner)], one.disk_bytes)
            if one.quota_bytes is not None:
                quotas.add_metric([str(one.owner)], one.quota_bytes)
        yield from (users, quotas)
        for family, named in ((CounterMetricFamily, _STORE), (GaugeMetricFamily, _GAUGES)):
            for source, (name, text) in named.items():
                if values.get(source) is not None:
                    yield family(f"prepcache_{name}", text, values[source])
