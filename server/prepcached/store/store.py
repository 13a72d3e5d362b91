"""The store's facade: what the daemon calls. Blocking and thread-safe; call it from worker threads.

Interface first; see SPEC. Signatures below are fixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from sqlalchemy import Connection, MetaData

from prepcached.store.records import (
    Committed,
    Entry,
    Filter,
    Finding,
    Limits,
    Page,
    RecipeRecord,
    Removed,
    Resolved,
    StagedFile,
    Stats,
    Verified,
)

AllowedItems = Callable[[np.ndarray], np.ndarray]
"""uint8[n, 32] item digests -> bool[n]: which of them the leases name."""
OnRemoved = Callable[[Sequence[str], str], None]
"""(digests, reason): reason is "evict", "purge", "quarantine", "replace" or "merge"."""


class Store:
    """A root with its artifacts and index.

    Args:
        root: the folder; made if absent.
        limits: the budget; may be changed later by `set_limits`.
        clock: seconds since the epoch.
        extra_tables: tables that live in the same SQLite file (leases, sessions).
        on_removed: called after artifacts were removed or retired, outside all locks, from the thread that did it.

    Raises:
        RootUnusable, RootInUse, IndexCorrupt, StoreError.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        *,
        limits: Limits = Limits(),
        clock: Callable[[], float] = time.time,
        extra_tables: MetaData | None = None,
        on_removed: OnRemoved | None = None,
    ) -> None: ...

    # -- facts
    root: str
    instance: str
    staging: str  # path of the staging folder; staged names are "<session id>.<anything>", one path component
    objects: str  # path of the objects folder; an artifact is objects/<first two hex>/<digest>

    # -- the daemon's own tables, same file: write(conn) is BEGIN IMMEDIATE ... COMMIT, read a snapshot
    def transaction(self): ...  # contextmanager -> Connection (writer)
    def snapshot(self): ...  # contextmanager -> Connection (reader)

    # -- the client's protocol
    def register(self, recipe: str, name: str, parts: Mapping[str, Any]) -> None: ...
    def is_registered(self, recipe: str) -> bool: ...
    def generation(self, recipe: str) -> int: ...
    def resolve(self, recipe: str, since: int = 0, *, holder: str | None = None) -> Resolved: ...
    def can_fit(self, size_bytes: int) -> bool: ...
    def commit(
        self,
        recipe: str,
        staged: Sequence[StagedFile],
        *,
        owner_uid: int,
        allowed_items: AllowedItems | None = None,
        in_transaction: Callable[[Connection], None] | None = None,
        holder: str | None = None,
    ) -> Committed: ...

    # -- uploads over HTTP: the daemon's own staged file; bytes are reserved as announced
    def new_staged(self, session_id: str) -> tuple[int, str]: ...  # (fd open for writing, name)
    def discard_staged(self, session_id: str) -> int: ...  # all files of a session; how many
    def sweep_staging(self, live: Collection[str]) -> int: ...  # files of every other session

    # -- holds
    def hold(self, session_id: str, digests: Iterable[str]) -> list[str]: ...  # those that are not there (to let go)
    def touch(self, session_id: str, digests: Iterable[str]) -> None: ...  # used since the last beat
    def release(self, session_id: str, digests: Iterable[str] | None = None) -> None: ...
    def to_let_go(self, session_id: str) -> list[str]: ...  # removed or retired, and still held by this session

    # -- inspection and care
    def entries(
        self, filter: Filter = Filter(), *, sort: str = "-used_at", cursor: str | None = None, limit: int = 100
    ) -> Page: ...
    def entry(self, key: str) -> Entry: ...  # NotFound
    def open_entry(self, key: str) -> tuple[int, Entry]: ...  # an open descriptor for GET .../data
    def recipes(self, *, cursor: str | None = None, limit: int = 100) -> tuple[list[RecipeRecord], str | None]: ...
    def recipe(self, digest: str) -> RecipeRecord: ...  # with parts; NotFound
    def pin(self, key: str) -> Entry: ...
    def unpin(self, key: str) -> Entry: ...
    def purge(self, filter: Filter, *, dry_run: bool = False) -> Removed: ...
    def verify(
        self, keys: Iterable[str] | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> Verified: ...
    def stats(self) -> Stats: ...
    def check(self, *, repair: bool = False) -> list[Finding]: ...
    def set_limits(self, limits: Limits) -> None: ...

    # -- background work: each does a bounded piece and returns; the daemon's one maintenance thread calls them
    def maintain(self) -> None: ...  # every second: recency written behind, eviction ahead, retired files
    def evict_to_fit(self, size_bytes: int) -> bool: ...
    def merge_some(self) -> bool: ...  # whether it merged something
    def scrub_some(self, max_bytes: int) -> int: ...  # bytes read
    def close(self) -> None: ...
