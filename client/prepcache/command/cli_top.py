"""`prepcache top`: looks at the daemon every few seconds, for a person at a terminal or for a program.

Invariants:
    1. It starts no daemon. One that goes away is said to be gone, and looked for again; while it is looked
       at, one that was started on demand is not idle.
    2. A look takes `LOOK_S` at most where the daemon hangs.
    3. Without a terminal each look is one line, told at once; with `--json`, one JSON text.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prepcache.command.cli_names import user_name
from prepcache.command.cli_rates import History, Look, numbers
from prepcache.command.cli_screen import View, line, screen
from prepcache.errors import PrepcacheError
from prepcache.protocol import inspection

if TYPE_CHECKING:
    from prepcache.control.client import Client

LOOK_S = 3.0
"""For one answer: a round trip takes 1 ms, on a box whose cores are all busy 100."""


class Onlooker:
    """Looks at a daemon, and at the one that takes its place.

    Args:
        make: a client of it; a new one is made after each look that failed, since it may listen elsewhere.
        clock: seconds, monotonic.
    """

    def __init__(self, make: Callable[[], Client], clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._client = make()
        self._is_lost = False

    def first(self) -> Look:
        """The first look, with more patience: a daemon that is just being started is waited for.

        Raises:
            PrepcacheError: it is not there, or refuses to answer.
        """
        self._client.find_running()
        self._client.info()
        return self.look()

    def look(self) -> Look:
        """
        Raises:
            PrepcacheError: it is gone, hangs, or refuses to answer.
        """
        try:
            if self._is_lost:
                self._client.find_running()
            transport = self._client.transport
            told = [transport.call("GET", f"/v1/{name}", limit_s=LOOK_S) for name in ("info", "sessions")]
            stats = transport.call("GET", "/v1/stats", limit_s=LOOK_S)
            look = Look(
                self._clock(),
                time.time(),
                self._client.url,
                transport.read(inspection.Info, told[0]),
                numbers(stats),
                transport.read(inspection.SessionList, told[1]).sessions,
            )
        except PrepcacheError:
            self.close()
            self._client, self._is_lost = self._make(), True
            raise
        self._is_lost = False
        return look

    def close(self) -> None:
        self._client.close()


class Watch:
    """What there is to show: the last look that succeeded, what came before it, and what came in its way.

    Args:
        clock: seconds, monotonic.

    Raises:
        PrepcacheError: there is no first look.
    """

    def __init__(
        self, onlooker: Onlooker, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.interval_s = interval_s
        self._onlooker = onlooker
        self._clock = clock
        self._history = History()
        self._trouble = ""
        self._look = onlooker.first()
        self._history.note(self._look)

    def go_on(self) -> None:
        """Looks again; raises nothing that is the daemon's doing."""
        try:
            self._look = self._onlooker.look()
        except PrepcacheError as error:
            self._trouble = error.message
        else:
            self._trouble = ""
            self._history.note(self._look)

    @property
    def view(self) -> View:
        age_s = self._clock() - self._look.at_s
        return View(self._look, self._history, self.interval_s, user_name, age_s, self._trouble)

    def json(self) -> dict[str, Any]:
        """What `prepcache status --json` tells (of `stats` numbers), the time and rates; or the trouble."""
        if self._trouble:
            return {"at": time.time(), "trouble": self._trouble}
        look, rates = self._look, self._history.rates()
        sessions = [one.to_json() for one in look.sessions]
        for one in sessions:
            for progress in one["progress"]:
                pace = self._history.items_per_s(one["session"], progress["recipe"])
                progress["items_per_s"] = pace
        return {
            "at": look.now,
            "url": look.url,
            "info": look.info.to_json(),
            "stats": dict(look.stats),
            "rates": {"now": rates.now, "minute": rates.minute},
            "sessions": sessions,
        }


def run(make: Callable[[], Client], interval_s: float, as_json: bool) -> None:
    """Watches until somebody ends it, by Ctrl-C or `q`.

    Raises:
        PrepcacheError: there is no daemon to begin with.
    """
    onlooker = Onlooker(make)
    try:
        watch = Watch(onlooker, interval_s)
        if as_json or not sys.stdout.isatty() or os.environ.get("TERM") in (None, "", "dumb", "unknown"):
            tell(watch, as_json, print_line, pause)
        else:
            show(watch)
    except KeyboardInterrupt:
        pass
    finally:
        onlooker.close()


def show(watch: Watch) -> None:
    """On the terminal, until the person ends it."""
    from prepcache.command.cli_terminal import Terminal

    with Terminal(lambda width, height: screen(watch.view, width, height)) as terminal:
        while terminal.wait(watch.interval_s):
            watch.go_on()
            terminal.show()


def tell(watch: Watch, as_json: bool, put: Callable[[str], None], wait: Callable[[float], bool]) -> None:
    """A line for each look, until `wait` says that it is enough."""
    while True:
        put(json.dumps(watch.json()) if as_json else line(watch.view))
        if not wait(watch.interval_s):
            return
        watch.go_on()


def print_line(text: str) -> None:
    print(text, flush=True)


def pause(seconds: float) -> bool:
    time.sleep(seconds)
    return True
