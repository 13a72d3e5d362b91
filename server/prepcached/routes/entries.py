"""Entries: listing, showing, pinning and removing; care of the store, and of the shared tier."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from prepcache.digests import Key
from prepcache.errors import BadRequest, Forbidden, NotFound
from prepcache.protocol import inspection
from prepcache.protocol.units import count_text, size_text
from prepcached.auth import TOKEN_UID, Caller, owner_name
from prepcached.daemon import Daemon
from prepcached.routes import messages
from prepcached.routes.messages import endpoint
from prepcached.store.records import Filter
from prepcached.store.store import Store

if TYPE_CHECKING:
    from prepcached.tier.tier import Tier

LOG = logging.getLogger(__name__)
MAX_NAMES = 10_000  # names that are summed up
TOLD = 1000  # keys, or names of objects, in an answer


def router(daemon: Daemon) -> APIRouter:
    api = APIRouter(tags=["entries"])

    @api.get("/v1/entries", **endpoint(query=inspection.EntryQuery, gives=inspection.EntryPage))
    async def list_entries(request: Request) -> Response:
        """Entries that pass all filters given; one page of them."""
        asked = messages.query(request, inspection.EntryQuery)
        wanted = messages.taken_over(Filter, asked, keys=None)
        seen = messages.caller(request).confined_to
        if seen is not None and wanted.owner not in (None, seen):
            return messages.answer(inspection.EntryPage((), None))
        wanted = wanted if seen is None else replace(wanted, owner=seen)

        def page() -> Response:  # in the thread: 1,000 entries would keep the event loop for 100 ms
            found = daemon.store.entries(wanted, sort=asked.sort, cursor=asked.cursor, limit=asked.limit)
            return messages.answer(found)

        return await daemon.listing(page)

    @api.get("/v1/names", **endpoint(query=inspection.NameQuery, gives=inspection.Names))
    async def sum_names(request: Request) -> Response:
        """What the entries of each recipe name come to, the largest first."""
        limit = messages.query(request, inspection.NameQuery).limit
        owner = messages.caller(request).confined_to
        found = await daemon.listing(daemon.store.name_sums, MAX_NAMES, owner)
        found.sort(key=lambda one: one.size_bytes, reverse=True)
        largest = tuple(found[:limit])
        return messages.answer(inspection.Names(largest, len(found) - len(largest)))

    @api.get("/v1/entries/{key}", **endpoint(gives=inspection.Entry))
    async def show_entry(key: messages.HexInPath, request: Request) -> Response:
        """One entry."""
        return messages.answer(await entry_of(daemon, request, key))

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
        return messages.answer(await set_pin(daemon, request, key, is_pinned=True))

    @api.delete("/v1/entries/{key}/pin", **endpoint(gives=inspection.Entry))
    async def unpin(key: messages.HexInPath, request: Request) -> Response:
        """Lets an entry be evicted again."""
        return messages.answer(await set_pin(daemon, request, key, is_pinned=False))

    return api


def log_purge(caller: Caller, gone: inspection.Purged) -> None:
    if gone.entries:
        entries, size = count_text(gone.entries, "entry", "entries"), size_text(gone.size_bytes)
        LOG.info("%s purged %s, %s", owner_name(caller.owner_uid), entries, size)


async def set_pin(daemon: Daemon, request: Request, key: str, *, is_pinned: bool) -> inspection.Entry:
    owner = await owner_of(daemon, request, key)
    scope = messages.caller(request).scope
    return await daemon.slow(daemon.store.set_pin, key, is_pinned, owner, scope)


async def entry_of(daemon: Daemon, request: Request, key: str) -> inspection.Entry:
    """The entry of this key that the caller sees: where several users have one, that which he shares in."""
    caller = messages.caller(request)
    return await daemon.quick(daemon.store.entry, key, caller.confined_to, caller.scope)


async def owner_of(daemon: Daemon, request: Request, key: str) -> int:
    """The owner of an entry; raises Forbidden where it is another's, and the caller no admin."""
    entry = await entry_of(daemon, request, key)
    owner = TOKEN_UID if entry.owner is None else entry.owner
    messages.caller(request).check_may_change(owner, f"entry {entry.key[:12]} ({entry.name})")
    return owner


