"""Progress of a lazy data set: a line now and then on how much of it is cached, by whichever processes.

A thread says it that keeps neither the data set nor the process alive, and asks the daemon on its own time.
It ends when all is cached. The pauses between lines double, and what has not changed is not said.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

from prepcache import progress
from prepcache.daemon.wait_budget import on_own_time

ASK_S = 2.0
"""What one request to the daemon may take."""


def tell_of(artifacts: Any, catalogue: Any, name: str, is_shown: bool | None) -> None:
    """Begins to tell of a data set.

    Args:
        artifacts: those of its recipe, as in artifact_set.py.
        catalogue: its items.
        is_shown: False tells nothing.
    """
    if is_shown is False or not len(catalogue.missing):
        return
    is_over = threading.Event()
    weakref.finalize(artifacts, is_over.set).atexit = False
    of = weakref.ref(artifacts), weakref.ref(catalogue)

    def tell() -> None:
        pause_s, last = progress.FIRST_LINE_S, -1
        while not is_over.wait(pause_s):
            artifacts, catalogue = of[0](), of[1]()
            if artifacts is None or catalogue is None:
                return
            with on_own_time(ASK_S):
                artifacts.look()
            total = len(catalogue.distinct)
            there = total - len(catalogue.missing)
            del artifacts, catalogue
            if there != last:
                count = f"all {total:,}" if there == total else f"{there:,} of {total:,}"
                progress.say(f"{name}: {count} items are cached", is_shown)
            if there == total:
                return
            last, pause_s = there, min(2 * pause_s, progress.LONGEST_PAUSE_S)

    with contextlib.suppress(RuntimeError):  # there are too many threads
        threading.Thread(target=tell, name="prepcache-progress", daemon=True).start()
