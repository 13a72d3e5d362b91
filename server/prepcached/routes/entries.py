"""Entries: listing, showing, and removing or pinning one; recipes: how their samples are made."""

from __future__ import annotations

import contextlib
import logging
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace

from prepcache.errors import BadRequest, NotFound
from prepcache.protocol import SORTS, inspection
from prepcache.protocol.units import count_text, size_text
from prepcached.auth import TOKEN_UID, Caller, owner_name
from prepcached.daemon import Daemon
from prepcached.routes import messages
from prepcached.routes.messages import endpoint
from prepcached.store.records import Filter, RecipeRecord
from prepcached.store.store import Store

LOG = logging.getLogger(__name__)
MAX_NAMES = 10_000
"""Names that are summed up."""


def router(daemon: Daemon) -> APIRouter:
    api = APIRouter(tags=["entries"])

    @api.get("/v1/entries", **endpoint(gives=inspection.EntryPage))
    async def list_entries(
        request: Request,
        name: Annotated[str | None, Query(max_length=256, description="a prefix where it ends in *")] = None,
        recipe: Annotated[str | None, Query(description="the digest, or its first digits")] = None,
        owner: Annotated[int | None, Query(ge=0, le=2**32)] = None,
        older_than_s: Annotated[float | None, Query(ge=0, le=1e12)] = None,
        produced_by: Annotated[str | None, Query(max_length=256)] = None,
        is_pinned: bool | None = None,
        key: Annotated[str | None, Query(description="the beginning of its key")] = None,
        sort: Annotated[
            str, Query(description=f"one of {', '.join(SORTS)}; - before it reverses")
        ] = "-used_at",
        cursor: Annotated[str | None, Query(max_length=512)] = None,
        limit: Annotated[int, Query(ge=1, le=inspection.MAX_PAGE_SIZE)] = inspection.PAGE_SIZE,
    ) -> Response:
        """Entries that pass all filters given; one page of them."""
        if sort.removeprefix("-") not in SORTS:
            raise BadRequest(
                f"sort must be one of {', '.join(SORTS)}, with - before it to turn", field="sort"
            )
        recipe = messages.hex_prefix(recipe, "recipe")
        seen = messages.caller(request).confined_to
        if seen is not None and owner not in (None, seen):
            return messages.answer(inspection.EntryPage((), None))
        wanted = Filter(
            name=name,
            recipe=recipe,
            owner=owner if seen is None else seen,
            older_than_s=older_than_s,
            produced_by=produced_by,
            is_pinned=is_pinned,
            key=messages.hex_prefix(key, "key"),
        )

        def page() -> Response:  # in the thread: 1,000 entries would keep the event loop for 100 ms
            found = daemon.store.entries(wanted, sort=sort, cursor=cursor, limit=limit)
            return messages.answer(replace(found, entries=tuple(map(told, found.entries))))

        return await daemon.listing(page)

    @api.get("/v1/names", **endpoint(gives=inspection.Names))
    async def sum_names(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=inspection.MAX_PAGE_SIZE)] = inspection.PAGE_SIZE,
    ) -> Response:
        """What the entries of each recipe name come to, the largest first."""
        owner = messages.caller(request).confined_to
        found = await daemon.listing(daemon.store.name_sums, MAX_NAMES, owner)
        found.sort(key=lambda one: one.size_bytes, reverse=True)
        largest = tuple(found[:limit])
        return messages.answer(inspection.Names(largest, len(found) - len(largest)))

    @api.get("/v1/entries/{key}", **endpoint(gives=inspection.Entry))
    async def show_entry(key: messages.HexInPath, request: Request) -> Response:
        """One entry."""
        return messages.answer(told(await found(daemon, request, key)))

    @api.delete("/v1/entries/{key}", **endpoint(gives=inspection.Purged))
    async def remove_entry(key: messages.HexInPath, request: Request) -> Response:
        """Removes one entry, held or not: jobs that read it keep their map until they drop it."""
        owner = await owner_of(daemon, request, key)
        # Its owner's: another user's may take its place meanwhile.
        gone = await daemon.slow(daemon.store.purge, Filter(keys=(key,), owner=owner))
        log_purge(messages.caller(request), gone)
        return messages.answer(gone)

    @api.put("/v1/entries/{key}/pin", **endpoint(gives=inspection.Entry))
    async def pin(key: messages.HexInPath, request: Request) -> Response:
        """Keeps an entry from eviction."""
        return messages.answer(told(await set_pin(daemon, request, key, is_pinned=True)))

    @api.delete("/v1/entries/{key}/pin", **endpoint(gives=inspection.Entry))
    async def unpin(key: messages.HexInPath, request: Request) -> Response:
        """Lets an entry be evicted again."""
        return messages.answer(told(await set_pin(daemon, request, key, is_pinned=False)))

    return api


def log_purge(caller: Caller, gone: inspection.Purged) -> None:
    if gone.entries:
        entries, size = count_text(gone.entries, "entry", "entries"), size_text(gone.size_bytes)
        LOG.info("%s purged %s, %s", owner_name(caller.owner_uid), entries, size)


async def set_pin(daemon: Daemon, request: Request, key: str, *, is_pinned: bool) -> inspection.Entry:
    """Pins or unpins an entry that the caller may change."""
    owner = await owner_of(daemon, request, key)
    scope = messages.caller(request).scope
    return await daemon.slow(daemon.store.set_pin, key, is_pinned, owner, scope)


async def found(daemon: Daemon, request: Request, key: str) -> inspection.Entry:
    """The entry of this key that the caller sees: where several users have one, that which he shares in."""
    caller = messages.caller(request)
    return await daemon.quick(daemon.store.entry, key, caller.confined_to, caller.scope)


async def owner_of(daemon: Daemon, request: Request, key: str) -> int:
    """The owner of an entry that the caller may purge and pin."""
    entry = await found(daemon, request, key)
    return check_owned(entry, messages.caller(request))


def check_owned(entry: inspection.Entry, caller: Caller) -> int:
    """The owner of an entry; raises Forbidden where it is another's, and the caller no admin."""
    owner = TOKEN_UID if entry.owner is None else entry.owner
    caller.check_may_change(owner, f"entry {entry.key[:12]} ({entry.name})")
    return owner


def told(entry: inspection.Entry) -> inspection.Entry:
    """The owner is null for what came over TCP."""
    return replace(entry, owner=None) if entry.owner == TOKEN_UID else entry


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
