"""What the daemon says of itself: liveness, version and limits, counters."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter, Request, Response

import prepcache
from prepcache.errors import DaemonUnreachable, StoreError
from prepcache.protocol import inspection, wire
from prepcached.auth import Caller
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon
from prepcached.maintenance import Maintenance
from prepcached.metrics import CONTENT_TYPE, SERVED, Metrics
from prepcached.problems import JsonResponse
from prepcached.routes import messages
from prepcached.routes.messages import endpoint
from prepcached.store.records import Stats

READY_TIMEOUT_S = 2.0  # an index that takes longer keeps jobs waiting
_HEALTH = {"type": "object", "properties": {"status": {"type": "string", "examples": ["ok"]}}}
_NUMBERS = {"type": "object", "description": "numbers by name", "examples": [{"entries": 1}]}


def router(daemon: Daemon, coordinator: Coordinator, metrics: Metrics, maintenance: Maintenance) -> APIRouter:
    api = APIRouter(tags=["the daemon"])

    @api.get("/healthz", **endpoint(gives=_HEALTH))
    async def healthz() -> Response:
        """Whether the daemon lives."""
        return JsonResponse({"status": "ok"})

    @api.get("/readyz", **endpoint(gives=_HEALTH))
    async def readyz() -> Response:
        """Whether the daemon can store and look up: index, disk and maintenance work."""
        wrong = []
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                stats = await daemon.quick(daemon.store.stats)
                is_writable = await daemon.quick(os.access, daemon.store.staging, os.W_OK)
        except (StoreError, TimeoutError) as error:
            wrong.append(f"the index does not answer ({error or 'timeout'})")
        else:
            if not stats.effective_limit_bytes:
                wrong.append("the disk is full")
            if not is_writable:
                wrong.append("the disk is read-only")
        if not maintenance.is_alive:
            wrong.append("maintenance has stopped")
        if wrong:
            raise DaemonUnreachable(f"not ready: {'; '.join(wrong)}")
        return JsonResponse({"status": "ready"})

    @api.get("/metrics", **endpoint(gives={"type": "string", "examples": [""]}, gives_type="text/plain"))
    async def prometheus() -> Response:
        """Counters and gauges for Prometheus."""
        return Response(await daemon.quick(metrics.text), media_type=CONTENT_TYPE)

    @api.get("/v1/info", **endpoint(gives=inspection.Info))
    async def info() -> Response:
        """Version, protocol, instance, root, limits."""
        return messages.answer(info_of(daemon, await daemon.quick(daemon.store.stats)))

    @api.get("/v1/stats", **endpoint(gives=_NUMBERS))
    async def stats(request: Request) -> Response:
        """Counters, bytes, seconds saved, age of the coldest entry."""
        caller = messages.caller(request)
        return JsonResponse(stats_of(daemon, coordinator, await daemon.quick(daemon.store.stats), caller))

    return api


def info_of(daemon: Daemon, stats: Stats) -> inspection.Info:
    return inspection.Info(
        version=prepcache.__version__,
        protocol=wire.PROTOCOL,
        instance=daemon.store.instance,
        root=daemon.store.root,
        pid=os.getpid(),
        started_at=daemon.started_at,
        limits={
            "max_bytes": stats.max_bytes,
            "effective_limit_bytes": stats.effective_limit_bytes,
            "min_free_bytes": stats.min_free_bytes,
            "body_bytes": wire.MAX_BODY_BYTES,
            "items_per_lease": wire.MAX_ITEMS,
            "leases_per_session": wire.MAX_LEASES,
            "staged_bytes_per_session": wire.MAX_STAGED_BYTES,
            "entries_per_page": inspection.MAX_PAGE_SIZE,
        },
        isolation="user" if daemon.auth.is_by_user else "group",
    )


def stats_of(daemon: Daemon, coordinator: Coordinator, stats: Stats, caller: Caller) -> dict[str, Any]:
    served = coordinator.served
    seen = [one for one in stats.users if caller.confined_to in (None, one.owner)]
    return {
        **asdict(replace(stats, users=tuple(seen))),
        **{name: int(served[name]) for name in SERVED if name != "saved_s"},
        "sessions": len(daemon.sessions),
        "leases": len(daemon.leases),  # in the place of those granted
        "waiting": len({(lease.session, lease.recipe) for lease in daemon.leases.waited_for()}),
        "seconds_saved": served["saved_s"],
        "uptime_s": daemon.clock() - daemon.started_clock,
    }
