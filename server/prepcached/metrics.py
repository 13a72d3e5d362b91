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
_COUNTERS = frozenset(
    {"commits", "declined", "evictions", "evicted_bytes", "merges", "quarantined", "scrubbed_bytes"}
)


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
            yield _counter(f"served_{name}", f"{name} served since the start.", value)
        values: dict[str, Any] = asdict(self.stats) if self.stats is not None else {}
        for name, value in values.items():
            if isinstance(value, (int, float)):
                make = _counter if name in _COUNTERS else _gauge
                yield make(name, f"The store's {name}.", value)


def _gauge(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"prepcache_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily(f"prepcache_{name}", text)
    family.add_metric([], value)
    return family
