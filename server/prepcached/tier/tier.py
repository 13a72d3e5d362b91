"""One daemon's part in a shared bucket.

Reading through: the tier leases all items of an artifact like a job, downloads and commits it; if that fails,
the lease ends and a job may make them. Writing back: whatever artifacts a recipe has when its turn comes are
compared with its manifest and copied if they bring something new, so a copy that was lost is made up for by
the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, TypeVar

from blake3 import blake3

from prepcache.artifact.header import read_header
from prepcache.errors import (
    ArtifactError,
    BadRequest,
    NotFound,
    PrepcacheError,
    StagedFileRefused,
    StoreError,
)
from prepcache.protocol.wire import ArtifactRef, StagedFile
from prepcached.daemon import Daemon, Session
from prepcached.leases import TIER_NAME, TIER_SESSION, Commit, Lease
from prepcached.metrics import TIER, Counters
from prepcached.store import durable, scopes
from prepcached.store.queries import chunks
from prepcached.tier.bucket import (
    STALL_S,
    TICK_S,
    UPLOAD_RATE,
    WRITE_S,
    Absent,
    Bucket,
    CouldNotTell,
    Damaged,
    Outage,
)
from prepcached.tier.manifests import FRESH_S, Index, Known, Manifests, Row, brings_nothing, index
from prepcached.tier.upstream import Upstream

T = TypeVar("T")
LOG = logging.getLogger(__name__)

RETRY_S = 30.0  # how often a bucket that could not tell is asked until it answers
DOWNLOADS = 4  # artifacts that are fetched at once
AHEAD, WRITTEN_S = 16, 0.002  # pieces of each that wait to be written, and how often that is looked at
ASKED_S = 0.9
"""Longest wait for a manifest. A request for a lease waits for two and for the lead (`upstream.CALL_S`): less
than 3 s, after which a job takes its daemon for silent."""
AGAIN_S = 600.0
"""How long an artifact that was fetched, or that the store declined, is not fetched again: if the job still
asks for its items, they are no use to it."""
QUEUE = 4096
"""Recipes that wait to be copied; more are dropped, counted, and copied when they are committed to again."""
REST_S = 0.5
"""A recipe is copied this long after a commit, so that what jobs commit together is copied together."""
PUBLISH_S = 2.0
PUBLISH_SHARE = 0.01
"""Jobs commit what they have leased for so long, or for this share of their time so far: another machine may
wait for it or, without a lead, make the same. Without a lead manifests are read as often."""
DRAIN_S = 3.0  # what a stop gives to what still waits to be copied
END_S = 1.0  # what it gives to a task that it has cancelled
MAX_RECIPE_BYTES = 8 << 20
GARBAGE_AGE_S = 24 * 3600.0
"""Far longer than a copy takes from its bytes to its manifest, and than clocks differ."""


class Tier:
    """Reads and writes one bucket for one daemon; `lead` is the URL and token of its upstream."""

    def __init__(
        self, daemon: Daemon, bucket: Bucket, *, is_read_only: bool, lead: tuple[str, str] | None = None
    ) -> None:
        self._daemon = daemon
        self._bucket = bucket
        self._is_read_only = is_read_only
        self._manifests = Manifests(bucket, daemon.clock)
        self._outage = Outage(
            f"the tier {bucket.url}", "jobs preprocess items that it may have", RETRY_S, daemon.clock
        )
        self._counted = Counters(daemon.registry, TIER)
        self._slots = asyncio.Semaphore(DOWNLOADS)
        self._fetches: set[asyncio.Task[bool]] = set()
        self._due: dict[str, float] = {}  # recipes that wait to be copied, and from when on
        self._one_copy = asyncio.Lock()
        self._copying = ""
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self.upstream = None if lead is None else Upstream(daemon, self, *lead)
        self.order = 0  # as in wire.SessionAnswer
        if not is_read_only and lead is None:
            self.order = int.from_bytes(blake3(daemon.store.instance.encode()).digest(8)) >> 1 | 1

    # -- life

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._copier = loop.create_task(self._copy_due())
        probe = self._outage.watch(lambda: self._bucket.names("", 1))
        self._tasks = [self._copier, loop.create_task(probe)]
        if self.upstream is not None:
            self._tasks.append(loop.create_task(self.upstream.watch()))

    async def stop(self) -> None:
        """Copies what waits, for a bounded time. Downloads end; the daemon's stop waits for them."""
        for fetch in self._fetches:
            fetch.cancel()
        self._is_closing = True
        if not (await asyncio.wait([self._copier], timeout=DRAIN_S))[0]:
            LOG.warning("recipes not copied to the tier before the stop: %d", len(self._due) + 1)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=END_S)
        if self.upstream is not None:
            await self.upstream.leave()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            **{name: int(self._counted[name]) for name in TIER},
            "url": self._bucket.url,
            "mode": "read-only" if self._is_read_only else "read-write",
            "is_paused": not self._outage.is_usable,
            "could_not_tell": self._outage.failures,
            "last_failure": self._outage.last_failure,
            "waiting": len(self._due),
        }
        return found if self.upstream is None else found | self.upstream.status()

    def hurried(self, session: Session, leases: Iterable[Lease]) -> set[str]:
        """The recipes of these leases that the session should commit now."""
        if self._is_read_only:
            return set()
        longest_s = max(PUBLISH_S, PUBLISH_SHARE * (time.time() - session.opened_at))
        return {one.recipe for one in leases if self._daemon.clock() - one.granted_at > longest_s}

    # -- reading through

    async def claim(
        self, recipe: str, items: bytes, session: Session, max_age_s: float | None = None
    ) -> None:
        """Leases, and begins to fetch, the artifacts of the bucket that have some of the items (n * 32 bytes)
        that a job lacks. The recipe is scoped, and registered; `max_age_s` is of the manifest."""
        daemon, known, began = self._daemon, None, self._daemon.clock()
        if not self._outage.is_usable:
            return
        if max_age_s is None:
            max_age_s = PUBLISH_S if self.order else FRESH_S
        with contextlib.suppress(TimeoutError):
            known = await asyncio.wait_for(asyncio.shield(self._known(recipe, max_age_s)), ASKED_S)
        if known is None:
            self._outage.note_lost(began)
            return
        found = known.offered(items, daemon.clock())
        if not found:
            self._counted.add(misses=1)
            return
        here = {ref.digest for ref in (await daemon.quick(daemon.store.resolve, recipe)).artifacts}
        owner_uid = os.geteuid() if session.caller.uid is None else session.caller.uid
        for row in found:
            if row.digest in here:
                known.tried[row.digest] = daemon.clock() + AGAIN_S
            else:
                self._fetch_free(recipe, known, row, owner_uid)

    async def _known(self, recipe: str, max_age_s: float) -> Known | None:
        try:
            return await self._manifests.of(recipe, max_age_s=max_age_s)
        except CouldNotTell as error:
            self._outage.note_failure(error)
            return None

    def _fetch_free(self, recipe: str, known: Known, row: Row, owner_uid: int) -> asyncio.Task[bool] | None:
        """Begins to fetch an artifact under a lease on its free items; None where none is free."""
        session = TIER_SESSION + secrets.token_hex(16)
        commit = self._daemon.leases.begin_fetch(session, TIER_NAME, recipe, row.items)
        if commit is None:
            return None
        task = self._daemon.spawn(self._fetch(known, row, commit, owner_uid))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)
        return task

    async def _fetch(self, known: Known, row: Row, commit: Commit, owner_uid: int) -> bool:
        daemon, name = self._daemon, f"{commit.session}.{row.digest}"
        daemon.commits[commit.session] = 1  # its staged file is not swept
        known.tried[row.digest] = daemon.clock() + AGAIN_S
        began = daemon.clock()
        try:
            async with self._slots:
                began = daemon.clock()
                if self._outage.is_on:  # another download failed while this one waited
                    raise CouldNotTell(self._outage.last_failure)
                await self._download(row, name)
            # Outside: the next one is downloaded while the disk takes this one.
            staged, take = StagedFile(name, row.size_bytes), daemon.store.commit
            done = await daemon.slow(take, commit.recipe, staged, owner_uid=owner_uid, hashed=row.digest)
        except BaseException as error:
            daemon.leases.forget_generation(commit.recipe)  # the store may have taken what it could not say
            daemon.leases.abort_commit(commit)
            if not isinstance(error, (CouldNotTell, Absent, Damaged, PrepcacheError, OSError)):
                raise
            self._note_failed(known, row, error, began)
            return False
        else:
            self._counted.add(hits=1, hit_bytes=row.size_bytes)
            daemon.leases.finish_commit(commit, commit.items, done.generation)
            return True
        finally:
            del daemon.commits[commit.session]
            await daemon.slow(daemon.store.unstage, name)

    def _note_failed(self, known: Known, row: Row, error: BaseException, began: float) -> None:
        if isinstance(error, CouldNotTell):
            known.tried.pop(row.digest, None)  # a pull may have fetched it, too
            if not self._outage.is_on:
                self._outage.note_failure(error)
                self._outage.note_lost(began)
            return
        is_bad = isinstance(error, Damaged | StagedFileRefused)
        if is_bad or isinstance(error, Absent):
            known.lost.add(row.digest)
        self._counted.add(bad=is_bad)
        LOG.warning("artifact %s of the tier: a job preprocesses its items: %s", row.digest, error)

    async def _download(self, row: Row, name: str) -> None:
        """Brings an artifact's bytes into the staging folder. A thread writes and hashes while more comes."""
        daemon, pieces = self._daemon, SimpleQueue[memoryview | None]()
        sizes = range(row.size_bytes, row.size_bytes + 1)
        limit_s = STALL_S + 2 * row.cost_s  # beyond that, to make it would have been quicker
        with contextlib.ExitStack() as stack:
            fd = await daemon.slow(stack.enter_context, daemon.store.upload(name, row.size_bytes))
            stack.callback(os.close, fd)
            writing = daemon.spawn(asyncio.to_thread(_write, fd, pieces))
            try:
                async for piece in self._bucket.stream(object_name(row.digest), sizes, limit_s):
                    pieces.put(piece)
                    while pieces.qsize() > AHEAD and not writing.done():
                        await asyncio.sleep(WRITTEN_S)
                    if writing.done():  # it has failed
                        break
            finally:
                pieces.put(None)
                await asyncio.wait([writing])  # it uses the file
        if writing.result() != row.digest:
            raise Damaged(f"its bytes do not have the digest {row.digest}")

    # -- writing back

    def note_committed(self, recipe: str) -> None:
        if self._is_read_only:
            return
        if recipe in self._due or len(self._due) < QUEUE:
            self._due.setdefault(recipe, self._daemon.clock() + REST_S)
        else:
            self._counted.add(dropped=1)

    def is_pending(self, recipe: str) -> bool:
        """Whether a recipe is being copied, or will be soon: not while the bucket is left alone."""
        return not self._outage.is_on and (recipe in self._due or recipe == self._copying)

    async def _copy_due(self) -> None:
        while True:
            now = float("inf") if self._is_closing else self._daemon.clock()
            recipe = next((one for one, at in self._due.items() if at <= now), None)
            if recipe is None or self._outage.is_on:  # a bucket that fails is left alone
                if self._is_closing:
                    return
                await asyncio.sleep(TICK_S)
                continue
            del self._due[recipe]
            self._copying = recipe
            try:
                await self._copy(recipe)
            except CouldNotTell as error:
                self._outage.note_failure(error)
                self.note_committed(recipe)
            except Exception as error:
                is_foreseen = isinstance(error, PrepcacheError | OSError)
                LOG.warning(
                    "recipe %s was not copied to the tier: %s", recipe, error, exc_info=not is_foreseen
                )
            self._copying = ""

    async def _copy(self, recipe: str) -> int:
        """Copies what the bucket lacks of a recipe; returns how many artifacts that were."""
        daemon, bucket, rows = self._daemon, self._bucket, list[Row]()
        async with self._one_copy:
            found = await daemon.slow(daemon.store.resolve, recipe)
            known = await self._manifests.of(recipe, max_age_s=0)
            left = [ref for ref in found.artifacts if ref.digest not in known.rows]
            if left:
                with contextlib.suppress(NotFound):  # it was deleted meanwhile
                    record = await daemon.quick(daemon.store.recipe, recipe)
                    text = json.dumps({"name": record.name, "parts": record.parts})
                    await bucket.put(f"recipes/v1/{scopes.digest(recipe)}.json", text.encode())
            try:
                for ref in left:
                    opened = await daemon.slow(_opened, daemon.store.objects, ref)
                    if opened is None:
                        continue
                    file, row = opened
                    with file:
                        if row.fits and not brings_nothing(row, known.by_item):
                            timeout_s = WRITE_S + row.size_bytes / UPLOAD_RATE
                            await bucket.put(object_name(row.digest), file, timeout_s=timeout_s)
                            rows.append(row)
                            self._counted.add(written=1, written_bytes=row.size_bytes)
            finally:  # what was copied is named, whatever became of the rest
                if rows:
                    await self._manifests.add(recipe, rows)
        return len(rows)

    # -- for administrators

    async def push(self) -> int:
        """Copies whatever the bucket lacks of all recipes; raises BadRequest or StoreError."""
        if self._is_read_only:
            raise BadRequest("the tier is read-only")
        pushed, cursor = 0, None
        while True:
            recipes, cursor = await self._daemon.listing(self._daemon.store.recipes, cursor=cursor, limit=100)
            for record in recipes:
                pushed += await self._asked(self._copy(record.digest + record.scope))
            if cursor is None:
                return pushed

    async def pull(self, digest: str, scope: str, owner_uid: int) -> tuple[int, int]:
        """Fetches what the bucket has of one recipe: how many artifacts were fetched, and could not be.
        Raises NotFound where the bucket does not know the recipe, StoreError where it could not tell."""
        recipe, daemon, store = digest + scope, self._daemon, self._daemon.store
        if not await daemon.quick(store.is_registered, recipe):
            try:
                text = await self._asked(self._bucket.get(f"recipes/v1/{digest}.json", MAX_RECIPE_BYTES))
                found = json.loads(text)
                name, parts = str(found["name"]), dict(found["parts"] or {})
                await daemon.slow(store.register, recipe, name, parts)
            except Absent:
                raise NotFound(f"the tier has no recipe {digest}") from None
            except (Damaged, ValueError, TypeError, KeyError, RecursionError) as error:
                raise StoreError(f"recipe {digest} in the tier cannot be read: {error}") from None
        known = await self._asked(self._manifests.of(recipe, max_age_s=0))
        resolved = await daemon.slow(store.resolve, recipe)
        daemon.leases.raise_generation(recipe, resolved.generation)
        here = await daemon.slow(_index, store.objects, resolved.artifacts)
        lacking = [row for row in known.rows.values() if not brings_nothing(row, here)]
        done: list[bool] = []
        for some in chunks(lacking, DOWNLOADS):  # what is leased meanwhile, jobs wait for
            fetches = [self._fetch_free(recipe, known, row, owner_uid) for row in some]
            done += [await fetch for fetch in fetches if fetch is not None]
        return sum(done), len(done) - sum(done)

    async def garbage(self, *, delete: bool) -> list[str]:
        """Artifacts that no manifest names and that have lain there for `GARBAGE_AGE_S`: a younger one may be
        waiting for its manifest. Raises StoreError, also where a manifest cannot be read."""
        try:
            named = await self._asked(self._manifests.named())
        except (Absent, Damaged) as error:  # absent: rewritten just now
            raise StoreError(f"nothing was deleted: {error} in the tier cannot be read whole") from None
        # After the manifests: what has been copied since they were read is too young to be listed.
        listing = self._bucket.names("cas/v1/", min_age_s=GARBAGE_AGE_S)
        found = [name for name in await self._asked(listing) if name.rsplit("/", 1)[-1] not in named]
        if delete and found:
            await self._asked(self._bucket.delete(found))
            LOG.info("deleted %d artifacts from the tier that no manifest names", len(found))
        return found

    async def _asked(self, work: Awaitable[T]) -> T:
        """For an administrator; raises StoreError where the bucket could not tell."""
        try:
            done = await work
        except CouldNotTell as error:
            self._outage.note_failure(error)
            raise StoreError(f"the tier could not be asked: {error}") from None
        self._outage.note_answer()
        return done


