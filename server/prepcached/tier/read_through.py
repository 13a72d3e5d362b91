"""Reading through: what a job asks for and the bucket has is fetched instead of preprocessed.

The tier takes part in leasing like a job: it leases all items of an artifact, downloads and commits it, and
whoever waits for them finds it there. If that fails, the lease ends, and a job may make them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections import Counter
from collections.abc import Collection, Container, Iterable

from blake3 import blake3

from prepcache.digests import DIGEST_BYTES
from prepcache.errors import LimitExceeded, PrepcacheError, StagedFileRefused
from prepcache.protocol.wire import StagedFile
from prepcached.daemon import Daemon
from prepcached.leases import TIER_NAME, TIER_SESSION, Commit, digests
from prepcached.sessions import Session
from prepcached.tier.bucket import STALL_S, Absent, CouldNotTell, Damaged
from prepcached.tier.manifests import FRESH_S, Known, Manifests, Row

LOG = logging.getLogger(__name__)

DOWNLOADS = 4
"""Artifacts that are fetched at once."""
QUEUED = 1024
"""Artifacts that are fetched or wait for it; whoever asks for items of others waits, too."""
ASKED_S = 1.5
"""Longest wait of a request for a lease for a manifest (see upstream.LOOK_S)."""
AGAIN_S = 600.0
"""How long an artifact that was fetched, or that the store declined, is not fetched again: if the job still
asks for its items, they are no use to it."""


class ReadThrough:
    """Fetches artifacts for one daemon."""

    def __init__(self, daemon: Daemon, manifests: Manifests, counted: Counter[str]) -> None:
        self._daemon = daemon
        self._counted = counted
        self._manifests = manifests
        self._outage = manifests.outage
        self._slots = asyncio.Semaphore(DOWNLOADS)
        self._fetches: set[asyncio.Task[bool]] = set()

    def stop(self) -> None:
        """Ends all downloads, which frees what they leased. The daemon's stop waits for them."""
        for task in self._fetches:
            task.cancel()

    def offered(self, recipe: str, items: Iterable[bytes]) -> Container[bytes]:
        """Which of these items can be fetched, as far as is known."""
        known = self._manifests.known(recipe) if self._outage.is_usable else None
        return () if known is None else known.offered(items, self._daemon.clock())

    async def claim(
        self,
        recipe: str,
        items: bytes,
        session: Session,
        max_age_s: float = FRESH_S,
        limit_s: float | None = None,
    ) -> Collection[bytes]:
        """Leases, and begins to fetch, the artifacts of the bucket that have some of these items.

        Args:
            recipe: scoped, and registered.
            items: n * 32 bytes; what the job lacks, as far as this daemon knows too.
            session: the job, which will own what is fetched.
            max_age_s: how old the manifest may be.
            limit_s: how long it may be waited for; default `ASKED_S`.

        Returns:
            The items that nobody is to preprocess though they are not leased: the queue is full.
        """
        known, began = None, self._daemon.clock()
        limit_s = ASKED_S if limit_s is None else limit_s
        with contextlib.suppress(TimeoutError):
            known = await asyncio.wait_for(asyncio.shield(self._known(recipe, max_age_s)), limit_s)
        if known is None:
            if self._outage.is_usable:
                self._outage.note_lost(self._daemon.clock() - began)
            return ()
        found = known.offered(digests(items), self._daemon.clock())
        wanted = {row.digest: row for rows in found.values() for row in rows}
        if not wanted:
            self._counted["misses"] += 1
            return ()
        found_here = await self._daemon.quick(self._daemon.store.resolve, recipe)
        here = {ref.digest for ref in found_here.artifacts}
        owner_uid = os.geteuid() if session.uid is None else session.uid
        for row in wanted.values():
            if row.digest in here:
                known.tried[row.digest] = self._daemon.clock() + AGAIN_S
            elif len(self._fetches) >= QUEUED:
                return known.offered(found, self._daemon.clock()).keys()
            elif (commit := self._leased(recipe, row)) is not None:
                self._start(known, row, commit, owner_uid)
        return ()

    async def pull(self, recipe: str, owner_uid: int) -> tuple[int, int]:
        """Fetches what the bucket has of a registered recipe and this machine has not.

        Returns:
            How many artifacts were fetched, and how many could not be.

        Raises:
            CouldNotTell.
        """
        daemon = self._daemon
        known = await self._manifests.of(recipe, max_age_s=0)
        found = await daemon.slow(daemon.store.resolve, recipe)
        daemon.leases.raise_generation(recipe, found.generation)
        here = {ref.digest for ref in found.artifacts}
        lacking = [row for row in known.rows.values() if row.digest not in here]
        fetched = tried = 0
        for start in range(0, len(lacking), QUEUED):
            commits = [(row, self._leased(recipe, row)) for row in lacking[start : start + QUEUED]]
            work = [self._start(known, row, one, owner_uid) for row, one in commits if one is not None]
            fetched += sum(await asyncio.gather(*work))
            tried += len(work)
        return fetched, tried - fetched

    # -- inside

    async def _known(self, recipe: str, max_age_s: float = FRESH_S) -> Known | None:
        if not self._outage.is_usable:
            return None
        try:
            return await self._manifests.of(recipe, max_age_s=max_age_s)
        except CouldNotTell as error:
            self._outage.note_failure(error)
            return None

    def _leased(self, recipe: str, row: Row) -> Commit | None:
        """A lease on the free items of an artifact, which cannot lapse; None where none is free."""
        table, session = self._daemon.leases, TIER_SESSION + row.digest
        if table.of_session(session):
            return None
        with contextlib.suppress(LimitExceeded):
            answer = table.grant(
                session,
                TIER_NAME,
                recipe,
                table.generation(recipe),
                row.items,
                lease_id=secrets.token_hex(16),
                want=len(row.items) // DIGEST_BYTES,
                cost_s=row.cost_s,
            )
            if answer.lease is not None:
                return table.begin_commit(session, [(answer.lease.id, answer.lease.token)])
        return None

    def _start(self, known: Known, row: Row, commit: Commit, owner_uid: int) -> asyncio.Task[bool]:
        task = self._daemon.spawn(self._fetch(known, row, commit, owner_uid))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)
        return task

    async def _fetch(self, known: Known, row: Row, commit: Commit, owner_uid: int) -> bool:
        daemon, name = self._daemon, f"{commit.session}.{secrets.token_hex(8)}"
        daemon.commits[commit.session] = 1  # its staged file is not swept
        known.tried[row.digest] = daemon.clock() + AGAIN_S
        try:
            async with self._slots:
                began = daemon.clock()
                if self._outage.is_on:  # another download failed while this one waited
                    raise CouldNotTell(self._outage.last_failure)
                await self._download(row, name)
                done = await daemon.slow(
                    daemon.store.commit,
                    commit.recipe,
                    [StagedFile(name, row.size_bytes)],
                    owner_uid=owner_uid,
                )
        except (CouldNotTell, Absent, Damaged, PrepcacheError, OSError) as error:
            self._note_failed(known, row, error, daemon.clock() - began)
            daemon.leases.abort_commit(commit)
        except BaseException:
            daemon.leases.abort_commit(commit)
            raise
        else:
            self._counted["hits"] += 1
            self._counted["hit_bytes"] += row.size_bytes
            daemon.leases.finish_commit(commit, commit.items, done.generation)
            return True
        finally:
            daemon.leases.end_session(commit.session)
            daemon.commits.pop(commit.session, None)
            await daemon.slow(daemon.store.unstage, name)
        return False

    def _note_failed(self, known: Known, row: Row, error: Exception, lost_s: float) -> None:
        if isinstance(error, CouldNotTell):
            known.tried.pop(row.digest, None)
            if not self._outage.is_on:
                self._outage.note_failure(error)
                self._outage.note_lost(lost_s)
            return
        if isinstance(error, Absent | Damaged | StagedFileRefused):
            known.note_lacking(row)
        if isinstance(error, Absent):
            LOG.info("%s was deleted from the tier; a job preprocesses its items", object_name(row.digest))
        else:
            self._counted["bad"] += isinstance(error, Damaged | StagedFileRefused)
            LOG.warning("an artifact was not fetched from the tier, a job preprocesses it: %s", error)

    async def _download(self, row: Row, name: str) -> None:
        """Writes an artifact's bytes into the staging folder.

        Raises:
            Absent, CouldNotTell, Declined, StoreError.
            Damaged: it has another digest than its name says.
        """
        daemon, digest = self._daemon, blake3()
        limit_s = STALL_S + 2 * row.cost_s  # beyond that, to make it would have been quicker
        with contextlib.ExitStack() as stack:
            fd = await daemon.slow(stack.enter_context, daemon.store.upload(name, row.size_bytes))
            stack.callback(os.close, fd)
            bucket = self._manifests.bucket
            async for piece in bucket.stream(object_name(row.digest), row.size_bytes, limit_s):
                await daemon.slow(_write, fd, piece, digest)
        if digest.hexdigest() != row.digest:
            raise Damaged(f"{object_name(row.digest)} does not match its digest")


def object_name(digest: str) -> str:
    """Where an artifact lies in the bucket."""
    return f"cas/v1/{digest[:2]}/{digest}"


def _write(fd: int, piece: bytes, digest: blake3) -> None:
    view = memoryview(piece)
    digest.update(view)
    while view:
        view = view[os.write(fd, view) :]
