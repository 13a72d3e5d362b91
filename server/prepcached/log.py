"""The daemon's log: one line a record, on standard error, bounded whatever strangers or a failing disk do.

Invariants:
    1. One record is one line of printable characters, of `MAX_CHARS` at most.
    2. In the journal each line has its level (`journalctl -p warning`), and not its time, which that adds.
    3. Of each place in the code come `BURST` lines at once, then one each `PAUSE_S`; how many were left out
       is said with the next. So a disk that fails at every turn, or a stranger who opens sessions all day,
       writes a few MB a day.

Source: sd-daemon(3); JOURNAL_STREAM in systemd.exec(5).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

BURST = 60
PAUSE_S = 10.0
MAX_CHARS = 8000
"""A traceback has some 3,000."""
PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Levels, and what the journal calls them; below them is debug."""


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
    """Lets through what invariant 3 says.

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


class Journal(OneLine):
    """For systemd's journal."""

    def format(self, record: logging.LogRecord) -> str:
        return priority(record.levelno) + super().format(record)


def priority(level: int) -> str:
    """What the journal reads a line's level from."""
    return f"<{next((number for least, number in PRIORITIES if level >= least), 7)}>"


def is_journal(environ: Mapping[str, str]) -> bool:
    """Whether standard error goes to systemd's journal."""
    try:
        status = os.fstat(2)
    except OSError:  # closed
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure(level: str, environ: Mapping[str, str]) -> None:
    """Makes this process log so."""
    handler = logging.StreamHandler()
    plain = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    is_told = is_journal(environ)
    handler.setFormatter(Journal("%(name)s: %(message)s") if is_told else OneLine(plain))
    handler.addFilter(Bounded())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel("WARNING")
