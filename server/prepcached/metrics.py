"""Prometheus metrics of one daemon.

Invariants:
    1. Labels have few values: routes by their template, never by what a client put into a path.
    2. A scrape reads counters; it never lists entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

import prepcache
from prepcached.daemon import Daemon
from prepcached.filling import Filling
from prepcached.store.records import Stats

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)
_COUNTERS = {
    "commits": "Commits of artifacts since the start.",
    "declined": "Commits and uploads that found no room since the start.",
    "evictions": "Entries evicted since the start.",
    "evicted_bytes": "Bytes on disk of the entries evicted since the start.",
    "merges": "Merges of small artifacts since the start.",
    "quarantined": "Artifacts found damaged, or other than what a job made, since the start.",
    "scrubbed_bytes": "Bytes of artifacts that the background check has read since the start.",
}
_GAUGES = {
    "entries": "Entries in the index.",
    "size_bytes": "Bytes of the entries' artifacts.",
    "disk_bytes": "Bytes on disk of all that counts against the budget.",
    "retired_bytes": "Bytes on disk of merged or replaced artifacts that jobs still hold.",
    "unlinked_bytes": "Bytes on disk of removed artifacts that jobs still have mapped.",
    "staged_bytes": "Bytes on disk that jobs have staged and not committed.",
    "reserved_bytes": "Bytes promised to writes that are under way.",
    "older_layout_bytes": "Bytes on disk of the layouts of older versions, which go when room is needed.",
    "newer_layout_bytes": "Bytes on disk of the layouts of newer versions, which stay.",
    "quarantine_bytes": "Bytes on disk in quarantine.",
    "index_bytes": "Bytes on disk of the index, beside the budget.",
    "recipes_bytes": "Bytes on disk of the recipes' readable parts, beside the budget.",
    "held_bytes": "Bytes on disk of artifacts that jobs hold.",
    "pinned_bytes": "Bytes on disk of pinned entries.",
    "yielding_bytes": "Bytes on disk that go when room is needed.",
    "max_bytes": "The budget in bytes.",
    "min_free_bytes": "Bytes that the filesystem must keep free.",
    "effective_limit_bytes": "Bytes that the cache may take: the budget, or less where the disk is short.",
    "free_bytes": "Bytes free on the filesystem.",
    "cost_s": "Seconds of preprocessing that the entries stand for.",
    "evictions_per_s": "Evictions a second over the last minute.",
    "coldest_age_s": "Seconds since the coldest entry was used.",
}
_SERVED = {
    "resolves": "Look-ups answered since the start.",
    "artifacts": "Artifacts named in answers to look-ups since the start.",
    "misses": "Look-ups since the start that found nothing.",
    "found_items": "Items in what jobs took into use since the start.",
    "saved_s": "Seconds of preprocessing saved since the start: the cost of what jobs took into use.",
    "leases": "Leases granted since the start.",
    "leased_items": "Items granted by leases since the start.",
    "declined_items": "Items that leases found no room for since the start.",
    "declined_recipes": "Recipes that found no room since the start, once for each job.",
    "committed_items": "Items in what jobs committed since the start.",
    "committed_bytes": "Bytes of the artifacts that jobs committed since the start.",
}


class Metrics:
    """The registry, and what fills it."""

    def __init__(self, daemon: Daemon, filling: Filling) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "prepcache_request_seconds",
            "Requests, by route and status.",
            ["method", "route", "status"],
            registry=self._registry,
            buckets=_BUCKETS_S,
        )
        self._snapshot = _Snapshot(daemon, filling)
        self._registry.register(self._snapshot)

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Counts one request."""
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if route != "none" else "any"
        self._requests.labels(method, route, str(status)).observe(seconds)

    def text(self, stats: Stats) -> bytes:
        """The exposition, with the store's numbers as given."""
        self._snapshot.stats = stats
        return generate_latest(self._registry)


class _Snapshot(Collector):
    """The numbers of the store, the sessions and the leases."""

    def __init__(self, daemon: Daemon, filling: Filling) -> None:
        self._daemon = daemon
        self._filling = filling
        self.stats: Stats | None = None

    def collect(self) -> Iterator[Metric]:
        yield _gauge("info", "The daemon.", 1, version=prepcache.__version__)
        yield _gauge("sessions", "Open sessions.", len(self._daemon.sessions))
        yield _gauge("leases", "Live leases.", len(self._daemon.leases))
        for name, value in self._filling.served.items():
            yield _counter(f"served_{name}", _SERVED[name], value)
        values: dict[str, Any] = asdict(self.stats) if self.stats is not None else {}
        for make, texts in ((_counter, _COUNTERS), (_gauge, _GAUGES)):
            for name, text in texts.items():
                if values.get(name) is not None:
                    yield make(name, text, values[name])


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"prepcache_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily(f"prepcache_{name}", text)
    family.add_metric([], value)
    return family
