"""For all tests: jobs that they start can be interrupted, whatever started the tests."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background commands so, and their children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
