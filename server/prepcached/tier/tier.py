"""The tier of one daemon: reading through, writing back, and what an administrator asks of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable
from typing import Any, TypeVar

from prepcache.digests import is_hex64
from prepcache.errors import BadRequest, NotFound, StoreError
from prepcached.daemon import Daemon
from prepcached.store import scopes
from prepcached.tier.bucket import Absent, Bucket, CouldNotTell, Damaged
from prepcached.tier.lead import Lead
from prepcached.tier.manifests import PREFIX, Manifests
from prepcached.tier.outage import end
from prepcached.tier.read_through import ReadThrough
from prepcached.tier.upstream import Upstream
from prepcached.tier.write_back import WriteBack

T = TypeVar("T")
LOG = logging.getLogger(__name__)

COUNTED = ("hits", "hit_bytes", "misses", "bad", "written", "written_bytes", "dropped")
"""Since the start: artifacts fetched, requests for work whose items the bucket lacked, artifacts whose bytes
were not what their names say, artifacts copied, recipes that found no room in the queue."""
MAX_ARTIFACT_BYTES = 64 << 30
MAX_LISTED = 1_000_000
"""Objects that `gc` looks at in one go."""
MAX_RECIPE_BYTES = 8 << 20
GARBAGE_AGE_S = 24 * 3600.0
"""Far longer than a copy takes from its bytes to its manifest, and than clocks differ."""


class Tier:
    """One daemon's part in a shared bucket.

    Args:
        is_read_only: nothing is ever written into the bucket.
        lead: the daemon that leases to all machines, if there is one.
    """

    def __init__(
        self, daemon: Daemon, bucket: Bucket, *, is_read_only: bool, lead: Lead | None = None
    ) -> None:
        self.daemon = daemon
        self.bucket = bucket
        self.manifests = Manifests(bucket, MAX_ARTIFACT_BYTES, daemon.clock)
        self._counted = Counter(dict.fromkeys(COUNTED, 0))
        self.reading = ReadThrough(daemon, self.manifests, self._counted)
        self.writing = None if is_read_only else WriteBack(daemon, self.manifests, self._counted)
        self.upstream: Upstream | None = None
        if lead is not None and self.writing is not None:
            self.upstream = Upstream(daemon, lead, self.manifests, self.reading, self.writing)

    def start(self) -> None:
        outage = self.manifests.outage
        self._watcher = asyncio.get_running_loop().create_task(outage.watch(self._ask))
        if self.writing is not None:
            self.writing.start()
        if self.upstream is not None:
            self.upstream.start()

    async def stop(self) -> None:
        await end([self._watcher])
        self.reading.stop()
        if self.writing is not None:
            await self.writing.stop()
        if self.upstream is not None:
            await self.upstream.stop()

    def note_committed(self, recipe: str) -> None:
        """A job's artifacts of a recipe, scoped, are to be copied into the bucket."""
        if self.writing is not None:
            self.writing.note(recipe)

    def status(self) -> dict[str, Any]:
        """What `GET /v1/tier` answers."""
        writing, upstream, outage = self.writing, self.upstream, self.manifests.outage
        found: dict[str, Any] = {
            **self._counted,
            "url": self.bucket.url,
            "mode": "read-only" if writing is None else "read-write",
            "is_paused": not outage.is_usable,
            "could_not_tell": outage.failures,
            "last_failure": outage.last_failure,
            "waiting": 0 if writing is None else writing.waiting,
        }
        if upstream is not None:
            found |= {
                "upstream": upstream.lead.url,
                "is_upstream_away": upstream.is_away,
                "upstream_failures": upstream.outage.failures,
                "last_upstream_failure": upstream.outage.last_failure,
            }
        return found

    async def push(self) -> int:
        """Copies whatever the bucket lacks of all recipes here; returns how many artifacts that were.

        Raises:
            BadRequest: the tier is read-only; StoreError: the bucket could not tell.
        """
        if self.writing is None:
            raise BadRequest("the tier is read-only")
        pushed, cursor = 0, None
        while True:
            recipes, cursor = await self.daemon.listing(self.daemon.store.recipes, cursor=cursor, limit=100)
            for record in recipes:
                pushed += await self._told(self.writing.push(record.digest + record.scope))
            if cursor is None:
                return pushed

    async def pull(self, digest: str, scope: str, owner_uid: int) -> tuple[int, int]:
        """Fetches what the bucket has of one recipe: artifacts fetched, and artifacts that could not be.

        Raises:
            NotFound: the bucket does not know the recipe; StoreError: it could not tell.
        """
        recipe, store = digest + scope, self.daemon.store
        if not await self.daemon.quick(store.is_registered, recipe):
            try:
                told = json.loads(await self.bucket.get(f"recipes/v1/{digest}.json", MAX_RECIPE_BYTES))
                await self.daemon.writing(
                    store.register, recipe, str(told["name"]), dict(told["parts"] or {})
                )
            except Absent:
                raise NotFound(f"the tier has no recipe {digest}") from None
            except (CouldNotTell, Damaged, ValueError, TypeError, KeyError, RecursionError) as error:
                raise StoreError(f"the tier could not be asked for recipe {digest}: {error}") from None
        return await self._told(self.reading.pull(recipe, owner_uid))

    async def garbage(self, *, delete: bool, min_age_s: float = GARBAGE_AGE_S) -> list[str]:
        """Artifacts in the bucket that no manifest names, and that have lain there so long.

        A younger one may be waiting for the manifest that will name it.

        Args:
            delete: delete them; refused where a manifest could not be read whole, since what it names is
                not known.

        Raises:
            StoreError: the bucket could not tell, or see `delete`.
        """
        return await self._told(self._garbage(delete, min_age_s))

    async def _garbage(self, delete: bool, min_age_s: float) -> list[str]:
        named, unread = await self._named()
        # After the manifests: what has been copied since they were read is too young to be listed.
        artifacts = await self.bucket.names("cas/v1/", MAX_LISTED, min_age_s=min_age_s)
        found = [name for name in artifacts if name.rsplit("/", 1)[-1] not in named]
        if delete and unread:
            raise StoreError(f"nothing was deleted: {unread}; see the daemon's log")
        if delete and found:
            await self.bucket.delete(found)
            LOG.info("deleted %d artifacts from the tier that no manifest names", len(found))
        return found

    async def _named(self) -> tuple[set[str], str]:
        """The artifacts that manifests name, and why there may be more of them; "" where there are not."""
        objects = await self.bucket.names(f"{PREFIX}/", MAX_LISTED)
        named: set[str] = set()
        unread = "the list of manifests is too long" if len(objects) == MAX_LISTED else ""
        for folder in {name.rsplit("/", 1)[0] for name in objects}:
            digest, scope = folder.split("/")[-2:]
            recipe = digest if scope == "shared" else f"{digest}.{scope}"
            if not (is_hex64(digest) and scopes.is_scoped(recipe)):
                unread = unread or f"{folder} is not a manifest"
                continue
            known = await self.manifests.of(recipe, max_age_s=0)
            named.update(row.digest for rows in known.objects.values() for row in rows)
            if not known.is_whole:
                unread = unread or f"the manifest of {recipe} cannot be read completely"
        return named, unread

    async def _ask(self) -> None:
        await self.bucket.names(f"{PREFIX}/", 1)

    async def _told(self, work: Awaitable[T]) -> T:
        try:
            done = await work
        except CouldNotTell as error:
            self.manifests.outage.note_failure(error)
            raise StoreError(f"the tier could not be asked: {error}") from None
        self.manifests.outage.note_answer()
        return done
