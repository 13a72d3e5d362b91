"""Recipes: how samples are made, and why a job missed, against the nearest recipe that has entries."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace

from prepcache.digests import RecipeDigest
from prepcache.errors import BadRequest, NotFound
from prepcache.protocol import explain, inspection
from prepcache.protocol.units import shortened
from prepcached.auth import Caller
from prepcached.coordinator import Miss, Misses
from prepcached.daemon import Daemon
from prepcached.routes import messages
from prepcached.routes.messages import endpoint
from prepcached.store import listing
from prepcached.store.records import RecipeRecord
from prepcached.store.store import Store

SUMMARY_TEXT = 4000  # characters of a summary, less than a message's text may have
WAS_THERE = "it was cached, but has been evicted, purged or found damaged"
NOT_ALL = (
    "some items are new or changed, or an input that the function uses has changed; the line that the job "
    "printed names them"
)
FORGOTTEN = "no job has missed it since the daemon started; the line that the job printed says why"
NOT_COMPARED = "others of this name are cached, but their parts are lost, or too large to be compared"


Subject = tuple[RecipeDigest | None, str, Mapping[str, Any], str, int]
"""A recipe that is explained: digest, name, parts, scope (store/scopes.py), number of its entries."""


def router(daemon: Daemon, all_misses: Mapping[str, Misses]) -> APIRouter:
    api = APIRouter(tags=["inspection"])

    @api.post("/v1/explain", **endpoint(takes=inspection.ExplainRequest, gives=inspection.Explanation))
    async def explain_miss(request: Request) -> Response:
        """Why a recipe's samples were not there: how it differs from the nearest recipe that has some."""
        asked = await messages.read(request, inspection.ExplainRequest, daemon)
        caller = messages.caller(request)
        return messages.answer(await explanation(daemon, all_misses[caller.scope], asked, caller))

    return api


async def explanation(
    daemon: Daemon, misses: Misses, asked: inspection.ExplainRequest, caller: Caller
) -> inspection.Explanation:
    """Why a recipe missed, as the store is now; of a last miss the summary is the reason given first."""
    if sum(given is not None for given in (asked.recipe, asked.key, asked.name)) > 1:
        raise BadRequest("`recipe`, `key` and `name` exclude each other", field="recipe")
    is_given = asked.parts is not None or asked.recipe is not None or asked.key is not None
    missed = None if is_given else next(iter(misses.latest(1, asked.name)), None)
    try:
        told = await daemon.slow(_explain, daemon.store, asked, missed, caller)
    except NotFound:  # a job that stores nothing leaves no recipe either
        if missed is None or not missed.why:
            raise
        recipe = RecipeDigest(missed.recipe)
        told = inspection.Explanation(recipe, missed.name, 0, False, None)
    misses.note_reason(told.recipe, told.summary)
    return told if missed is None else replace(told, summary=missed.why or told.summary, missed_at=missed.at)


def _explain(
    store: Store, asked: inspection.ExplainRequest, missed: Miss | None, caller: Caller
) -> inspection.Explanation:
    digest, full_name, parts, scope, entries = _subject(store, asked, missed, caller)
    recipe = None if digest is None else digest + scope
    with store.index.read() as conn:
        draws = () if recipe is None else listing.draws(conn, recipe)[: inspection.MAX_DRAWS]
        name = shortened(full_name, explain.SHOWN_CHARS)
        told = inspection.Explanation(digest, name, entries, False, None, draws=draws)
        if missed is not None and missed.is_partial:
            return replace(told, is_partial=True, summary=missed.why or NOT_ALL, cue=missed.cue)
        was_there = recipe is not None and not entries and listing.was_filled(conn, recipe)
        if was_there or (missed is not None and missed.why == WAS_THERE):  # it may be filled again by now
            return replace(told, was_there=True, summary=WAS_THERE)
        found = list(listing.relatives(conn, digest, full_name, scope))
    with_parts = {one.recipe: (one, its_parts) for one, its_parts in found if its_parts is not None}
    try:
        best = explain.nearest(parts, [(other, its_parts) for other, (_, its_parts) in with_parts.items()])
    except RecursionError:
        raise BadRequest("the recipe's parts are nested too deeply", field="parts") from None
    if best is None:
        is_guess = missed is None and asked.parts is None and asked.recipe is None and asked.key is None
        nothing = "nothing else" if entries else "nothing"
        none = f"{nothing} of this name is cached yet" if not found else NOT_COMPARED
        return replace(told, summary=FORGOTTEN if is_guess and entries else none)
    nearest, differences = with_parts[RecipeDigest(best[0])][0], best[1]
    return replace(
        told,
        nearest=nearest,
        differences=tuple(differences[: inspection.MAX_DIFFERENCES]),
        more=max(0, len(differences) - inspection.MAX_DIFFERENCES),
        summary=shortened(explain.summary(differences), SUMMARY_TEXT),
    )


