"""What the store's parts share: paths, index, holds, ledger, counters, and the two locks.

Locking:
    `writer`  (long) is held over every change of files under `objects/` together with its rows: a
              rename and its INSERT, a DELETE and its unlink. So no commit of a digest can interleave
              with a removal of the same digest. Readers of the index never take it.
    `memory`  (short) guards everything below that is in memory; never held over I/O.
    Order: `writer`, then SQLite's own, then `memory`.

NOTE [ Holds against removals ]
    Who takes holds reads rows first, without locks, and takes them under `memory` afterwards. A removal may
    come between. `removals` rises under `memory` when rows are gone: a taker that sees it moved reads again.
    So nobody waits for a writer. A taker may still come between the DELETE and the count of a removal, and
    finds a file gone: its session is told to let go, and its job makes the items again or, since the
    generation has risen (of a merge, the lease table knows by `on_merged`), looks again.

NOTE [ Full disks ]
    Whoever writes reserves room first (`eviction.room`), and is declined where none can be made. Where others
    fill the disk all the same, ENOSPC becomes `Declined` in one place (`no_space_declined`). A removal writes
    its DELETE before it unlinks: where there is not a byte left, somebody else has to free some first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator

from prepcache import errors
from prepcached.store import queries
from prepcached.store.db import Index
from prepcached.store.records import Counters, Holds, Ledger, Limits, Quotas
from prepcached.store.root import Root
from prepcached.store.staging import StagedArea

log = logging.getLogger("prepcached.store")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Core:
    """The shared state of one open store. `clock` says when something was, `monotonic` for how long: holds,
    above all, which no clock that is set may weaken."""

    index: Index

    def __init__(
        self, disk: Root, limits: Limits, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self.disk = disk
        self.layout = disk.layout
        self.clock = clock
        self.monotonic = monotonic
        self.memory = threading.Lock()
        self.writer = threading.RLock()
        self.stopping = threading.Event()
        self.holds = Holds(limits.hold_idle_s)
        self.ledger = Ledger(0, 0, self.holds)
        self.quotas = Quotas()
        self.counters = Counters()
        self.used: dict[bytes, float] = {}  # by digest, when: written behind
        self.staged_area = StagedArea(disk.layout.staging)
        self.grown_recipes: set[int] = set()  # ids of recipes with new artifacts; see compaction.py
        self.recent_evictions: deque[float] = deque(maxlen=100_000)
        self.removals = 0
        self.merging_bytes = 0  # what the merge that is under way may write, before its parts go
        self.is_full = False  # whether the disk leaves no room at all; logged once
        self.on_merged: Callable[[str, int], object] = lambda recipe, generation: None
        """Called after each merge, by the thread that merges, before the files of the parts go."""
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """Changes the budget while running; eviction follows in the background."""
        with io_told("the disk could not be read"):
            max_bytes, min_free_bytes = self.disk.filled_in(limits)
        with self.memory:
            self.ledger.max_bytes = max_bytes
            self.ledger.min_free_bytes = min_free_bytes
            self.holds.idle_s = limits.hold_idle_s
            self.quotas.default_bytes = limits.user_quota_bytes
            self.quotas.by_owner = dict(limits.quotas)

    def count_again(self) -> None:
        """Sets counters and ledger from the index, at a start."""
        with self.index.read() as conn:
            totals = queries.totals(conn)
            used = queries.owner_bytes(conn)
        counted, ledger = self.counters, self.ledger
        with self.memory:
            counted.entries, counted.size_bytes, ledger.live_bytes, counted.pinned_bytes, counted.cost_s = (
                totals
            )
            self.quotas.used = used

    def check_not_stopping(self, _count: int = 0) -> None:
        """Called between the pieces of long work; DaemonUnreachable where the daemon stops."""
        if self.stopping.is_set():
            raise errors.DaemonUnreachable("the daemon is stopping, and did not finish this")

    def free_bytes(self) -> int:
        """What the disk would give if no merge were under way: nothing else is to go for one."""
        return self.disk.free_bytes() + self.merging_bytes

    def look_at_staging(self) -> None:
        staged_bytes = self.staged_area.disk_bytes()
        with self.memory:
            self.ledger.staged_bytes = staged_bytes

    def idle_bytes(self) -> int:
        """Bytes that neither a hold nor a pin protects. Call it with `memory`."""
        protected = self.counters.pinned_bytes + self.holds.held_bytes(self.monotonic(), pinned_too=False)
        return max(0, self.ledger.live_bytes - protected)


@contextlib.contextmanager
def io_told(what: str) -> Iterator[None]:
    """Turns an OSError into the tree's: the store could not tell, which is not "absent"."""
    try:
        yield
    except OSError as error:
        # Of a rename either name may be at fault, and what the system says is the same.
        names = " to ".join(str(name) for name in (error.filename, error.filename2) if name)
        raise errors.StoreError(
            f"{what}: {error.strerror} ({names or 'no name'})", errno=error.errno
        ) from error


@contextlib.contextmanager
def no_space_declined(core: Core, *, is_counted: bool = True) -> Iterator[None]:
    """NOTE [ Full disks ]: no room, not a fault; counted as what was made and declined, or not."""
    try:
        yield
    except errors.StoreError as error:
        if error.data.get("errno") not in _NO_SPACE and not error.data.get("is_full"):
            raise
        with core.memory:
            core.counters.declined += is_counted
        raise errors.Declined(
            f"the disk under {core.layout.root} is full; free some space, or lower PREPCACHED_MAX_BYTES"
        ) from error
