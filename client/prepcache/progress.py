"""Progress of a fill: a bar on a terminal or in a notebook, a few lines in a log, and word to the daemon.

Invariants:
    1. Ranks other than the first show no progress, and say only what is wrong.
    2. A fill shorter than `QUIET_S` shows nothing but the data set's one line.
    3. In a log, the pauses between lines double: an hour's fill leaves about ten.
    4. Where nothing can be shown (stderr is closed, or nobody reads it), the job goes on without.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from prepcache.protocol import wire
from prepcache.protocol.units import shortened, size_text, span_text
from prepcache.report import say
from prepcache.settings import is_first_rank

QUIET_S = 1.0
REDRAW_S = 0.1
FIRST_LINE_S = 5.0
LONGEST_PAUSE_S = 600.0
NAME_CHARS, BAR_CHARS = 16, 8
ERASED = "\r\x1b[J"


def _is_terminal() -> bool:
    with suppress(Exception):  # it is a class of the job's
        return bool(sys.stderr.isatty())
    return False


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook; its forked children cannot show anything there."""
    if multiprocessing.parent_process() is not None:
        return False
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and hasattr(get_ipython(), "kernel")


class Progress:
    """How one fill goes.

    Args:
        total, there: distinct items; how many of them were there already.
        is_shown: False shows nothing, True a bar even where stderr is no terminal, None decides.
        tell: takes (done, total), for other jobs to see; equal ones where the fill has ended.
        is_background: the job may draw a bar of its own meanwhile: only lines are shown.
    """

    def __init__(
        self,
        name: str,
        total: int,
        there: int,
        is_shown: bool | None,
        tell: Callable[[int, int], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        is_background: bool = False,
    ) -> None:
        self._name = name
        self._total = total
        self._there = there
        self._is_shown = False if is_shown is None and not is_first_rank() else is_shown
        self._tell = tell
        self._clock = clock
        self._began = self._drawn_at = clock()
        self._next_line_s = FIRST_LINE_S
        self._computed = self._waited = 0
        self._item_bytes = 0.0
        self._bar: Bar | None = None
        is_drawable = _is_notebook() or os.environ.get("TERM") not in ("dumb", "unknown")
        is_wanted = is_shown or (self._is_shown is None and (_is_terminal() or _is_notebook()))
        self._is_bar = bool(is_wanted) and is_drawable and not is_background
        tell(there, total)  # the first item may take minutes, or be another job's

    def advance(self, computed: int, waited: int, item_bytes: float = 0.0, there: int | None = None) -> None:
        """So many items have been made here, and by others, since it began; `there`: not made again."""
        self._computed, self._waited, self._item_bytes = computed, waited, item_bytes
        self._there = self._there if there is None else there
        now = self._clock()
        if now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at = now
        self._tell(self._done, self._total)
        self._show(now, "")

    @property
    def _done(self) -> int:
        return self._there + self._computed + self._waited

    @property
    def is_over(self) -> bool:
        return self._done >= self._total

    def waiting(self, holders: Sequence[wire.Holder], left: int) -> None:
        who = ", ".join(
            f"{holder.who} ({holder.done:,} of {holder.total:,})" if holder.total else holder.who
            for holder in holders[:3]
        )
        more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
        self._show(self._clock(), f"waiting for {who or 'other jobs'}{more} to finish {left:,} items")

    def _show(self, now: float, waiting: str) -> None:
        passed_s = now - self._began
        if passed_s < QUIET_S or self._is_shown is False:
            return
        if self._is_bar:
            self._draw(waiting)
        elif passed_s >= self._next_line_s:
            self._next_line_s = passed_s + min(max(passed_s, FIRST_LINE_S), LONGEST_PAUSE_S)
            say(f"{self._name}: {', '.join(self._parts(passed_s, waiting))}", self._is_shown)

    def _parts(self, passed_s: float, waiting: str) -> list[str]:
        left = self._total - self._done
        parts = [f"{self._done:,} of {self._total:,} items"]
        if waiting:
            parts.append(waiting)
        if left and (made := self._computed + self._waited):
            disk = f" and {size_text(left * self._item_bytes)}" if self._item_bytes else ""
            parts.append(f"{span_text(left * passed_s / made)}{disk} to go")
        parts.append(f"{self._computed / max(passed_s, 1e-9):.1f} items/s")
        counts = (self._there, "hit"), (self._computed, "computed"), (self._waited, "from other jobs")
        return parts + [f"{count:,} {what}" for count, what in counts if count]

    def _draw(self, waiting: str) -> None:
        bar = "=" * (BAR_CHARS * self._done // max(self._total, 1))
        done, *others = self._parts(self._clock() - self._began, waiting)
        try:
            if self._bar is None:
                self._bar = Bar()
            name = shortened(self._name, NAME_CHARS)
            self._bar.draw([f"{name} [{bar:.<{BAR_CHARS}}] {done}", *others])
        except Exception:  # noqa: BLE001 - the terminal went, or is one of the job's own making
            self._is_bar, self._is_shown = False, False

    def close(self) -> None:
        if self._bar is not None:
            self._draw("")  # the last numbers, which a notebook keeps
            with suppress(Exception):
                self._bar.stop()
            self._bar = None
        self._tell(self._done, self._done)


class Bar:
    """A line that is drawn over itself: of a terminal, the parts that fit. A notebook keeps it at the end."""

    def __init__(self) -> None:
        self._drawn = 0  # characters, in a notebook

    def draw(self, parts: list[str]) -> None:
        line, width = ", ".join(parts), shutil.get_terminal_size().columns - 1
        if _is_notebook():
            text, self._drawn = f"\r{line:{self._drawn}}", len(line)
        else:
            while len(line) > width and len(parts) > 1:
                line = ", ".join(parts := parts[:-1])
            text = ERASED + shortened(line, max(20, width))
        sys.stderr.write(text)
        sys.stderr.flush()

    def stop(self) -> None:
        sys.stderr.write("\n" if _is_notebook() else ERASED)
        sys.stderr.flush()
