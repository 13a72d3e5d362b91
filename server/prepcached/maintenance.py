"""Maintenance: the store's background work, in two threads.

Invariants:
    1. One thread evicts ahead and writes behind, the other merges and scrubs: who needs room waits for no
       artifact that is read.
    2. Each turn does a bounded piece of work; one that fails is logged, and the next turn goes on.
    3. What merges and scrubs reads at most `DISK_BYTES_PER_S` on average, and works `SHARE` of the time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from prepcache.errors import DaemonUnreachable, StoreError
from prepcached.store.store import Store

LOG = logging.getLogger(__name__)

TURN_S = 1.0  # the pause after a turn that found nothing to do
DISK_BYTES_PER_S = 16 << 20  # 200 GiB in four hours
SHARE = 0.2


class Maintenance:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self._failed: dict[str, str] = {}
        """The last error of each kind of work; one that repeats is logged once."""
        self._threads = [
            threading.Thread(target=work, name=work.__name__, daemon=True)
            for work in (self.maintain, self.merge_and_scrub)
        ]

    def start(self) -> None:
        for one in self._threads:
            one.start()

    @property
    def is_alive(self) -> bool:
        return all(one.is_alive() for one in self._threads)

    def stop(self) -> None:
        """Stops after the pieces in hand, which a stopping store cuts short."""
        self._stop.set()
        for one in self._threads:
            if one.is_alive():
                one.join()

    def maintain(self) -> None:
        while not self._stop.wait(TURN_S):
            self._try("maintain", self._store.maintain)

    def merge_and_scrub(self) -> None:
        counters, rest_s = self._store.counters, TURN_S
        while not self._stop.wait(rest_s):
            began, before = time.monotonic(), counters.merged_bytes + counters.scrubbed_bytes
            is_done = not (
                self._try("merge", self._store.merge_some) or self._try("scrub", self._store.scrub_one)
            )
            # What failed has read, too.
            read_bytes = counters.merged_bytes + counters.scrubbed_bytes - before
            worked_s = time.monotonic() - began
            rest_s = max(read_bytes / DISK_BYTES_PER_S, worked_s / SHARE - worked_s, is_done * TURN_S)

    def _try(self, what: str, work: Callable[[], object]) -> object:
        """What the work returned; None where it failed."""
        done = None
        try:
            done = work()
        except DaemonUnreachable:
            LOG.debug("%s was interrupted by the shutdown", what)
        except Exception as error:
            if self._failed.get(what) != repr(error):
                LOG.error("%s failed: %s", what, error, exc_info=not isinstance(error, StoreError))
            self._failed[what] = repr(error)
        else:
            self._failed.pop(what, None)
        return done
