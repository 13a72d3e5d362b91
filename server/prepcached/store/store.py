"""The store: what the daemon calls. Blocking and thread-safe; call it from worker threads.

Invariants:
    1. What `resolve` and `commit` name is a whole artifact on disk, as long as the caller holds it.
    2. "Absent" is answered only when absence is known; a failure to look is a `StoreError`.
    3. When something was used is kept in memory, and written behind: nothing that is shown waits for a write.
    4. The first registration of a recipe stands. A recipe that was dropped and comes again has a generation
       beyond any that it had.

Recipes are scoped (scopes.py) in all calls here.

Locking: see core.py. `maintain`, `merge_some` and `scrub_one` are called from one thread each.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import inf
from os import PathLike
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcache.digests import Key, is_hex64
from prepcache.protocol import status_text
from prepcache.protocol.inspection import Entry
from prepcache.protocol.wire import Resolved
from prepcached.store import commit as committing
from prepcached.store import eviction, integrity, listing, queries, scopes
from prepcached.store.compaction import Merger
from prepcached.store.core import Core, io_told, no_space_declined
from prepcached.store.db import artifacts, discard, history
from prepcached.store.records import Finding, Limits, Stats
from prepcached.store.root import Root
from prepcached.store.staging import SCOPE_XATTR, Swept

RATE_S = 60.0
"""The eviction rate is that of the last minute."""
RECENCY_S, RECIPES_S = 5.0, 3600.0
"""Recency is written, and idle recipes are dropped, this often."""
IDLE_S = 30 * 86_400.0
"""Seconds from its registration after which a recipe without artifacts is deleted; jobs register it again."""
_OF_LEDGER = "staged_bytes", "reserved_bytes", "max_bytes", "min_free_bytes"
_NO_LIMITS = Limits()


class Store(Core):
    """A root with its artifacts and index.

    Args:
        root: the folder, made if absent; or one that this process has already taken. The store closes it.
        limits: the budget; may be changed later by `set_limits`.
        recover: False leaves everything as a crash left it, for `check` to look at.

    Raises:
        RootUnusable, RootInUse, IndexCorrupt, StoreError.
    """

    def __init__(
        self,
        root: str | PathLike[str] | Root,
        *,
        limits: Limits = _NO_LIMITS,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        recover: bool = True,
    ) -> None:
        self.is_closed = False
        self._is_kept_up = recover
        with contextlib.ExitStack() as undo, io_told("the store could not be opened"):
            disk = root if isinstance(root, Root) else Root(os.fspath(root))
            undo.callback(disk.close)
            super().__init__(disk, limits, clock, monotonic)
            integrity.open_index(self, recover=recover)
            undo.callback(self.index.close)
            self._scrubber = integrity.Scrubber(self)
            undo.pop_all()
        self.merge_some, self.scrub_one = Merger(self).some, self._scrubber.one
        self._recency_at, self._recipes_at = monotonic(), -inf
        self.root = self.layout.root
        self.instance = disk.instance
        self.staging = self.layout.staging
        self.objects = self.layout.objects

    # What has a module of its own:
    commit = committing.commit
    upload, refusal = eviction.uploading, eviction.refusal
    entries, entry, name_sums = listing.page, listing.entry, listing.name_sums
    recipes, recipe, relatives = listing.recipe_page, listing.recipe, listing.relatives
    purge = eviction.purge
    verify = integrity.verify
    check = integrity.check

    def is_there(self) -> bool:
        with io_told("the root could not be accessed"):
            return self.disk.is_there()

    # The client's protocol

    def register(self, recipe: str, name: str, parts: Mapping[str, Any]) -> None:
        if self.is_registered(recipe):
            return
        packed = zlib.compress(json.dumps(dict(parts)).encode())
        with no_space_declined(self, is_counted=False), io_told(f"recipe {recipe} could not be stored"):
            min_free, free = self.ledger.min_free_bytes, self.disk.free_bytes()
            short = min_free + len(packed) - free
            if short > 0 and not eviction.evict(self, short):
                has = status_text.free(free, min_free)
                raise errors.Declined(f"no room for new samples: the disk under {self.root} has {has}")
            with self.writer, self.index.write() as conn:
                queries.add_recipe(conn, recipe, name, self.clock(), packed)

    def is_registered(self, recipe: str) -> bool:
        with self.index.read() as conn:
            return queries.has_parts(conn, recipe)

    def generation(self, recipe: str) -> int:
        """The recipe's generation; 0 for one that is not known."""
        with self.index.read() as conn:
            row = queries.recipe(conn, recipe)
        return 0 if row is None else row.generation

    def resolve(self, recipe: str, since: int = 0, *, holder: str | None = None) -> Resolved:
        """The recipe's artifacts: new since a generation, or all when something was removed since.

        Args:
            since: what the client has seen; 0 for nothing, FutureGeneration for what never was.
            holder: the session that takes holds on all that is answered, in the same step.
        """
        while True:
            removals = self.removals
            with self.index.read() as conn:
                row = queries.recipe(conn, recipe)
                generation = 0 if row is None else row.generation
                if since > generation:
                    raise errors.FutureGeneration(
                        f"generation {since} of recipe {scopes.digest(recipe)} never existed here (now "
                        f"{generation}); this is another index: resolve from 0",
                        recipe=scopes.digest(recipe),
                        generation=generation,
                    )
                if row is None:
                    return Resolved(0, True, ())
                is_complete = since == 0 or since < row.removed_generation
                refs, chunks, found = queries.of_recipe(conn, row.id, 0 if is_complete else since)
            now = self.clock()
            with self.memory:
                if holder is not None:
                    if self.removals != removals:
                        continue  # NOTE [ Holds against removals ] in core.py
                    self.holds.take(holder, found, self.monotonic())
                self.used.update((entry[0], now) for entry in found)
            return Resolved(generation, is_complete, tuple(refs), chunks)

    # Staging

    def unstage(self, name: str) -> None:
        with io_told("a staged file could not be deleted"):
            self.staged_area.unlink(name)

    def sweep_staging(self, is_live: Callable[[str], bool]) -> Swept:
        with io_told("staging could not be swept"):
            return self.staged_area.sweep(is_live)

    # Holds

    def touch(self, session_id: str, digests: Iterable[str]) -> None:
        now = self.clock()
        with self.memory:
            wanted = (bytes.fromhex(digest) for digest in digests if is_hex64(digest))
            used = self.holds.touch(session_id, wanted, self.monotonic())
            self.used.update(dict.fromkeys(used, now))

    def release(self, session_id: str, digests: Iterable[str] | None = None) -> None:
        """The session let go of these, or (None) ended: of everything."""
        which = None if digests is None else [bytes.fromhex(d) for d in digests if is_hex64(d)]
        with self.memory:
            self.holds.drop(session_id, which)

    def to_let_go(self, session_id: str) -> list[str]:
        """What this session still holds that was removed or merged away."""
        with self.memory:
            return [digest.hex() for digest in self.holds.to_let_go(session_id)]

    def held(self) -> dict[str, tuple[int, int]]:
        with self.memory:
            return self.holds.by_session()

    # Inspection

    def open_entry(
        self, key: str, owner: int | None = None, scope: str = "", digest: str | None = None
    ) -> tuple[int, Entry]:
        """An entry, as `entry` finds it, and its artifact, open for reading; the caller closes it."""
        found = self.entry(key, owner, scope, digest)
        with io_told(f"artifact {found.digest} could not be opened"):
            try:
                return os.open(self.layout.object_path(found.digest), os.O_RDONLY | os.O_CLOEXEC), found
            except FileNotFoundError:
                raise errors.NotFound(f"entry {key} was removed just now", key=key) from None

    def keeps_marks(self) -> bool:
        """Whether an index that is made again from the files would know whose each is."""
        try:
            os.getxattr(self.layout.versioned, SCOPE_XATTR)
        except OSError as error:
            return error.errno == errno.ENODATA
        return True

    def history(self) -> list[tuple[float, ...]]:
        """What the dashboard draws, oldest first."""
        with self.index.read() as conn:
            kept = sa.select(history).where(history.c.at <= self.clock()).order_by(history.c.at)
            return [tuple(row) for row in conn.execute(kept)]

    def keep_sample(self, sample: tuple[float, ...], since: float) -> None:
        """Keeps one more, and those since a time."""
        with self.index.write() as conn:
            conn.execute(history.delete().where(history.c.at < since))
            conn.execute(history.insert().prefix_with("OR REPLACE").values(sample))

    def stats(self) -> Stats:
        with io_told("the disk could not be read"):
            self.look_at_staging()
            free = self.disk.free_bytes()
            index_bytes = self.index.disk_bytes()
        with self.index.read() as conn:
            coldest = queries.coldest_used_at(conn)
        now, ticks = self.clock(), self.monotonic()
        with self.memory:
            recent = sum(1 for at in self.recent_evictions if ticks - at <= RATE_S)
            return Stats(
                **asdict(self.counters),
                **{name: getattr(self.ledger, name) for name in _OF_LEDGER},
                disk_bytes=self.ledger.on_disk,
                unlinked_bytes=self.holds.unlinked_bytes(),
                held_bytes=self.holds.held_bytes(ticks),
                yielding_bytes=self.idle_bytes(),
                effective_limit_bytes=self.ledger.limit(free),
                free_bytes=free,
                evictions_per_s=recent / RATE_S,
                coldest_age_s=None if coldest is None else max(0.0, now - coldest),
                index_bytes=index_bytes,
                users=self.quotas.users(),
            )

    # Care

    def set_pin(self, key: str, is_pinned: bool, owner: int | None = None, scope: str = "") -> Entry:
        with self.writer:
            named = [listing.key_bytes(key)]
            for row in eviction.rows_of(self, artifacts.c.key, named, *listing.owned_by(owner)):
                with self.index.write() as conn:
                    of = artifacts.update().where(artifacts.c.id == row.id)
                    conn.execute(of.values(is_pinned=is_pinned))
                with self.memory:
                    self.counters.pinned_bytes += row.disk_bytes * (is_pinned - row.is_pinned)
                    self.holds.pin(row.digest, is_pinned)
        return self.entry(key, owner, scope)

    def remove_differing(self, keys: Iterable[str], why: str, owner: int | None = None) -> tuple[Key, ...]:
        """Removes entries whose samples a job computed again and found to differ; those removed."""
        wanted = [listing.key_bytes(key) for key in keys]
        with io_told("entries could not be removed"), self.writer:
            rows = eviction.rows_of(self, artifacts.c.key, wanted, *listing.owned_by(owner))
            eviction.remove_damaged(self, rows, f"a job computed different samples: {why}")
        return tuple(Key(row.key.hex()) for row in rows)

    # Background work, a bounded piece a call

    def maintain(self) -> None:
        """Call it about every second."""
        now = self.monotonic()
        with io_told("housekeeping failed"):
            if now - self._recency_at >= RECENCY_S:
                self._recency_at = now
                eviction.write_recency(self)
            self.look_at_staging()
            with self.writer:
                eviction.finish_doomed(self)
            eviction.make_room_ahead(self)
            if now - self._recipes_at >= RECIPES_S:
                self._recipes_at = now
                with self.writer, self.index.write() as conn:
                    queries.drop_idle_recipes(conn, self.clock() - IDLE_S)

    def close(self) -> None:
        """Writes behind what is in memory and lets the root go."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            with contextlib.suppress(errors.StoreError):
                self._scrubber.remember()
                eviction.write_recency(self)
        finally:
            self.index.close()
            with contextlib.suppress(OSError):
                if self._is_kept_up and self.index.is_damaged and self.disk.is_there():
                    discard(self.layout.index)  # the next start may read no page that is damaged
            self.disk.close()


def rebuild(root: str | PathLike[str]) -> dict[str, int]:
    """Makes a root's index again from its artifacts; returns what was done, by name."""
    disk = Root.existing(root)
    try:
        with io_told("the old index could not be deleted"):
            discard(disk.layout.index)
        store = Store(disk)
        store.close()
    finally:
        disk.close()
    return {name: n for name, n in store.counters.recovered.items() if name != integrity.NEW_INDEX}


def check_root(root: str | PathLike[str], *, repair: bool = False) -> list[Finding]:
    """Checks a root that no daemon has open, as it lies."""
    store = Store(Root.existing(root), recover=False)
    try:
        return store.check(repair=repair)
    finally:
        store.close()
