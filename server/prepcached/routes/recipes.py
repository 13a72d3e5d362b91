"""Recipes: what the store knows of how its samples are made."""

from __future__ import annotations

import contextlib
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from prepcache.errors import NotFound
from prepcache.protocol import inspection
from prepcached.auth import Caller
from prepcached.daemon import Daemon
from prepcached.routes import messages
from prepcached.routes.openapi import endpoint
from prepcached.store.records import RecipeRecord
from prepcached.store.store import Store


def router(daemon: Daemon) -> APIRouter:
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
    """The recipe of this digest that a caller sees, first of all his own; raises NotFound.

    Who sees his own entries alone may have some of when all shared, and sees as much of their recipe.
    """
    with contextlib.suppress(NotFound):
        return store.recipe(digest + caller.scope)
    if caller.confined_to is not None:
        return store.recipe(digest, owner=caller.confined_to)
    return store.recipe(digest, any_scope=True)
