"""Resolve, lease, commit, release: the client's protocol (coordinator.py)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from prepcache.errors import (
    BadRequest,
)
from prepcache.protocol import wire
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon
from prepcached.routes import messages
from prepcached.routes.openapi import endpoint


def router(daemon: Daemon, coordinator: Coordinator) -> APIRouter:
    api = APIRouter(tags=["filling"])

    @api.post("/v1/resolve", **endpoint(takes=wire.ResolveRequest, gives=wire.Resolved))
    async def resolve(request: Request) -> Response:
        """The artifacts of a recipe, new since a generation; held for the session where `hold` is true."""
        asked = await messages.read(request, wire.ResolveRequest, daemon, wire.MAX_PARTS_BYTES)
        acting = messages.session(request, daemon) if asked.hold else None
        found = await coordinator.resolve(acting, asked, messages.caller(request).scope)
        return await messages.big_answer(found, len(found.artifacts), daemon)

    @api.post(
        "/v1/leases", **endpoint(takes=wire.LeaseRequest, gives=wire.LeaseAnswer, acts_for_session=True)
    )
    async def lease(request: Request) -> Response:
        """Leave to preprocess some items; or look again; or who has them. Waits up to `wait_s` for any."""
        acting = messages.session(request, daemon)
        asked = await messages.read(request, wire.LeaseRequest, daemon)

        given = await coordinator.lease(acting, asked, messages.waiting(request))
        artifacts = len(given.look_again.artifacts) if given.look_again else 0
        return await messages.big_answer(given, artifacts + len(given.granted) // 100, daemon)

    @api.post(
        "/v1/leases/{lease_id}/commit",
        **endpoint(takes=wire.CommitRequest, gives=wire.Committed, acts_for_session=True),
    )
    async def commit(lease_id: messages.IdInPath, request: Request) -> Response:
        """Takes staged artifacts; the items that they hold are no longer leased."""
        acting = messages.session(request, daemon)
        asked = await messages.read(request, wire.CommitRequest, daemon)
        if not asked.leases or asked.leases[0].id != lease_id:
            raise BadRequest("leases[0].id must equal the lease in the path", field="leases[0].id")
        done = await coordinator.commit(acting, messages.caller(request).owner_uid, asked)
        return messages.answer(done)

    @api.delete(
        "/v1/leases/{lease_id}", **endpoint(takes=wire.ReleaseRequest, acts_for_session=True, status=204)
    )
    async def release(lease_id: messages.IdInPath, request: Request) -> Response:
        """Gives a lease back: its items are free."""
        acting = messages.session(request, daemon)
        asked = await messages.read(request, wire.ReleaseRequest, daemon)
        daemon.leases.release(acting.id, lease_id, asked.token)
        return Response(status_code=204)

    return api
