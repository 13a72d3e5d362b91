"""For all tests: jobs that they start can be interrupted, garbage is looked for only in what tests make, and
`make soak` tries properties with new examples.
"""

from __future__ import annotations

import gc
import os
import signal

from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background commands so, and their children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("alike", derandomize=True)
if not os.environ.get("PREPCACHE_SOAK"):
    settings.load_profile("alike")


gc.disable()  # until all tests are collected: nothing of that is garbage


def pytest_collection_finish() -> None:
    """What is loaded by now stays. A full collection would look through it for a quarter of a second."""
    gc.collect()
    gc.freeze()
    gc.enable()
