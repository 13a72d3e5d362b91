"""Opening a store: its index, and what a crash left. An index that is damaged is deleted and made again.

Invariants:
    1. A damaged index is deleted, its log first, which would be taken for that of the next index.
    2. A disk that fails is no damage: the start fails, and another may find the index as it was. So it does
       where the index that was just made is damaged too.

NOTE [ A damaged index ]
    Up to some size the whole index is checked when it is opened, and a start reads all rows of any. What it
    finds no damage in may be damaged all the same: SQLite then says so when a page is read. The daemon ends
    by that, and deletes the index, so that the next start does not have to find it again.
    What only the index knew is lost: pins, and when entries were used.
"""

from __future__ import annotations

from collections.abc import Callable

from prepcache import errors
from prepcached.store import db, disk_reserve, recovery
from prepcached.store.core import Core, log
from prepcached.store.db import Index, open_index
from prepcached.store.eviction import Ledger
from prepcached.store.records import Limits
from prepcached.store.root import Root

MADE_AGAIN = "damaged index"
"""What was done at a start where one was deleted, beside what recovery.py did."""


def open_core(
    root: Root,
    limits: Limits,
    make: Callable[[Index, Ledger], Core],
    recover: bool,
    progress: recovery.Progress | None,
) -> Core:
    """A store's core, ready.

    Args:
        make: the core of an index and a ledger.
        recover: False leaves everything as it is.

    Raises:
        IndexCorrupt: the index is damaged, and must be left as it is, or a new one is damaged too.
    """
    disk_reserve.give_up(root.layout)
    try:
        return _open(root, limits, make, recover, progress)
    except errors.IndexCorrupt as damage:
        if not recover:
            raise
        if not db.proves_damaged(root.layout.index):
            why = f"{damage.message.partition(':')[0]}, but is whole where it can be read{db.DISK_FAILS}"
            raise errors.StoreError(why, path=root.layout.index) from damage
        db.discard(root.layout.index)
        log.error(
            "%s. This start rebuilds it, which may take a while. Pins and times of last use are lost",
            damage.message,
        )
    core = _open(root, limits, make, recover, progress)
    core.counters.recovered = {MADE_AGAIN: 1, **core.counters.recovered}
    return core


def _open(
    root: Root,
    limits: Limits,
    make: Callable[[Index, Ledger], Core],
    recover: bool,
    progress: recovery.Progress | None,
) -> Core:
    opened = open_index(root.layout.index, may_discard=recover)
    try:
        core = make(opened, Ledger(*root.filled_in(limits)))
        if opened.is_new:
            recovery.begin(core)
        core.count_again()
        if recover:
            done = recovery.recover(core, progress)
            if done:
                log.info("recovered: %s", ", ".join(f"{n} {what}" for what, n in sorted(done.items())))
                core.count_again()
            core.counters.recovered = done
        core.look_at_staging()
        if recover:
            disk_reserve.take(root.layout)  # others may fill the disk before upkeep does
    except BaseException:
        opened.close()
        raise
    return core
