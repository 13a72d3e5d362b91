"""For all tests: jobs that they start can be interrupted; `make soak` tries properties with new examples."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background commands so, and their children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("alike", derandomize=True)
if not os.environ.get("PREPCACHE_SOAK"):
    settings.load_profile("alike")
