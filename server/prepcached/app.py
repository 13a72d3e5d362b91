"""The app: every endpoint over one daemon, behind what every request passes first.

Invariants:
    1. Nothing is global: an app is made for a daemon, which stops at the end of the app's lifespan.
    2. The caller is known (auth.py) before a byte of the body is read.
    3. Every exception ends here, in a problem document.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import prepcache
from prepcache.errors import PrepcacheError, ProtocolMismatch
from prepcache.protocol import wire
from prepcache.protocol.units import span_text
from prepcached import problems
from prepcached.auth import Auth
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon
from prepcached.dashboard.pages import Dashboard
from prepcached.http_protocol import PeerProtocol, Slots, is_look
from prepcached.log import REQUEST_ID
from prepcached.maintenance import Maintenance
from prepcached.metrics import Metrics
from prepcached.routes import data, entries, explain, info, messages, sessions

if TYPE_CHECKING:
    from prepcached.tier.tier import Tier

LOG = logging.getLogger(__name__)
_PROTOCOL_HEADER = wire.PROTOCOL_HEADER.lower().encode()
_TAGS = ("the daemon", "entries", "recipes", "inspection", "care", "sessions", "data", "filling")
"""In the order in which people ask: to look and to purge first, what only jobs call last."""


def create_app(daemon: Daemon, maintenance: Maintenance, slots: Slots, tier: Tier | None) -> Middleware:
    """The ASGI app. The daemon, the store's background work and the tier stop with it."""
    coordinator = Coordinator(daemon)
    coordinator.tier = tier
    dashboard = Dashboard(daemon, coordinator)
    metrics = Metrics(daemon, coordinator, slots)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
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
            await asyncio.to_thread(maintenance.stop)
            await daemon.stop()

    app = messages.Described(
        title="prepcached",
        version=prepcache.__version__,
        summary="The preprocessing cache of this machine.",
        lifespan=lifespan,
        openapi_tags=[{"name": one} for one in _TAGS],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirection is no problem document, and goes where the Host says
        dependencies=[Depends(messages.check_request)],
        generate_unique_id_function=lambda route: route.name,
    )
    problems.install(app)
    for router in (
        sessions.filling(daemon, coordinator),  # first: what is asked most is found soonest
        sessions.router(daemon, coordinator),
        info.router(daemon, coordinator, metrics, maintenance),
        data.router(daemon, coordinator),
        entries.router(daemon),
        explain.recipes(daemon),
        explain.router(daemon, coordinator.misses),
        entries.care(daemon, tier),
        dashboard.router(),
    ):
        app.include_router(router)
    return Middleware(app, daemon.auth, metrics.observe)


class Middleware:
    """What every request passes before the app sees it, and every answer after; `observe` counts them."""

    def __init__(self, app: ASGIApp, auth: Auth, observe: Callable[[Scope, int, float], None]) -> None:
        self._app = app
        self._auth = auth
        self._observe = observe
        self.uses = 0
        """Requests so far that did more than look, and those of them that are not answered yet."""
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, status, is_answered = secrets.token_hex(4), 0, False

        async def answer(message: Message) -> None:
            nonlocal status, is_answered
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            else:
                is_answered = not message.get("more_body")
            await send(message)

        REQUEST_ID.set(request_id)  # each request is a task, and so has a context, of its own
        is_use = not is_look(scope)
        self.uses += is_use
        self.under_way += is_use
        if scope["method"] == "HEAD" and not scope["path"].endswith("/data"):
            scope = {**scope, "method": "GET"}  # the connection sends no body
        began = perf_counter()
        line = f"{scope['method']} {scope['path'][:200]}"
        try:
            self._admit(scope)
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            LOG.debug("%s: the client hung up", line)
        except PrepcacheError as error:
            await problems.response(error)(scope, receive, answer)
        except Exception as exc:
            if not status:
                await problems.unforeseen(exc, line)(scope, receive, answer)
            elif not is_answered:
                LOG.error("%s: the answer was cut short", line, exc_info=exc)
                raise
        except asyncio.CancelledError:
            connection = scope["state"].get("connection")
            if not isinstance(connection, PeerProtocol) or not connection.abandon(scope["state"]):
                raise
            LOG.warning("%s: interrupted by the shutdown after %s", line, span_text(perf_counter() - began))
        finally:
            self.under_way -= is_use
        self._observe(scope, status, perf_counter() - began)

    def _admit(self, scope: Scope) -> None:
        port = scope["server"][1] if scope["server"] else None
        scope["state"]["caller"] = self._auth.caller(
            scope["state"]["peer"], scope["path"], scope["headers"], port
        )
        for name, value in scope["headers"]:
            if name == _PROTOCOL_HEADER and value != str(wire.PROTOCOL).encode():
                theirs = value[:20].decode("latin-1")
                raise ProtocolMismatch(
                    f"the client speaks protocol {theirs}, this daemon of prepcache {prepcache.__version__} "
                    f"speaks {wire.PROTOCOL}: run `prepcached stop`, and the next job starts a daemon of its "
                    "own version; a service must have the same version as its jobs",
                    protocol=wire.PROTOCOL,
                )
