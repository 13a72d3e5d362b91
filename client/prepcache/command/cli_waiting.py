"""A client that tells who sits at a terminal what it waits for, and how long, where that takes a while."""

from __future__ import annotations

import sys
import threading
from typing import Any

import typer

from prepcache.control.client import Client
from prepcache.protocol.members import Message

SOON_S = 1.0


class TellingClient(Client):
    """A client of a command; what is given a limit of its own, as `verify`, tells how far it is by itself."""

    _has_told = False

    def exchange(
        self,
        method: str,
        path: str,
        body: Message | None = None,
        *,
        limit_s: float | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        timer = threading.Timer(SOON_S, self._tell)
        timer.daemon = True
        if limit_s is None and sys.stderr is not None and sys.stderr.isatty():
            timer.start()
        try:
            return super().exchange(method, path, body, limit_s=limit_s, **options)
        finally:
            timer.cancel()

    def _tell(self) -> None:
        if not self._has_told:
            self._has_told = True
            left = f"{self.timeout_s - SOON_S:.0f} s more at most; Ctrl-C ends it"
            typer.echo(f"prepcache: waiting for an answer of the daemon at {self.url}, {left}", err=True)
