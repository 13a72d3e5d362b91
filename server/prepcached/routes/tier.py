"""The shared tier, for administrators: how it does, copy everything, fetch a recipe, collect garbage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from prepcache.errors import Forbidden, NotFound
from prepcache.protocol import inspection
from prepcached.auth import Caller
from prepcached.daemon import Daemon
from prepcached.routes import messages
from prepcached.routes.openapi import endpoint

if TYPE_CHECKING:
    from prepcached.tier.tier import Tier

TOLD_NAMES = 1000


def router(daemon: Daemon, tier: Tier | None) -> APIRouter:
    api = APIRouter(tags=["care"])

    def used() -> Tier:
        if tier is None:
            raise NotFound('this daemon has no tier: set one with --tier URL, or "[tier]" in its TOML file')
        return tier

    @api.get("/v1/tier", **endpoint(gives=inspection.TierStatus))
    async def tier_status() -> Response:
        """The bucket that is shared with other machines, and what came from and went to it."""
        return messages.answer(inspection.TierStatus(**used().status()))

    @api.post("/v1/tier/push", **endpoint(gives=inspection.TierDone))
    async def tier_push(request: Request) -> Response:
        """Copies whatever the bucket lacks; for admins."""
        _check_admin(messages.caller(request))
        return messages.answer(inspection.TierDone(await used().push()))

    @api.post("/v1/tier/pull", **endpoint(takes=inspection.TierPullRequest, gives=inspection.TierDone))
    async def tier_pull(request: Request) -> Response:
        """Fetches all that the bucket has of one recipe; for admins."""
        caller = messages.caller(request)
        _check_admin(caller)
        asked = await messages.read(request, inspection.TierPullRequest, daemon)
        fetched, failed = await used().pull(asked.recipe, caller.scope, caller.owner_uid)
        return messages.answer(inspection.TierDone(fetched, failed))

    @api.post("/v1/tier/gc", **endpoint(takes=inspection.TierGarbageRequest, gives=inspection.TierDone))
    async def tier_gc(request: Request) -> Response:
        """Lists artifacts of the bucket that no manifest names; with `delete`, deletes them; for admins."""
        _check_admin(messages.caller(request))
        asked = await messages.read(request, inspection.TierGarbageRequest, daemon)
        names = await used().garbage(delete=asked.delete)
        return messages.answer(inspection.TierDone(len(names), names=tuple(names[:TOLD_NAMES])))

    return api


def _check_admin(caller: Caller) -> None:
    if not caller.is_admin:
        raise Forbidden("only root, the daemon's user and its admins may change the tier")
