"""The manifests of recipes in the bucket: read, extended and compacted.

Objects never change, so each is read once and remembered. Everything here runs on the daemon's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prepcached.store import scopes
from prepcached.tier import manifest
from prepcached.tier.bucket import STALL_S, Absent, Bucket, CouldNotTell, TooLarge
from prepcached.tier.manifest import Index, ManifestError, Row
from prepcached.tier.outage import Outage

LOG = logging.getLogger(__name__)

PREFIX = "manifests/v1"
FRESH_S = 10.0
"""How long a manifest that was read counts as the newest."""
RETRY_S = 30.0
"""How long a bucket that could not tell is left alone."""
KEPT_RECIPES = 64
KEPT_ITEMS = 4_000_000
"""Of all recipes together: about 600 MB; what was used longest ago is read again when it is asked for."""
MAX_OBJECTS = 4096
COMPACTED_AT = 16
"""Objects of one recipe that are rewritten as one."""
TRIES = 4
"""Readings of a list whose objects are compacted away meanwhile."""


@dataclass
class Known:
    """What was read of one recipe: its rows by digest, and which objects they came from."""

    rows: dict[str, Row] = field(default_factory=dict)
    objects: dict[str, list[Row]] = field(default_factory=dict)
    read_at: float = float("-inf")
    by_item: Index = field(default_factory=dict)
    is_whole: bool = True
    """False where an object was refused or a limit reached, so that there may be more artifacts."""


class Manifests:
    """All recipes' manifests in one bucket.

    Args:
        max_artifact_bytes: rows of larger artifacts are ignored.
        clock: seconds, monotonic.
    """

    def __init__(
        self, bucket: Bucket, max_artifact_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.bucket = bucket
        self.outage = Outage(
            f"the tier {bucket.url}", "jobs preprocess what it may have", RETRY_S, STALL_S, clock
        )
        self._max_artifact_bytes = max_artifact_bytes
        self._clock = clock
        self.on_read: Callable[[str, Index], None] = _ignore
        """Called whenever a recipe's manifest was read."""
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._refused: set[str] = set()

    def told(self, recipe: str) -> Index:
        """By item, what the bucket had of a recipe when it was last asked."""
        known = self._known.get(recipe)
        return {} if known is None else known.by_item

    async def of(self, recipe: str, *, max_age_s: float = FRESH_S) -> Known:
        """What the bucket has of a recipe.

        Args:
            recipe: scoped.
            max_age_s: it is read again where it was read longer ago.

        Raises:
            CouldNotTell.
        """
        async with self._locks.setdefault(recipe, asyncio.Lock()):
            known = self._known.pop(recipe, None) or Known()
            self._known[recipe] = known
            while len(self._known) > 1 and (
                len(self._known) > KEPT_RECIPES
                or sum(len(one.by_item) for one in self._known.values()) > KEPT_ITEMS
            ):
                gone, _ = self._known.popitem(last=False)
                self._locks.pop(gone, None)
            if self._clock() - known.read_at >= max_age_s:
                await self._read(recipe, known)
            return known

    async def add(self, recipe: str, rows: Sequence[Row]) -> None:
        """Appends rows, and compacts a manifest of many objects. Raises CouldNotTell."""
        if rows:
            await self._write(recipe, rows)
        known = await self.of(recipe, max_age_s=0)
        if len(known.objects.keys() - self._refused) >= COMPACTED_AT:
            await self.compact(recipe)

    async def compact(self, recipe: str) -> None:
        """Rewrites the objects of a recipe as one. Raises CouldNotTell."""
        known = await self.of(recipe, max_age_s=0)
        read = [name for name in known.objects if name not in self._refused]
        rows = {row.digest: row for name in read for row in known.objects[name]}
        if len(read) > 1:
            await self._write(recipe, list(rows.values()))
            await self.bucket.delete(read)

    async def _write(self, recipe: str, rows: Sequence[Row]) -> None:
        for data in manifest.encode(rows):
            await self.bucket.put(f"{_folder(recipe)}/{secrets.token_hex(16)}.json", data)

    async def _read(self, recipe: str, known: Known) -> None:
        for _ in range(TRIES):
            names = await self.bucket.names(_folder(recipe) + "/", MAX_OBJECTS)
            try:
                objects = {name: await self._object(name, known) for name in names}
                break
            except Absent:  # compacted away since it was listed
                continue
        else:
            raise CouldNotTell(f"the manifest of {recipe} changes too quickly to be read")
        rows = {row.digest: row for part in objects.values() for row in part}
        known.is_whole = (
            not self._refused.intersection(objects)
            and len(names) < MAX_OBJECTS
            and len(rows) <= manifest.MAX_ROWS
        )
        known.objects = objects
        known.rows = dict(itertools.islice(rows.items(), manifest.MAX_ROWS))
        known.by_item = await asyncio.to_thread(manifest.index, known.rows.values())
        known.read_at = self._clock()
        self.on_read(recipe, known.by_item)

    async def _object(self, name: str, known: Known) -> list[Row]:
        if name in known.objects:
            return known.objects[name]
        try:
            data = await self.bucket.get(name, manifest.MAX_OBJECT_BYTES)
            return await asyncio.to_thread(manifest.decode, data, self._max_artifact_bytes)
        except (ManifestError, TooLarge) as error:
            if name not in self._refused:
                LOG.warning("%s in the tier is ignored: %s", name, error)
            self._refused.add(name)
            return []


def _ignore(_recipe: str, _told: Index) -> None:
    """Nobody listens."""


def _folder(recipe: str) -> str:
    return f"{PREFIX}/{scopes.digest(recipe)}/{scopes.scope_of(recipe).lstrip('.') or 'shared'}"
