"""The store's facade: what the daemon calls. Blocking and thread-safe; call it from worker threads.

Invariants:
    1. What `resolve` and `commit` name is a whole artifact on disk, as long as the caller holds it.
    2. "Absent" is answered only when absence is known; a failure to look is a `StoreError`.
    3. Disk use of artifacts is the index's sum (`check` compares).
    4. Who is answered with an artifact as a holder has it from then on: it was neither gone nor on its way
       out when the hold was taken, and neither was what had replaced some of it.
    5. What is answered or touched was used just now; that is kept in memory, and written behind. So nothing
       that is shown needs a write, or waits for one.

Locking: see core.py. Every method may be called from any thread; `maintain`, `merge_some` and
`scrub_some` from one thread each.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from os import PathLike
from typing import Any

import sqlalchemy as sa

from prepcache import errors
from prepcache.digests import Key, is_hex64
from prepcached.store import commit as committing
from prepcached.store import (
    integrity,
    listing,
    purge,
    queries,
    recipes,
    recovery,
    removal,
    room,
    scopes,
    staging,
)
from prepcached.store.commit import AllowedItems
from prepcached.store.compaction import Merger
from prepcached.store.core import Core, Foreground, io_told
from prepcached.store.db import Index, discard
from prepcached.store.eviction import Ledger
from prepcached.store.holds import Held, Holds
from prepcached.store.housekeeping import Housekeeping
from prepcached.store.models import artifacts, history
from prepcached.store.records import (
    Committed,
    Entry,
    Filter,
    Finding,
    Limits,
    NameSums,
    Page,
    RecipeRecord,
    Removed,
    Resolved,
    StagedFile,
    Stats,
    UserBytes,
    Verified,
)
from prepcached.store.root import Root
from prepcached.store.staged_area import Swept

RATE_S = 60.0
"""The eviction rate is that of the last minute."""
_OF_LEDGER = "unlinked_bytes", "staged_bytes", "stray_bytes", "reserved_bytes", "max_bytes", "min_free_bytes"
_NO_LIMITS = Limits()
_NO_FILTER = Filter()


class Store:
    """A root with its artifacts and index.

    Args:
        root: the folder, made if absent; or one that this process has already taken. The store closes it.
        limits: the budget; may be changed later by `set_limits`.
        clock, monotonic: seconds since the epoch; seconds that nobody sets, for spans.
        recover: False leaves everything as a crash left it, for `check` to look at.
        progress: of recovery, which takes long where the index is lost.

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
        progress: recovery.Progress | None = None,
    ) -> None:
        self.is_closed = False
        self._root = root if isinstance(root, Root) else Root(os.fspath(root))
        self._is_kept_up = recover

        def make(index: Index, ledger: Ledger) -> Core:
            holds = Holds(limits.hold_idle_s)
            return Core(self._root, index, holds, ledger, clock, monotonic, limits.artifact_bytes)

        with contextlib.ExitStack() as undo, io_told("the store could not be opened"):
            undo.callback(self._root.close)
            self._core = recovery.open_core(self._root, limits, make, recover, progress)
            undo.callback(self._core.index.close)
            self._core.quotas.default_bytes = limits.user_quota_bytes
            self._core.quotas.by_owner = dict(limits.quotas)
            self._housekeeping, self._merger = Housekeeping(self._core), Merger(self._core)
            self._scrubber = integrity.Scrubber(self._core)
            undo.pop_all()

    # Facts

    @property
    def root(self) -> str:
        """The root, absolute."""
        return self._core.layout.root

    @property
    def instance(self) -> str:
        """Names this root; also the text of `<root>/instance`."""
        return self._root.instance

    def is_there(self) -> bool:
        """Whether the root still lies where it was opened; StoreError where that cannot be told."""
        with io_told("the root could not be accessed"):
            return self._root.is_there()

    @property
    def staging(self) -> str:
        """The staging folder. Staged names are `<session id>.<anything>`, one path component."""
        return self._core.layout.staging

    @property
    def objects(self) -> str:
        """The objects folder. An artifact is `objects/<first two hex>/<digest>`."""
        return self._core.layout.objects

    @property
    def foreground(self) -> Foreground:
        """To be entered around what somebody waits for: background work stands aside."""
        return self._core.foreground

    def on_merged(self, tell: Callable[[str, int], None]) -> None:
        """From now on `tell` is called with a recipe and its generation after each merge, by the thread that
        merges, before the files of the parts go."""
        self._core.on_merged = tell

    def is_damaged(self) -> bool:
        """Whether the index proved damaged since it was opened, or was removed."""
        with io_told("the index could not be accessed"):
            self._core.index.look()
        return self._core.index.is_damaged

    def snapshot(self) -> AbstractContextManager[sa.Connection]:
        """A read-only transaction on the index's file."""
        return self._core.index.read()

    # The client's protocol

    def register(self, recipe: str, name: str, parts: Mapping[str, Any]) -> None:
        """Makes a recipe known, with its readable parts.

        The first registration stands; the digest says that later ones mean the same.
        """
        recipes.register(self._core, recipe, name, parts)

    def is_registered(self, recipe: str) -> bool:
        """Whether the store knows the recipe, which counts as asked for; writes nothing."""
        return recipes.is_known(self._core, recipe)

    def generation(self, recipe: str) -> int:
        """The recipe's generation; 0 for one that is not known."""
        with self.snapshot() as conn:
            row = queries.recipe(conn, recipe)
        return 0 if row is None else row.generation

    def resolve(self, recipe: str, since: int = 0, *, holder: str | None = None) -> Resolved:
        """The recipe's artifacts: new since a generation, or all when something was removed since.

        Args:
            recipe: scoped (scopes.py), as in all calls here.
            since: the generation that the client has seen; 0 for none.
            holder: the session that takes holds on all that is answered, in the same step.

        Raises:
            FutureGeneration: this index was never there: the client must ask from 0.
        """
        core = self._core
        while True:
            removals = core.removals
            with core.index.read() as conn:
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
                refs, found = queries.of_recipe(conn, row.id, 0 if is_complete else since)
                is_damaged = since == 0 and queries.is_damage(conn, row)
            now = core.clock()
            with core.memory:
                if holder is not None and core.removals != removals:
                    continue  # NOTE [ Holds against removals ] in core.py
                if holder is not None:
                    pairs = zip(refs, found, strict=True)
                    stays = [(r, f) for r, f in pairs if not core.holds.is_condemned(f[0])]
                    if len(stays) < len(refs):  # what an artifact replaced leaves with it: catalogue.py
                        there = {r.digest for r, _ in stays}
                        floor = max(r.edition for r in refs if r.digest not in there)
                        stays = [(r, f) for r, f in stays if r.edition >= floor]
                    refs, found = [r for r, _ in stays], [f for _, f in stays]
                    core.holds.take(holder, found, core.monotonic())
                core.used.update((entry[0], now) for entry in found)
                return Resolved(generation, is_complete, tuple(refs), is_damaged)

    def refusal(self, size_bytes: int, owner: int | None = None) -> str:
        """Why so many more bytes, of this owner, would not be taken, evicting what is idle; empty where they
        fit. An estimate for leases."""
        core = self._core
        with io_told("the disk could not be read"):
            free = core.root.free_bytes()
        with core.memory:
            short = 0 if owner is None else core.quotas.shortfall(owner, size_bytes)
            if not core.fits(size_bytes, free):
                return core.ledger.refusal(size_bytes, free)
        if owner is None or room.could_evict(core, short, owner):
            return ""
        with core.memory:
            return core.quotas.refusal(owner, size_bytes)

    def commit(
        self,
        recipe: str,
        staged: Sequence[StagedFile],
        *,
        owner_uid: int,
        allowed_items: AllowedItems | None = None,
        holder: str | None = None,
    ) -> Committed:
        """Takes staged files into the store, all or none (NOTE [ Commit order ] in durable.py).

        Args:
            recipe: the registered recipe that every file must be of.
            staged: what the client announced.
            owner_uid: whose files they must be, and who owns the entries.
            allowed_items: uint8[n, 32] -> bool[n]: which items the leases name; None allows all.
            holder: the session that takes holds on the new artifacts.

        Raises:
            StagedFileRefused, TooLarge: a file is not what was announced, or may not be.
            UnknownRecipe: nobody registered it.
            Declined: no room can be made.
            StoreError: the disk or the index failed; nothing was committed.
        """
        return committing.commit(
            self._core,
            recipe,
            staged,
            owner_uid=owner_uid,
            allowed_items=allowed_items,
            holder=holder,
        )

    # Uploads and staging

    def upload(self, name: str, size_bytes: int) -> AbstractContextManager[room.Upload]:
        """A new staged file, open for writing, and room for its bytes until the block ends.

        Entering waits for the disk, leaving does not. Inside, a full disk declines, and other trouble is a
        StoreError; the caller closes the descriptor.

        Raises:
            Declined: no room can be made.
        """
        return room.uploading(self._core, name, size_bytes)

    def unstage(self, name: str) -> None:
        """Deletes one staged file, if it is there."""
        with io_told("a staged file could not be deleted"):
            self._core.staged_area.unlink(name)

    def note_leased(self, session_ids: Iterable[str]) -> None:
        """Says which sessions hold leases: only what these staged counts against the budget."""
        self._core.staged_area.leased = frozenset(session_ids)

    def sweep_staging(self, live: Collection[str]) -> Swept:
        """Removes what no lease names from the staging folder, but for what a commit or an upload has.

        Args:
            live: sessions that are open, or whose commit is under way.
        """
        with io_told("staging could not be swept"):
            return self._core.staged_area.sweep(live)

    def discard_staged(self, *session_ids: str) -> int:
        """Deletes all staged files of these sessions; returns how many."""
        with io_told("staging could not be swept"):
            return self._core.staged_area.discard(session_ids)

    # Holds

    def touch(self, session_id: str, digests: Iterable[str]) -> None:
        """The session used these since its last beat: their holds do not weaken."""
        core = self._core
        now = core.clock()
        with core.memory:
            wanted = (bytes.fromhex(digest) for digest in digests if is_hex64(digest))
            used = core.holds.touch(session_id, wanted, core.monotonic())
            core.used.update(dict.fromkeys(used, now))

    def release(self, session_id: str, digests: Iterable[str] | None = None) -> None:
        """The session let go of these, or (None) ended: of everything."""
        core = self._core
        which = None if digests is None else [bytes.fromhex(d) for d in digests if is_hex64(d)]
        with core.memory:
            core.holds.drop(session_id, which)
            core.has_ended_session |= which is None
            core.ledger.unlinked_bytes = core.holds.unlinked_bytes()

    def to_let_go(self, session_id: str) -> list[str]:
        """What this session still holds that was removed or merged away."""
        with self._core.memory:
            return [digest.hex() for digest in self._core.holds.to_let_go(session_id)]

    def held(self) -> dict[str, Held]:
        """What each session holds; who holds nothing is not in it."""
        with self._core.memory:
            return self._core.holds.by_session()

    # Inspection

    def entries(
        self,
        filter: Filter = _NO_FILTER,
        *,
        sort: str = "-used_at",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """A page of entries. `sort` is one of listing.SORTS, with "-" for descending."""
        with self.snapshot() as conn:
            found, cursor = listing.page(
                conn,
                filter,
                sort=sort,
                cursor=cursor,
                limit=limit,
                now=self._core.clock(),
                holds=self._count_holds,
            )
        return Page(tuple(found), cursor)

    def entry(self, key: str, owner: int | None = None, scope: str = "") -> Entry:
        """One entry, of this owner, as below; of several the one of this scope. Raises NotFound."""
        with self.snapshot() as conn:
            return listing.entry(conn, key, self._count_holds, owner, scope)

    def open_entry(self, key: str, owner: int | None = None, scope: str = "") -> tuple[int, Entry]:
        """An entry and its artifact, open for reading; the caller closes it. Raises NotFound."""
        found = self.entry(key, owner, scope)
        return self._opened(key, found.digest), found

    def open_artifact(self, key: str, digest: str, owner: int | None = None) -> int:
        """An entry's artifact by its digest, open for reading; the caller closes it. Raises NotFound."""
        rows = removal.rows_of(
            self._core, artifacts.c.digest, [bytes.fromhex(digest)], *listing.owned_by(owner)
        )
        if not any(row.key == bytes.fromhex(key) for row in rows):
            raise errors.NotFound(f"entry {key} no longer has artifact {digest}", key=key)
        return self._opened(key, digest)

    def name_sums(self, limit: int, owner: int | None = None) -> list[NameSums]:
        """What the entries of each recipe name come to, latest used first."""
        with self.snapshot() as conn:
            return listing.name_sums(conn, limit, owner)

    def recipes(
        self,
        *,
        cursor: str | None = None,
        limit: int = 100,
        scope: str | None = None,
        prefix: str | None = None,
    ) -> tuple[list[RecipeRecord], str | None]:
        """A page of recipes, of one scope or of all, newest first, without their parts.

        Args:
            prefix: the first hex digits of their digests.
        """
        return recipes.page(self._core, cursor, limit, scope, prefix)

    def recipe(self, recipe: str, *, any_scope: bool = False, owner: int | None = None) -> RecipeRecord:
        """One recipe with its readable parts (None where they are not known); raises NotFound.

        Args:
            any_scope: the shared one of this digest, or else one of some user's own.
            owner: one of this digest in which he has entries, and of these alone what it has.
        """
        return recipes.record(self._core, recipe, any_scope=any_scope, owner=owner)

    def keeps_marks(self) -> bool:
        """Whether an index that is made again from the files would know whose each is."""
        with io_told("extended attributes could not be asked for"):
            return staging.keeps_marks(self._core.layout.versioned)

    def history(self) -> list[tuple[float, ...]]:
        """The samples that were kept, oldest first: what the dashboard draws."""
        with self.snapshot() as conn:
            kept = sa.select(history).where(history.c.at <= self._core.clock()).order_by(history.c.at)
            return [tuple(row) for row in conn.execute(kept)]

    def keep_sample(self, sample: tuple[float, ...], since: float) -> None:
        """Keeps one more, and those since a time."""
        with self._core.index.write() as conn:
            conn.execute(history.delete().where(history.c.at < since))
            conn.execute(history.insert().prefix_with("OR REPLACE").values(sample))

    def stats(self) -> Stats:
        """Counters and gauges."""
        core = self._core
        with io_told("the disk could not be read"):
            core.look_at_staging()
            free = core.root.free_bytes()
            index_bytes = core.index.disk_bytes()
        with core.index.read() as conn:
            coldest = queries.coldest_used_at(conn)
        now, ticks = core.clock(), core.monotonic()
        with core.memory:
            ledger, counters = core.ledger, core.counters
            recent = sum(1 for at in core.recent_evictions if ticks - at <= RATE_S)
            return Stats(
                **asdict(counters),
                **{name: getattr(ledger, name) for name in _OF_LEDGER},
                disk_bytes=ledger.on_disk,
                held_bytes=core.holds.held_bytes(ticks),
                yielding_bytes=core.idle_bytes(),
                effective_limit_bytes=ledger.limit(free),
                free_bytes=free,
                evictions_per_s=recent / RATE_S,
                coldest_age_s=None if coldest is None else max(0.0, now - coldest),
                index_bytes=index_bytes,
                users=tuple(UserBytes(*one) for one in core.quotas.told()),
            )

    # Care

    def pin(self, key: str, owner: int | None = None, scope: str = "") -> Entry:
        """Keeps an entry from being evicted, of this owner or of all; raises NotFound."""
        self._set_pin(key, True, owner)
        return self.entry(key, owner, scope)

    def unpin(self, key: str, owner: int | None = None, scope: str = "") -> Entry:
        """Lets an entry be evicted again; raises NotFound."""
        self._set_pin(key, False, owner)
        return self.entry(key, owner, scope)

    def purge(self, filter: Filter, *, dry_run: bool = False, free_bytes: int | None = None) -> Removed:
        """Removes every entry that matches, held and pinned ones too.

        Args:
            free_bytes: bytes on disk after which to stop. The least recently used entries go first, and those
                that are pinned or held stay.
        """
        return purge.purge(self._core, filter, dry_run=dry_run, free_bytes=free_bytes)

    def verify(
        self,
        keys: Iterable[str] | None = None,
        *,
        progress: integrity.Progress = None,
        owner: int | None = None,
    ) -> Verified:
        """Reads artifacts whole, now: all, or those of some keys, or an owner. Damaged ones are removed."""
        return integrity.verify(self._core, keys, progress, owner)

    def remove_differing(self, keys: Iterable[str], why: str, owner: int | None = None) -> tuple[Key, ...]:
        """Removes entries whose samples a job made again and found to be others; those removed."""
        core = self._core
        wanted = [listing.key_bytes(key) for key in keys]
        with io_told("entries could not be removed"), core.writer:
            rows = removal.rows_of(core, artifacts.c.key, wanted, *listing.owned_by(owner))
            removal.remove_damaged(core, rows, f"a job computed different samples: {why}")
        return tuple(Key(row.key.hex()) for row in rows)

    def check(self, *, repair: bool = False, breaks_off: bool = False) -> list[Finding]:
        """Compares index and disk; see recovery.py for what it finds and mends."""
        return recovery.check(self._core, repair=repair, breaks_off=breaks_off)

    def set_limits(self, limits: Limits) -> None:
        """Changes the budget while running; eviction follows in the background."""
        with io_told("the disk could not be read"):
            max_bytes, min_free_bytes = self._root.filled_in(limits)
        with self._core.memory:
            self._core.ledger.max_bytes = max_bytes
            self._core.ledger.min_free_bytes = min_free_bytes
            self._core.holds.idle_s = limits.hold_idle_s
            self._core.artifact_bytes = limits.artifact_bytes
            self._core.quotas.default_bytes = limits.user_quota_bytes
            self._core.quotas.by_owner = dict(limits.quotas)

    # Background work, a bounded piece a call

    def maintain(self) -> None:
        """Call it about every second: see housekeeping.py."""
        self._housekeeping.tend()

    @property
    def merged_bytes(self) -> int:
        """What merges have read since the start."""
        return self._core.counters.merged_bytes

    def merge_some(self) -> bool:
        """Does one merge, if there is one to do; whether it did."""
        return self._merger.some()

    def scrub_some(self, max_bytes: int) -> int:
        """Reads on in the round through all artifacts; returns the bytes read."""
        return self._scrubber.some(max_bytes)

    def begin_stop(self) -> None:
        """Breaks off merges, scrubs, verifications and purges at their next piece; commits go on."""
        self._core.stopping.set()

    def close(self) -> None:
        """Writes behind what is in memory and lets the root go. A second call does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            with contextlib.suppress(errors.StoreError):
                self._scrubber.close()
                removal.write_recency(self._core)
                recipes.write_asked(self._core)
        finally:
            with contextlib.suppress(OSError):
                self._core.index.look()
            self._core.index.close()
            with contextlib.suppress(OSError):
                if self._is_kept_up and self._core.index.is_damaged and self._root.is_there():
                    discard(self._core.layout.index)  # the next start may read no page that is damaged
            self._root.close()

    def _set_pin(self, key: str, is_pinned: bool, owner: int | None) -> None:
        core = self._core
        with core.writer:
            named = [listing.key_bytes(key)]
            rows = removal.rows_of(core, artifacts.c.key, named, *listing.owned_by(owner))
            for row in rows:
                with core.index.write() as conn:
                    conn.execute(
                        artifacts.update().where(artifacts.c.id == row.id).values(is_pinned=is_pinned)
                    )
                with core.memory:
                    core.counters.pinned_bytes += row.disk_bytes * (is_pinned - row.is_pinned)
                    core.holds.pin(row.digest, is_pinned)

    def _opened(self, key: str, digest: str) -> int:
        with io_told(f"artifact {digest} could not be opened"):
            try:
                return os.open(self._core.layout.object_path(digest), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise errors.NotFound(f"entry {key} was removed just now", key=key) from None

    def _count_holds(self, digest: bytes) -> int:
        with self._core.memory:
            return self._core.holds.count(digest)