def object_name(digest: str) -> str:
    return f"cas/v1/{digest[:2]}/{digest}"


def _write(fd: int, pieces: SimpleQueue[memoryview | None]) -> str:
    """Writes what comes until None; returns its digest."""
    hasher = blake3()
    for piece in iter(pieces.get, None):
        hasher.update(piece)
        while piece:
            piece = piece[os.write(fd, piece) :]
        durable.begin_flush(fd)
    return hasher.hexdigest()


def _opened(objects: str, ref: ArtifactRef) -> tuple[BinaryIO, Row] | None:
    """An artifact here, which stays open though it is evicted, and its row; None: it cannot be read."""
    path = Path(objects, ref.digest[:2], ref.digest)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            items = read_header(file.fileno()).item_digests.tobytes()
        except (ArtifactError, OSError) as error:
            LOG.warning("%s cannot be compared with the tier: %s", path, error)
            return None
        stack.pop_all()
    return file, Row(ref.digest, ref.size_bytes, items, ref.cost_s, ref.edition, ref.observed)


def _index(objects: str, refs: Iterable[ArtifactRef]) -> Index:
    """Which of these artifacts here have which items."""
    rows = []
    for file, row in filter(None, (_opened(objects, ref) for ref in refs)):
        file.close()
        rows.append(row)
    return index(rows)
