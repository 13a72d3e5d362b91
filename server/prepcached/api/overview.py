"""The page for people (page.py)."""

from __future__ import annotations

import pwd
import socket
import time
from collections.abc import Iterable

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from prepcached import page
from prepcached.api import exchange, info, sessions
from prepcached.daemon import Daemon
from prepcached.filling import Filling
from prepcached.sessions import Session


def router(daemon: Daemon, filling: Filling) -> APIRouter:
    api = APIRouter()

    @api.get("/", include_in_schema=False)
    async def overview(request: Request) -> HTMLResponse:
        caller = exchange.caller(request)
        stats = await daemon.quick(daemon.store.stats)
        names = await daemon.listing(daemon.store.name_sums, page.MAX_ROWS + 1, caller.confined_to)
        held = await daemon.listing(daemon.store.held)
        visible = sessions.visible(daemon.sessions, caller)
        shown = sorted(visible, key=_rank, reverse=True)[: page.MAX_ROWS]
        users = await daemon.listing(_users, {one.uid for one in shown if one.uid is not None})
        view = page.View(
            info=info.info_of(daemon, stats),
            host=socket.gethostname(),
            stats=info.stats_of(daemon, filling, stats),
            sessions=sessions.seen(shown, daemon, held),
            connected=len(visible),
            names=names,
            users=users,
            now=time.time(),
        )
        return HTMLResponse(page.page(view), headers=page.HEADERS)

    return api


def _rank(session: Session) -> tuple[bool, float]:
    """Who makes something comes first, then who came last."""
    return bool(session.progress), session.opened_at


def _users(uids: Iterable[int]) -> dict[int, str]:
    """Names of users; asks the machine's directories, which may take a while."""
    found = {}
    for uid in uids:
        try:
            found[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            continue
    return found
