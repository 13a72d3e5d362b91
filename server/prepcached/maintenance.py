"""Maintenance: the store's background work, in threads of its own.

Invariants:
    1. Each turn does a bounded piece of each kind of work; a piece that fails is logged, and the next turn
       goes on.
    2. Eviction waits for no merge or scrub, which may read gigabytes of a slow disk.
    3. Scrub and merges each read at most `DISK_BYTES_PER_S` on average, and work for a bounded share of the
       time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from prepcache.errors import DaemonUnreachable, StoreError
from prepcached.store.store import Store

LOG = logging.getLogger(__name__)

TURN_S = 1.0  # the pause between two turns
DISK_BYTES_PER_S = 16 << 20  # 200 GiB in four hours
SCRUB_SHARE = 0.1
MERGE_SHARE = 0.25
"""Of the time, beyond the one merge of each turn: hundreds of small artifacts are soon one, and requests have
the interpreter for most of the time."""


class Maintenance:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self._merge_at = self._scrub_at = 0.0  # when the next may begin
        self._failed: dict[str, str] = {}
        """The last error of each kind of work; one that repeats is logged once."""
        self._threads = [
            threading.Thread(target=self._run, args=[turn], name=name, daemon=True)
            for name, turn in (("maintenance", self.maintain), ("reading", self.read))
        ]

    def start(self) -> None:
        for one in self._threads:
            one.start()

    @property
    def is_alive(self) -> bool:
        return all(one.is_alive() for one in self._threads)

    def stop(self) -> None:
        """Stops after the piece in hand, which a stopping store cuts short."""
        self._stop.set()
        for one in self._threads:
            if one.is_alive():
                one.join()

    def maintain(self) -> None:
        self._try("maintain", self._store.maintain)

    def read(self) -> None:
        self._try("merge", self._merge)
        self._try("scrub", self._scrub)

    def _merge(self) -> None:
        until = time.monotonic() + MERGE_SHARE * TURN_S
        while self._merge_at <= (now := time.monotonic()) < until and not self._stop.is_set():
            before = self._store.counters.merged_bytes
            try:
                if not self._store.merge_some():
                    return
            finally:  # a merge that failed has read, too
                self._merge_at = now + (self._store.counters.merged_bytes - before) / DISK_BYTES_PER_S

    def _scrub(self) -> None:
        now = time.monotonic()
        until, self._scrub_at = now + SCRUB_SHARE * TURN_S, max(self._scrub_at, now - TURN_S)
        while self._scrub_at <= time.monotonic() < until and not self._stop.is_set():
            read_bytes = self._store.scrub_one()
            if not read_bytes:
                return
            self._scrub_at += read_bytes / DISK_BYTES_PER_S

    def _run(self, turn: Callable[[], None]) -> None:
        while not self._stop.wait(TURN_S):
            turn()

    def _try(self, what: str, work: Callable[[], object]) -> None:
        if self._stop.is_set():
            return
        try:
            work()
        except DaemonUnreachable:
            LOG.debug("%s was interrupted by the shutdown", what)
        except Exception as error:
            if self._failed.get(what) != repr(error):
                LOG.error("%s failed: %s", what, error, exc_info=not isinstance(error, StoreError))
            self._failed[what] = repr(error)
        else:
            self._failed.pop(what, None)
