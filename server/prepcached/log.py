"""The daemon's log: one line a record, on standard error, bounded whatever strangers or a failing disk do.

Invariants:
    1. One record is one line of printable characters, of `MAX_CHARS` at most.
    2. Of each place in the code come `BURST` lines at once, then one each `PAUSE_S`; how many were left out
       is said with the next. So a disk that fails at every turn, or a stranger who opens sessions all day,
       writes a few MB a day.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST = 60
PAUSE_S = 10.0
MAX_CHARS = 8000
"""A traceback has some 3,000."""


@dataclass(slots=True)
class _Place:
    """A line of the code that logs.

    Args:
        lines: that it may still write at once, and at when that was so.
        left_out: since its last line.
    """

    lines: float
    at: float
    left_out: int = 0


class Bounded(logging.Filter):
    """Lets through what invariant 2 says.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        with self._lock:
            place = self._places.setdefault((record.pathname, record.lineno), _Place(BURST, now))
            place.lines = min(float(BURST), place.lines + (now - place.at) / PAUSE_S)
            place.at = now
            if place.lines < 1:
                place.left_out += 1
                return False
            place.lines -= 1
            record.left_out, place.left_out = place.left_out, 0
        return True


class OneLine(logging.Formatter):
    """One line a record, tracebacks folded in, so that a log can be read by lines; and on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record).replace("\n", " | ")
        if len(line) > MAX_CHARS:
            line = f"{line[: MAX_CHARS // 2]} ... {line[-MAX_CHARS // 2 :]}"
        if getattr(record, "left_out", 0):
            line += f" (and {record.left_out} lines like this were left out before)"  # type: ignore[attr-defined]
        return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def configure(level: str) -> None:
    """Makes this process log so."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(Bounded())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel("WARNING")
