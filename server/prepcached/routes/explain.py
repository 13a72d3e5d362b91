"""Recipes: how samples are made, and why a job missed, against the nearest recipe that has entries."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
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
from prepcached.store.records import RecipeRecord
from prepcached.store.store import Store

NO_DIGEST = RecipeDigest("")  # of parts whose recipe the caller does not name
SUMMARY_TEXT = 4000  # characters of a summary, less than a message's text may have
WAS_THERE = "it was cached, but has been evicted, purged or found damaged"
NOT_COMPARED = "others of this name are cached, but what counted in them is lost, or too large to compare"


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
    missed = None
    if asked.parts is None and asked.recipe is None and asked.key is None:
        missed = next(iter(misses.latest(1, asked.name)), None)
        if missed is None:
            what = "no job" if asked.name is None else f"no job of {asked.name!r}"
            raise NotFound(f"{what} has missed since the daemon started", name=asked.name)
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
    of = _subject(store, asked, missed, caller)
    digest = of.digest or None
    told = inspection.Explanation(digest, shortened(of.name, explain.SHOWN_CHARS), of.entries, False, None)
    if missed is not None and missed.is_partial:
        return replace(told, is_partial=True, summary=missed.why, cue=missed.cue)
    had_entries, found = store.relatives(digest, of.name, of.scope)
    # What was there at the miss may be filled again by now.
    if (had_entries and not of.entries) or (missed is not None and missed.why == WAS_THERE):
        return replace(told, was_there=True, summary=WAS_THERE)
    with_parts = {one.recipe: (one, its_parts) for one, its_parts in found if its_parts is not None}
    try:
        best = explain.nearest(of.parts or {}, [(other, parts) for other, (_, parts) in with_parts.items()])
    except RecursionError:
        raise BadRequest("the recipe's parts are nested too deeply", field="parts") from None
    if best is None:
        nothing = "nothing else" if of.entries else "nothing"
        return replace(told, summary=NOT_COMPARED if found else f"{nothing} of this name is cached yet")
    nearest, differences = with_parts[RecipeDigest(best[0])][0], best[1]
    return replace(
        told,
        nearest=nearest,
        differences=tuple(differences[: inspection.MAX_DIFFERENCES]),
        more=max(0, len(differences) - inspection.MAX_DIFFERENCES),
        summary=shortened(explain.summary(differences), SUMMARY_TEXT),
    )


def _subject(
    store: Store, asked: inspection.ExplainRequest, missed: Miss | None, caller: Caller
) -> RecipeRecord:
    """What the request is about; raises NotFound where the store has no such recipe, or not its parts."""
    if asked.parts is not None:
        given = asked.name or asked.parts.get("name")
        name = given if isinstance(given, str) else ""
        return RecipeRecord(asked.recipe or NO_DIGEST, name, 0, 0.0, 0, 0, asked.parts, caller.scope)
    if asked.key is not None:
        digest: str = store.entry(asked.key, caller.confined_to).recipe
    else:
        digest = asked.recipe if missed is None else missed.recipe  # type: ignore[assignment]
    record = recipe_of(store, digest, caller)
    if record.parts is None:
        raise NotFound(f"the record of what counts in recipe {digest} is lost", recipe=digest)
    return record


def recipes(daemon: Daemon) -> APIRouter:
    api = APIRouter(tags=["recipes"])

    @api.get("/v1/recipes", **endpoint(query=inspection.RecipeQuery, gives=inspection.RecipePage))
    async def list_recipes(request: Request) -> Response:
        """Recipes with their sizes; one page of them."""
        asked, caller = messages.query(request, inspection.RecipeQuery), messages.caller(request)
        scope = None if caller.confined_to is None else caller.scope

        def page() -> Response:
            found, following = daemon.store.recipes(
                cursor=asked.cursor, limit=asked.limit, scope=scope, prefix=asked.digest
            )
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
    """The recipe of this digest that a caller sees, first of all his own; raises NotFound."""
    return store.recipe(digest + caller.scope, any_scope=caller.confined_to is None)