def _subject(store: Store, asked: inspection.ExplainRequest, missed: Miss | None, caller: Caller) -> Subject:
    """Whom the request is about; raises NotFound where the store has no such recipe, or not its parts."""
    if asked.parts is not None:
        name = asked.name or asked.parts.get("name")
        name = name if isinstance(name, str) else ""
        return asked.recipe, name, asked.parts, caller.scope, 0
    if asked.key is not None:
        digest: str | None = store.entry(asked.key, caller.confined_to).recipe
    elif asked.recipe is not None:
        digest = asked.recipe
    else:
        with store.index.read() as conn:
            digest = (
                missed.recipe if missed is not None else listing.newest_of(conn, asked.name, caller.scope)
            )
    if digest is None:
        what = "no job" if asked.name is None else f"no job of {asked.name!r}"
        raise NotFound(f"{what} has missed since the daemon started", name=asked.name)
    record = recipe_of(store, digest, caller)
    if record.parts is None:
        raise NotFound(f"the readable parts of recipe {digest} are lost", recipe=digest)
    # Of a recipe that all shared others' entries are not told of to who sees his own alone.
    scope = record.scope if caller.confined_to is None else caller.scope
    return record.digest, record.name, record.parts, scope, record.entries


def recipes(daemon: Daemon) -> APIRouter:
    api = APIRouter(tags=["recipes"])

    @api.get("/v1/recipes", **endpoint(gives=inspection.RecipePage))
    async def list_recipes(
        request: Request,
        cursor: Annotated[str | None, Query(max_length=512)] = None,
        limit: Annotated[int, Query(ge=1, le=inspection.MAX_PAGE_SIZE)] = inspection.PAGE_SIZE,
        digest: Annotated[str | None, Query(description="the beginning of its digest")] = None,
    ) -> Response:
        """Recipes with their sizes; one page of them."""
        caller = messages.caller(request)
        scope = None if caller.confined_to is None else caller.scope
        prefix = messages.hex_prefix(digest, "digest")

        def page() -> Response:
            found, following = daemon.store.recipes(cursor=cursor, limit=limit, scope=scope, prefix=prefix)
            return messages.answer(
                inspection.RecipePage(
                    tuple(messages.taken_over(inspection.Recipe, one) for one in found), following
                )
            )

        return await daemon.listing(page)

    @api.get("/v1/recipes/{digest}", **endpoint(gives=inspection.Recipe))
    async def show_recipe(digest: messages.HexInPath, request: Request) -> Response:
        """One recipe with its readable parts."""
        found = await daemon.quick(recipe_of, daemon.store, digest, messages.caller(request))
        return messages.answer(messages.taken_over(inspection.Recipe, found))

    return api


def recipe_of(store: Store, digest: str, caller: Caller) -> RecipeRecord:
    """The recipe of this digest that a caller sees, first of all his own; raises NotFound. Who sees only his
    own entries may have some from when all shared, and sees as much of their recipe."""
    with contextlib.suppress(NotFound):
        return store.recipe(digest + caller.scope)
    if caller.confined_to is not None:
        return store.recipe(digest, owner=caller.confined_to)
    return store.recipe(digest, any_scope=True)
