"""Sessions: open, keep, close, and who is connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastapi import APIRouter, Request, Response

from prepcache.errors import Forbidden
from prepcache.protocol import inspection, wire
from prepcached.auth import Caller
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon
from prepcached.routes import messages
from prepcached.routes.openapi import endpoint
from prepcached.sessions import Session
from prepcached.store import scopes
from prepcached.store.holds import NOTHING_HELD, Held


def router(daemon: Daemon, coordinator: Coordinator) -> APIRouter:
    api = APIRouter(tags=["sessions"])

    @api.post("/v1/sessions", **endpoint(takes=wire.SessionRequest, gives=wire.SessionAnswer, status=201))
    async def open_session(request: Request) -> Response:
        """Opens a session; it ends with the process that asks."""
        asked = await messages.read(request, wire.SessionRequest, daemon)
        opened = daemon.open_session(messages.caller(request), asked.name, asked.pid, asked.host)
        told = wire.SessionAnswer(
            session=opened.id,
            token=opened.token,
            instance=daemon.store.instance,
            root=daemon.store.root,
            staging=daemon.store.staging,
        )
        return messages.answer(told, 201)

    @api.post(
        "/v1/sessions/{session_id}/beat",
        **endpoint(takes=wire.BeatRequest, gives=wire.BeatAnswer, acts_for_session=True),
    )
    async def beat(session_id: messages.IdInPath, request: Request) -> Response:
        """Keeps the session and its leases; tells what to let go and who waits."""
        acting = _own(session_id, messages.session(request, daemon))
        return messages.answer(
            await coordinator.beat(acting, await messages.read(request, wire.BeatRequest, daemon))
        )

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
        shown = visible(daemon.sessions, messages.caller(request))
        return messages.answer(inspection.SessionList(seen(shown, daemon, held)))

    return api


def _own(session_id: str, acting: Session) -> Session:
    if session_id != acting.id:
        raise Forbidden(f"the header {wire.SESSION_HEADER} names another session than the path")
    return acting


def visible(some: Iterable[Session], caller: Caller) -> list[Session]:
    """The sessions that a caller may see: where users are isolated, his own."""
    return [one for one in some if caller.confined_to is None or one.uid == caller.uid]


def seen(
    some: Iterable[Session], daemon: Daemon, held: Mapping[str, Held]
) -> tuple[inspection.SessionSeen, ...]:
    """Sessions as others may see them."""
    leases, waits = daemon.leases.by_session(), daemon.leases.waits()
    return tuple(
        inspection.SessionSeen(
            session=session.id,
            name=session.name,
            host=session.host,
            pid=session.reported_pid,
            owner=session.uid,
            opened_at=session.opened_at,
            seen_at=daemon.wall_time(session.beat_at),
            leases=len(leases.get(session.id, ())),
            leased_items=sum(len(lease.items) for lease in leases.get(session.id, ())),
            holds=held.get(session.id, NOTHING_HELD).artifacts,
            held_bytes=held.get(session.id, NOTHING_HELD).disk_bytes,
            declined_items=sum(session.declined.values()),
            progress=tuple(session.progress.values()),
            waits=tuple(
                inspection.Wait(scopes.digest(recipe), tuple(sorted(holders)))
                for (waiting, recipe), holders in waits.items()
                if waiting == session.id
            ),
        )
        for session in some
    )
