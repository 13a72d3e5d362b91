"""The app: every endpoint over one daemon, behind the middleware.

Invariants:
    1. Nothing here is global: an app is made for a daemon, and dies with it.
    2. The daemon, which runs by then, stops at the end of the app's lifespan, on the app's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

import prepcache
from prepcached import problems
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon
from prepcached.dashboard.routes import Dashboard
from prepcached.http_protocol import Slots
from prepcached.maintenance import Maintenance
from prepcached.metrics import Metrics
from prepcached.middleware import Middleware
from prepcached.routes import (
    care,
    data,
    entries,
    explain,
    info,
    leases,
    messages,
    sessions,
)
from prepcached.routes import tier as tier_api
from prepcached.routes.openapi import Described

if TYPE_CHECKING:
    from prepcached.tier.tier import Tier

_TAGS = [
    {"name": "the daemon", "description": "Health, version and statistics."},
    {"name": "entries", "description": "List, pin and remove cached entries."},
    {"name": "recipes", "description": "How samples are preprocessed."},
    {"name": "inspection", "description": "Why a job missed."},
    {"name": "care", "description": "Purge and verify many entries at once."},
    {"name": "sessions", "description": "Connected jobs, which open, renew and close their own sessions."},
    {"name": "data", "description": "Upload and download for jobs that share no folder with the daemon."},
    {"name": "filling", "description": "The jobs' own protocol: look up, lease, commit."},
]
"""In the order in which people ask: to look and to purge first, what only jobs call last."""


def create_app(
    daemon: Daemon,
    maintenance: Maintenance | None = None,
    slots: Slots | None = None,
    tier: Tier | None = None,
) -> Middleware:
    """The ASGI app.

    Args:
        daemon: started and stopped with the app.
        maintenance: the store's background work; None for none.
        slots: the server's connections.
        tier: the bucket that is shared with other machines; started and stopped with the app.
    """
    coordinator = Coordinator(daemon)
    coordinator.tier = tier
    dashboard = Dashboard(daemon, coordinator)
    metrics = Metrics(daemon, coordinator, slots or Slots())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if maintenance is not None:
            maintenance.start()
        if tier is not None:
            tier.start()
        recording = asyncio.create_task(dashboard.record())
        try:
            yield
        finally:
            recording.cancel()
            daemon.begin_stop()
            if tier is not None:
                await tier.stop()
            if maintenance is not None:
                await asyncio.to_thread(maintenance.stop)
            await daemon.stop()

    app = Described(
        title="prepcached",
        version=prepcache.__version__,
        summary="The preprocessing cache of this machine.",
        lifespan=lifespan,
        openapi_tags=_TAGS,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirection is no problem document, and goes where the Host says
        dependencies=[Depends(messages.check_request)],
        generate_unique_id_function=_operation_id,
    )
    problems.install(app)
    for router in (
        leases.router(daemon, coordinator),  # first: what is asked most is found soonest
        sessions.router(daemon, coordinator),
        info.router(daemon, coordinator, metrics, maintenance),
        data.router(daemon, coordinator),
        entries.router(daemon),
        entries.recipes(daemon),
        explain.router(daemon, coordinator.misses),
        care.router(daemon),
        tier_api.router(daemon, tier),
        dashboard.router(),
    ):
        app.include_router(router)
    return Middleware(app, daemon.auth, metrics.observe)


def _operation_id(route: APIRoute) -> str:
    return route.name
