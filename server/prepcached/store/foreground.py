"""Requests first: how the background stands aside while any is being answered.

One interpreter runs one thread at a time. A request takes it back some ten times, and each time a busy
background thread may have it; and both share two cores with the jobs. So the background asks here before
each of its smallest pieces (an artifact's header, some rows), and never while it has a lock.
"""

from __future__ import annotations

import threading

GIVE_WAY_S = 0.01
"""The longest that one piece is put off: under requests without end the background still goes on."""


class Foreground:
    """The requests that are being answered just now: `with foreground:` around each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._is_idle = threading.Event()
        self._is_idle.set()

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1
            self._is_idle.clear()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._is_idle.set()

    def give_way(self) -> None:
        """Waits until nothing is being answered, or for `GIVE_WAY_S`. Call it without any lock."""
        self._is_idle.wait(GIVE_WAY_S)