def care(daemon: Daemon, tier: Tier | None) -> APIRouter:
    api = APIRouter(tags=["care"])

    def the_tier() -> Tier:
        if tier is None:
            raise NotFound('this daemon has no bucket: run it with --tier URL, or "[tier]" in its TOML file')
        return tier

    @api.post("/v1/purge", **endpoint(takes=inspection.PurgeRequest, gives=inspection.Purged))
    async def purge(request: Request) -> Response:
        """Removes what passes all filters given, held or not; of others' entries only for admins.

        A user who is not an admin purges only his own entries: his uid is added to the filters, and a key of
        another user's is refused. With `free_bytes`, the least recently used entries go first until so much
        is free; pinned entries, and those that jobs read, stay. A dry run lists the first entries that would
        go, the least recently used first.
        """
        asked = await messages.read(request, inspection.PurgeRequest, daemon)
        caller = messages.caller(request)
        wanted = narrowed(_purged(asked), caller)
        for key in () if caller.is_admin else asked.keys or ():
            with contextlib.suppress(NotFound):
                await owner_of(daemon, request, key)
        gone = await daemon.slow(
            daemon.store.purge, wanted, dry_run=asked.dry_run, free_bytes=asked.free_bytes
        )
        listed: tuple[inspection.Entry, ...] = ()
        if asked.dry_run:
            listed = await daemon.listing(_first_to_go, daemon.store, wanted, asked.free_bytes, gone)
        else:
            log_purge(caller, gone)
        return messages.answer(replace(gone, keys=gone.keys[:TOLD], listed=listed))

    @api.post("/v1/verify", **endpoint(takes=inspection.VerifyRequest, gives=inspection.Verified))
    async def verify(request: Request) -> Response:
        """Reads entries whole and compares their digests; what is damaged is removed.

        With `differs`, a job says that it made other samples: the named entries are removed unread.
        """
        asked = await messages.read(request, inspection.VerifyRequest, daemon)
        if asked.differs:
            return messages.answer(await _take_away(daemon, asked, request))
        owner = messages.caller(request).confined_to
        return messages.answer(await daemon.verify(asked.keys, request.is_disconnected, owner))

    @api.post("/v1/check", **endpoint(gives=inspection.Checked))
    async def check(request: Request) -> Response:
        """Compares the index with the disk, and changes nothing; for admins."""
        _check_admin(messages.caller(request))
        found = await daemon.check()
        findings = tuple(inspection.Finding(one.code, one.what) for one in found[: inspection.MAX_FINDINGS])
        return messages.answer(inspection.Checked(findings, len(found) - len(findings)))

    @api.get("/v1/tier", **endpoint(gives=inspection.TierStatus))
    async def tier_status() -> Response:
        """The bucket that is shared with other machines, and what came from and went to it."""
        return messages.answer(inspection.TierStatus(**the_tier().status()))

    @api.post("/v1/tier/push", **endpoint(gives=inspection.TierDone))
    async def tier_push(request: Request) -> Response:
        """Copies whatever the bucket lacks; for admins."""
        _check_admin(messages.caller(request))
        return messages.answer(inspection.TierDone(await the_tier().push()))

    @api.post("/v1/tier/pull", **endpoint(takes=inspection.TierPullRequest, gives=inspection.TierDone))
    async def tier_pull(request: Request) -> Response:
        """Fetches all that the bucket has of one recipe; for admins."""
        caller = messages.caller(request)
        _check_admin(caller)
        asked = await messages.read(request, inspection.TierPullRequest, daemon)
        fetched, failed = await the_tier().pull(asked.recipe, caller.scope, caller.owner_uid)
        return messages.answer(inspection.TierDone(fetched, failed))

    @api.post("/v1/tier/gc", **endpoint(takes=inspection.TierGarbageRequest, gives=inspection.TierDone))
    async def tier_gc(request: Request) -> Response:
        """Lists artifacts of the bucket that no manifest names; with `delete`, deletes them; for admins."""
        _check_admin(messages.caller(request))
        asked = await messages.read(request, inspection.TierGarbageRequest, daemon)
        names = await the_tier().garbage(delete=asked.delete)
        return messages.answer(inspection.TierDone(len(names), names=tuple(names[:TOLD])))

    return api


def _check_admin(caller: Caller) -> None:
    if not caller.is_admin:
        raise Forbidden("only root, the daemon's user and its admins may do this")


async def _take_away(
    daemon: Daemon, asked: inspection.VerifyRequest, request: Request
) -> inspection.Verified:
    if not asked.keys:
        raise BadRequest("`differs` needs `keys`", field="keys")
    gone: list[Key] = []
    for key in asked.keys:
        with contextlib.suppress(NotFound):  # it was evicted meanwhile
            # Of several users that have it, the one whose entry the job was given.
            owner = await owner_of(daemon, request, key)
            gone += await daemon.slow(daemon.store.remove_differing, [key], asked.differs, owner)
    return inspection.Verified(0, 0, tuple(gone))


def _purged(asked: inspection.PurgeRequest) -> Filter:
    wanted = messages.taken_over(Filter, asked)
    is_narrowed = wanted != Filter() or asked.free_bytes is not None
    if not is_narrowed and not asked.all:
        raise BadRequest('to purge everything, send {"all": true} (in Python: everything=True)', field="all")
    if is_narrowed and asked.all:
        raise BadRequest("`all` and a filter exclude each other", field="all")
    if asked.keys is not None and asked.free_bytes is not None:
        raise BadRequest("`free_bytes` and `keys` exclude each other", field="free_bytes")
    return wanted


def _first_to_go(
    store: Store, wanted: Filter, free_bytes: int | None, gone: inspection.Purged
) -> tuple[inspection.Entry, ...]:
    if free_bytes is not None:
        wanted = replace(wanted, keys=tuple(gone.keys[: inspection.PAGE_SIZE]))
    return store.entries(wanted, sort="used_at", limit=inspection.PAGE_SIZE).entries


def narrowed(wanted: Filter, caller: Caller) -> Filter:
    """The filter, for what the caller may purge: all of an admin's wish, of others' what they own."""
    if caller.is_admin:
        return wanted
    if wanted.owner is not None and wanted.owner != caller.owner_uid:
        raise Forbidden(f"only uid {wanted.owner}, root, and the daemon's admins may purge these entries")
    return replace(wanted, owner=caller.owner_uid)
