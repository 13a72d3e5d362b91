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
        self._daemon = daemon
        self._bucket = bucket
        self._manifests = Manifests(bucket, MAX_ARTIFACT_BYTES, daemon.clock)
        self._counted = Counter(dict.fromkeys(COUNTED, 0))
        self.reading = ReadThrough(daemon, self._manifests, self._counted)
        self._writing = None if is_read_only else WriteBack(daemon, self._manifests, self._counted)
        self.upstream: Upstream | None = None
        if lead is not None and self._writing is not None:
            self.upstream = Upstream(daemon, lead, self.reading, self._writing)

    def start(self) -> None:
        watch = self._manifests.outage.watch(lambda: self._bucket.names(f"{PREFIX}/", 1))
        self._watcher = asyncio.get_running_loop().create_task(watch)
        for part in (self._writing, self.upstream):
            if part is not None:
                part.start()

    async def stop(self) -> None:
        await end([self._watcher])
        self.reading.stop()
        for part in (self._writing, self.upstream):
            if part is not None:
                await part.stop()

    def note_committed(self, recipe: str) -> None:
        """A job's artifacts of a recipe, scoped, are to be copied into the bucket."""
        if self._writing is not None:
            self._writing.note(recipe)

    def status(self) -> dict[str, Any]:
        """What `GET /v1/tier` answers."""
        writing, upstream, outage = self._writing, self.upstream, self._manifests.outage
        found: dict[str, Any] = {
            **self._counted,
            "url": self._bucket.url,
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
        if self._writing is None:
            raise BadRequest("the tier is read-only")
        pushed, cursor = 0, None
        while True:
            recipes, cursor = await self._daemon.listing(self._daemon.store.recipes, cursor=cursor, limit=100)
            for record in recipes:
                pushed += await self._asked(self._writing.push(record.digest + record.scope))
            if cursor is None:
                return pushed

    async def pull(self, digest: str, scope: str, owner_uid: int) -> tuple[int, int]:
        """Fetches what the bucket has of one recipe: artifacts fetched, and artifacts that could not be.

        Raises:
            NotFound: the bucket does not know the recipe; StoreError: it could not tell.
        """
        recipe, store = digest + scope, self._daemon.store
        if not await self._daemon.quick(store.is_registered, recipe):
            try:
                text = await self._asked(self._bucket.get(f"recipes/v1/{digest}.json", MAX_RECIPE_BYTES))
                told = json.loads(text)
                name, parts = str(told["name"]), dict(told["parts"] or {})
                await self._daemon.writing(store.register, recipe, name, parts)
            except Absent:
                raise NotFound(f"the tier has no recipe {digest}") from None
            except (Damaged, ValueError, TypeError, KeyError, RecursionError) as error:
                raise StoreError(f"recipe {digest} in the tier cannot be read: {error}") from None
        return await self._asked(self.reading.pull(recipe, owner_uid))

    async def garbage(self, *, delete: bool) -> list[str]:
        """Artifacts in the bucket that no manifest names and that have lain there for `GARBAGE_AGE_S`.

        A younger one may be waiting for the manifest that will name it.

        Args:
            delete: delete them; refused where a manifest could not be read whole, since what it names is
                not known.

        Raises:
            StoreError: the bucket could not tell, or see `delete`.
        """
        named, unread = await self._asked(self._named())
        # After the manifests: what has been copied since they were read is too young to be listed.
        listing = self._bucket.names("cas/v1/", MAX_LISTED, min_age_s=GARBAGE_AGE_S)
        found = [name for name in await self._asked(listing) if name.rsplit("/", 1)[-1] not in named]
        if delete and unread:
            raise StoreError(f"nothing was deleted: {unread}; see the daemon's log")
        if delete and found:
            await self._asked(self._bucket.delete(found))
            LOG.info("deleted %d artifacts from the tier that no manifest names", len(found))
        return found

    async def _named(self) -> tuple[set[str], str]:
        """The artifacts that manifests name, and why there may be more of them; "" where there are not."""
        objects = await self._bucket.names(f"{PREFIX}/", MAX_LISTED)
        named: set[str] = set()
        unread = "the list of manifests is too long" if len(objects) == MAX_LISTED else ""
        for folder in {name.rsplit("/", 1)[0] for name in objects}:
            digest, scope = folder.split("/")[-2:]
            recipe = digest if scope == "shared" else f"{digest}.{scope}"
            if not (is_hex64(digest) and scopes.is_scoped(recipe)):
                unread = unread or f"{folder} is not a manifest"
                continue
            known = await self._manifests.of(recipe, max_age_s=0)
            named.update(row.digest for rows in known.objects.values() for row in rows)
            if not known.is_whole:
                unread = unread or f"the manifest of {recipe} cannot be read completely"
        return named, unread

    async def _asked(self, work: Awaitable[T]) -> T:
        """Asks the bucket for an administrator; raises StoreError where it could not tell."""
        try:
            done = await work
        except CouldNotTell as error:
            self._manifests.outage.note_failure(error)
            raise StoreError(f"the tier could not be asked: {error}") from None
        self._manifests.outage.note_answer()
        return done
