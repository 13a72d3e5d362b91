"""What jobs ask for: to open, beat and end sessions, resolve, lease, commit and release (coordinator.py)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from fastapi import APIRouter, Request, Response

from prepcache.errors import BadRequest, Forbidden
from prepcache.protocol import inspection, wire
from prepcached.auth import Caller
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon, Session
from prepcached.leases import Lease
from prepcached.routes import messages
from prepcached.routes.messages import endpoint


def router(daemon: Daemon, coordinator: Coordinator) -> APIRouter:
    api = APIRouter(tags=["sessions"])

    @api.post("/v1/sessions", **endpoint(takes=wire.SessionRequest, gives=wire.SessionAnswer, status=201))
    async def open_session(request: Request) -> Response:
        """Opens a session; it ends with the process that asks."""
        asked, store = await messages.read(request, wire.SessionRequest, daemon), daemon.store
        opened = daemon.open_session(messages.caller(request), asked.name, asked.pid, asked.host)
        order = 0 if coordinator.tier is None else coordinator.tier.order
        answer = wire.SessionAnswer(
            opened.id, opened.token, store.instance, store.root, store.staging, order=order
        )
        return messages.answer(answer, 201)

    @api.post(
        "/v1/sessions/{session_id}/beat",
        **endpoint(takes=wire.BeatRequest, gives=wire.BeatAnswer, acts_for_session=True),
    )
    async def beat(session_id: messages.IdInPath, request: Request) -> Response:
        """Keeps the session and its leases; tells what to let go."""
        acting = _own(session_id, messages.session(request, daemon))
        asked = await messages.read(request, wire.BeatRequest, daemon)
        return messages.answer(await coordinator.beat(acting, asked))

    @api.delete("/v1/sessions/{session_id}", **endpoint(acts_for_session=True, status=204))
    async def close_session(session_id: messages.IdInPath, request: Request) -> Response:
        """Ends the session: its leases, holds and staged files are free."""
        acting = _own(session_id, messages.session(request, daemon))
        daemon.end_session(acting.id, why="closed")
        return Response(status_code=204)

    @api.get("/v1/sessions", **endpoint(gives=inspection.SessionList))
    async def list_sessions(request: Request) -> Response:
        """Who is connected, preprocessing what, how far."""
        held = await daemon.listing(daemon.store.held)
        shown = visible(daemon.sessions.values(), messages.caller(request))
        return messages.answer(inspection.SessionList(seen(shown, daemon, held)))

    return api


def filling(daemon: Daemon, coordinator: Coordinator) -> APIRouter:
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
        given = await coordinator.lease(acting, asked)
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
        done = await coordinator.commit(acting, asked)
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


def _own(session_id: str, acting: Session) -> Session:
    if session_id != acting.id:
        raise Forbidden(f"the header {wire.SESSION_HEADER} names another session than the path")
    return acting


def visible(some: Iterable[Session], caller: Caller) -> list[Session]:
    """The sessions that a caller may see: where users are isolated, his own."""
    return [one for one in some if caller.confined_to is None or one.caller.uid == caller.uid]


def seen(
    some: Iterable[Session], daemon: Daemon, held: Mapping[str, tuple[int, int]]
) -> tuple[inspection.SessionSeen, ...]:
    leases = defaultdict[str, list[Lease]](list)
    for lease in daemon.leases:
        leases[lease.session].append(lease)
    return tuple(
        inspection.SessionSeen(
            session=session.id,
            name=session.name,
            host=session.host,
            pid=session.reported_pid,
            owner=session.caller.uid,
            opened_at=session.opened_at,
            seen_at=time.time() - (daemon.clock() - session.beat_at),
            leases=len(leases[session.id]),
            leased_items=sum(len(lease.items) for lease in leases[session.id]),
            holds=held.get(session.id, (0, 0))[0],
            held_bytes=held.get(session.id, (0, 0))[1],
            declined_items=sum(session.declined.values()),
            progress=tuple(session.progress.values()),
        )
        for session in some
    )
