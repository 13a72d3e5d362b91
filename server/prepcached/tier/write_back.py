"""Writing back: what jobs commit here is copied into the bucket, in the background.

The unit is a recipe, not a commit: whatever artifacts it has by the time its turn comes are compared with its
manifest, and those that bring something new are copied. So a copy that was lost is made up for by the next
one, and merged artifacts need no bookkeeping.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from prepcache.artifact import header as artifact_format
from prepcache.errors import ArtifactError, NotFound, PrepcacheError
from prepcache.protocol.wire import ArtifactRef
from prepcached.daemon import Daemon
from prepcached.store import scopes
from prepcached.tier.bucket import UPLOAD_RATE, WRITE_S, CouldNotTell
from prepcached.tier.manifests import Manifests, Row, is_told
from prepcached.tier.outage import TICK_S, end
from prepcached.tier.read_through import object_name

LOG = logging.getLogger(__name__)

QUEUE = 4096
"""Recipes that wait to be copied; more are dropped, counted, and copied when they are committed to again."""
REST_S = 2.0
"""A recipe is copied this long after a commit, so that the commits of a fill go together."""
DRAIN_S = 3.0
"""What a stop gives to what still waits."""


class WriteBack:
    """Copies artifacts of one daemon."""

    def __init__(self, daemon: Daemon, manifests: Manifests, counted: Counter[str]) -> None:
        self._daemon = daemon
        self._counted = counted
        self._manifests = manifests
        self._due: dict[str, float] = {}
        """Recipes that wait, and from when on."""
        self._is_closing = False
        self._worker: asyncio.Task[None] | None = None
        self._pushing = ""
        self.is_waited_for: Callable[[str], bool] = lambda _: False
        """Whether another machine waits for what a recipe has here."""

    @property
    def waiting(self) -> int:
        """Recipes that wait to be copied."""
        return len(self._due)

    def start(self) -> None:
        self._worker = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Copies what waits, for a bounded time; the rest is copied after its next commit or `tier push`."""
        self._is_closing = True
        if self._worker is not None:
            _, late = await asyncio.wait([self._worker], timeout=DRAIN_S)
            if late:
                LOG.warning("%d recipes were not copied to the tier before the stop", len(self._due) + 1)
            await end(late)

    def note(self, recipe: str) -> None:
        """A recipe, scoped, has new artifacts."""
        if recipe in self._due or len(self._due) < QUEUE:
            self._due.setdefault(recipe, self._daemon.clock() + REST_S)
        else:
            self._counted["dropped"] += 1

    def is_pending(self, recipe: str) -> bool:
        """Whether a recipe is being copied, or will be soon: not while the bucket is left alone."""
        return not self._manifests.outage.is_on and (recipe in self._due or recipe == self._pushing)

    async def _work(self) -> None:
        while True:
            recipe = self._next()
            if recipe is not None:
                del self._due[recipe]
                self._pushing = recipe
                await self._push_or_later(recipe)
                self._pushing = ""
            elif self._is_closing:
                return
            else:
                await asyncio.sleep(TICK_S)

    def _next(self) -> str | None:
        """A recipe whose turn it is; none while the bucket is left alone."""
        now = float("inf") if self._is_closing else self._daemon.clock()
        due = (one for one, at in self._due.items() if at <= now or self.is_waited_for(one))
        return None if self._manifests.outage.is_on else next(due, None)

    async def _push_or_later(self, recipe: str) -> None:
        try:
            await self.push(recipe)
        except CouldNotTell as error:
            self._manifests.outage.note_failure(error)
            self.note(recipe)
        except (PrepcacheError, OSError) as error:
            LOG.warning("recipe %s is not copied to the tier: %s", recipe, error)
        except Exception:
            LOG.exception("recipe %s is not copied to the tier", recipe)

    async def push(self, recipe: str) -> int:
        """Copies what the bucket lacks of a recipe; returns how many artifacts that were.

        Raises:
            CouldNotTell, StoreError.
        """
        daemon, bucket = self._daemon, self._manifests.bucket
        found = await daemon.slow(daemon.store.resolve, recipe)
        known = await self._manifests.of(recipe, max_age_s=0)
        left = [ref for ref in found.artifacts if ref.digest not in known.rows]
        if left:
            with contextlib.suppress(NotFound):  # it was deleted meanwhile
                record = await daemon.quick(daemon.store.recipe, recipe)
                told = json.dumps({"name": record.name, "parts": record.parts})
                await bucket.put(f"recipes/v1/{scopes.digest(recipe)}.json", told.encode())
        rows: list[Row] = []
        try:
            for ref in left:
                path = Path(daemon.store.objects, ref.digest[:2], ref.digest)
                opened = await daemon.slow(_opened, path, ref)
                if opened is None:
                    continue
                file, row = opened
                with file:
                    if row.can_be_told and not is_told(row, known.by_item):
                        timeout_s = WRITE_S + row.size_bytes / UPLOAD_RATE
                        await bucket.put(object_name(row.digest), file, timeout_s=timeout_s)
                        rows.append(row)
                        self._counted["written"] += 1
                        self._counted["written_bytes"] += row.size_bytes
        finally:  # what was copied is named, whatever became of the rest
            if rows:
                await self._manifests.add(recipe, rows)
        return len(rows)


def _opened(path: Path, ref: ArtifactRef) -> tuple[BinaryIO, Row] | None:
    """An artifact here, which stays open though it is evicted, and its row; None where it cannot be read."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    try:
        header = artifact_format.read_header(file.fileno())
    except (ArtifactError, OSError) as error:
        file.close()
        LOG.warning("%s is not copied to the tier: %s", path, error)
        return None
    items = header.item_digests.tobytes()
    return file, Row(ref.digest, ref.size_bytes, items, ref.cost_s, ref.edition, ref.observed)
