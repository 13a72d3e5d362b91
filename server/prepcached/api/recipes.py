"""Recipes: what the store knows of how its samples are made."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from prepcache.protocol import inspection
from prepcache.protocol.members import hex64
from prepcached.api import exchange
from prepcached.api.describe import endpoint
from prepcached.daemon import Daemon
from prepcached.store.records import RecipeRecord


def router(daemon: Daemon) -> APIRouter:
    api = APIRouter(tags=["recipes"])

    @api.get("/v1/recipes", **endpoint(gives=inspection.RecipePage))
    async def list_recipes(
        cursor: Annotated[str | None, Query(max_length=512)] = None,
        limit: Annotated[int, Query(ge=1, le=inspection.MAX_PAGE_SIZE)] = inspection.PAGE_SIZE,
    ) -> Response:
        """Recipes with their sizes; one page of them."""
        found, following = await daemon.listing(daemon.store.recipes, cursor=cursor, limit=limit)
        return exchange.answer(inspection.RecipePage(tuple(_told(one) for one in found), following))

    @api.get("/v1/recipes/{digest}", **endpoint(gives=inspection.Recipe))
    async def show_recipe(digest: str) -> Response:
        """One recipe with its readable parts."""
        return exchange.answer(_told(await daemon.quick(daemon.store.recipe, hex64(digest, "digest"))))

    return api


def _told(record: RecipeRecord) -> inspection.Recipe:
    return inspection.Recipe(
        digest=record.digest,
        name=record.name,
        generation=record.generation,
        created_at=record.created_at,
        entries=record.entries,
        size_bytes=record.size_bytes,
        parts=record.parts,
    )
