"""The daemon's worker threads: how many there are of each kind, so that none waits for a slower one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

QUICK_THREADS = 4
"""For calls that only read the index or change memory. Nothing here waits for the store's writer."""
WRITE_THREADS = 2
"""For short calls that write a row: they wait for the writer, and look-ups must not wait for them."""
SLOW_THREADS = 4
"""For calls that read or write artifacts."""
LIST_THREADS = 2
"""For listings, which may look through the whole index."""
LONG_THREADS = 1
"""For calls that read the whole store."""


def started(count: int, name: str) -> ThreadPoolExecutor:
    """Threads that all run from the start: work for which one could not be started later (there are too many)
    would fail, and be done all the same, by the next that is free, when nobody reckons with it."""
    threads, all_run = ThreadPoolExecutor(count, name), threading.Barrier(count)
    try:
        for _ in range(count):
            threads.submit(all_run.wait)
    except RuntimeError:  # those that wait for the others would keep the process for ever
        all_run.abort()
        threads.shutdown()
        raise
    return threads
