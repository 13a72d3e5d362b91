"""Progress of a lazy data set: a line now and then on how much of it is cached, by whichever processes.

Invariants:
    1. A thread says it that keeps neither the data set nor the process alive, and ends when all is cached.
    2. It asks the daemon on its own time: the job loses nothing to it.
    3. The pauses between lines double, and what has not changed is not said.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from prepcache import progress
from prepcache.daemon.wait_budget import on_own_time
from prepcache.protocol.units import span_text

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
    arguments = (weakref.ref(artifacts), weakref.ref(catalogue), name, is_shown, is_over)
    try:
        threading.Thread(target=_tell, args=arguments, name="prepcache-progress", daemon=True).start()
    except RuntimeError:  # there are too many
        return


def _tell(
    artifacts_of: Any, catalogue_of: Any, name: str, is_shown: bool | None, is_over: threading.Event
) -> None:
    began, pause_s, last = time.monotonic(), progress.FIRST_LINE_S, -1
    first = _there(catalogue_of())[0]
    while not is_over.wait(pause_s):
        artifacts = artifacts_of()
        if artifacts is None:
            return
        with on_own_time(ASK_S):
            artifacts.look()
        there, total = _there(catalogue_of())
        del artifacts
        if there != last:
            line = _line(there, total, there - first, time.monotonic() - began)
            progress.say(f"{name}: {line}", is_shown)
        if there == total:
            return
        last, pause_s = there, min(2 * pause_s, progress.LONGEST_PAUSE_S)


def _there(catalogue: Any) -> tuple[int, int]:
    """How many distinct items are there, and how many there are in all."""
    if catalogue is None:
        return 0, 0
    total = len(catalogue.distinct)
    return total - len(catalogue.missing), total


def _line(there: int, total: int, made: int, passed_s: float) -> str:
    if there == total:
        return f"all {total:,} items are cached"
    parts = [f"{there:,} of {total:,} items are cached"]
    if made > 0:  # a purge takes some away
        parts += [
            f"{span_text((total - there) * passed_s / made)} to go",
            f"{made / passed_s:.1f} items/s",
        ]
    return ", ".join(parts)
