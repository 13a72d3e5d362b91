"""`prepcache status --watch`: the status every few seconds, until Ctrl-C.

Invariants:
    1. It starts no daemon. One that goes away is said to be gone, and looked for again.
    2. On a terminal the status is drawn in place, and what was there before comes back at the end. Elsewhere
       each look is printed below the one before; with `--json`, it is one line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from prepcache.command import cli_tables
from prepcache.command.cli_tables import Status
from prepcache.errors import PrepcacheError


def watch(look: Callable[[], Status], interval_s: float, as_json: bool) -> None:
    """Shows one look after the other.

    Raises:
        PrepcacheError: there is no daemon to begin with.
    """
    looks = _looks(look, interval_s)
    try:
        if as_json:
            for status, trouble in looks:
                told = {"trouble": trouble} if trouble else cli_tables.status_json(status)
                print(json.dumps({"at": time.time(), **told}), flush=True)
        elif not sys.stdout.isatty():
            for status, trouble in looks:
                cli_tables.show(*_shown(status, trouble), "")
                sys.stdout.flush()
        else:
            with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
                for status, trouble in looks:
                    live.update(Group(*_shown(status, trouble)), refresh=True)
    except KeyboardInterrupt:
        pass


def _looks(look: Callable[[], Status], interval_s: float) -> Iterator[tuple[Status, str]]:
    """The last look that succeeded, and why the present one did not."""
    status, trouble = look(), ""
    while True:
        yield status, trouble
        time.sleep(interval_s)
        try:
            status, trouble = look(), ""
        except PrepcacheError as error:
            trouble = error.message


def _shown(status: Status, trouble: str) -> list[RenderableType]:
    lines = cli_tables.status_lines(status)
    return (
        [Text(f"the daemon does not answer: {trouble}; last known state:", style="bold"), *lines]
        if trouble
        else lines
    )
