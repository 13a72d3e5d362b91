"""Progress of a fill: a bar on a terminal or in a notebook, a few lines in a log, and word to the daemon.

Invariants:
    1. Ranks other than the first show no progress, and say only what is wrong.
    2. A fill shorter than `QUIET_S` shows nothing but the data set's one line.
    3. In a log, the pauses between lines double: an hour's fill leaves about ten.
    4. Where nothing can be shown (stderr is closed, or nobody reads it), the job goes on without.
"""

from __future__ import annotations

import html
import logging
import mmap
import multiprocessing
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, ClassVar

from prepcache.daemon import waits
from prepcache.daemon.wait_budget import on_own_time
from prepcache.fill.pacing import Pace
from prepcache.keys.randomness import is_alone
from prepcache.protocol import wire
from prepcache.protocol.units import shortened, size_text, span_text
from prepcache.settings import Mode, is_first_rank

log = logging.getLogger("prepcache")

QUIET_S = 1.0
REDRAW_S = 0.1
FIRST_LINE_S = 5.0
LONGEST_PAUSE_S = 600.0
NAME_CHARS, BAR_CHARS = 24, 10
ASK_S = 2.0
"""What one request to the daemon may take."""


def say(line: str, is_shown: bool | None = None, *, is_wrong: bool = False) -> None:
    """One line for people: to the log where one listens, else to stderr.

    Args:
        is_shown: False shows it nowhere; True wherever this is called; None decides.
        is_wrong: it says that something is wrong, and so every process says it.
    """
    if is_shown is False or (is_shown is None and not is_wrong and not is_first_rank()):
        return
    if log.isEnabledFor(logging.INFO) and log.hasHandlers():
        log.info("%s", line)
    elif sys.stderr is not None:  # it was closed
        with suppress(Exception):  # nobody reads it any more, or a class of the job's stands there
            print(f"prepcache: {line}\n", end="", file=sys.stderr, flush=True)  # one write: jobs share them


def _is_terminal() -> bool:
    with suppress(Exception):  # as above
        return bool(sys.stderr.isatty())
    return False


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook; its forked children cannot show anything there."""
    if multiprocessing.parent_process() is not None:
        return False
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and hasattr(get_ipython(), "kernel")


class Once:
    """Which one-time messages were logged, in memory that forked workers share."""

    TOPICS = ("ranks", "drawn", "nothing", "drifted", "left", "slow", "files", "started", "unseen")

    def __init__(self, said: bytes = bytes(len(TOPICS))) -> None:
        self._said = mmap.mmap(-1, len(said))
        self._said[:] = said

    def is_news(self, topic: str) -> bool:
        at = self.TOPICS.index(topic)
        was, self._said[at] = self._said[at], 1
        return not was

    def take_back(self, topic: str) -> None:
        self._said[self.TOPICS.index(topic)] = 0

    def __reduce__(self) -> Any:
        return Once, (self._said[:],)


class Progress:
    """How one fill goes.

    Args:
        total, there: distinct items; how many of them were there already.
        is_shown: False shows nothing, True a bar even where stderr is no terminal, None decides. On a dumb
            terminal, where rich draws nothing, a bar is plain lines.
        tell: takes (done, total), for other jobs to see; equal ones where the fill has ended.
    """

    def __init__(
        self,
        name: str,
        total: int,
        there: int,
        is_shown: bool | None,
        tell: Callable[[int, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._total = total
        self._there = there
        self._is_shown = False if is_shown is None and not is_first_rank() else is_shown
        self._tell = tell
        self._clock = clock
        self._began = self._drawn_at = clock()
        self._next_line_s = FIRST_LINE_S
        self._computed = self._waited = self._taken = 0
        self._pace = Pace()
        self._bar: TerminalBar | NotebookBar | None = None
        self._is_alone = is_alone()
        is_drawable = _is_notebook() or os.environ.get("TERM") not in ("dumb", "unknown")
        is_wanted = is_shown or (self._is_shown is None and (_is_terminal() or _is_notebook()))
        self._is_bar = bool(is_wanted) and is_drawable
        tell(there, total)  # the first item may take minutes, or be another job's

    def advance(self, computed: int, waited: int, pace: Pace, taken: int = 0) -> None:
        """So many items have been made here, and by others, since the fill began; `taken` are leased by
        others.
        """
        self._computed, self._waited, self._pace, self._taken = computed, waited, pace, taken
        now = self._clock()
        if now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at = now
        self._tell(self._there + computed + waited, self._total)
        self._show(now, "")

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
            say(f"{self._name}: {self._line(passed_s, waiting)}", self._is_shown)

    def _line(self, passed_s: float, waiting: str) -> str:
        """How far it is, for whom it waits, what it will take; what matters least comes last."""
        done = self._there + self._computed + self._waited
        left = self._total - done
        parts = [f"{done:,} of {self._total:,} items"]
        if waiting:
            parts.append(waiting)
        # What others have taken is as good as made, as long as there is something else to do.
        taken = 0 if waiting else self._taken
        made = self._computed + self._waited + taken
        if left > taken and made:
            eta = span_text((left - taken) * passed_s / made)
            disk = size_text(left * self._pace.item_bytes)
            parts.append(f"{eta} and {disk} to go")
        parts.append(f"{self._computed / max(passed_s, 1e-9):.1f} items/s")
        counts = (
            (self._there, "hit"), (self._computed, "computed"), (self._waited, "by other jobs"),
            (self._taken, "leased by other jobs"),
        )  # fmt: skip
        return ", ".join(parts + [f"{count:,} {what}" for count, what in counts if count])

    def _draw(self, waiting: str) -> None:
        try:
            with self._undrawn():
                if self._bar is None:
                    self._bar = NotebookBar() if _is_notebook() else TerminalBar()
                done = self._there + self._computed + self._waited
                line = self._line(self._clock() - self._began, waiting)
                self._bar.draw(self._name, done, self._total, line)
        except Exception:  # noqa: BLE001 - the terminal went, or is one of the job's own making
            self._is_bar, self._is_shown = False, False

    @contextmanager
    def _undrawn(self) -> Iterator[None]:
        """rich draws from the global generator, and that is not the function's doing."""
        drawn = random.getstate()
        try:
            yield
        finally:
            if self._is_alone:
                random.setstate(drawn)

    def close(self) -> None:
        """Ends the bar; tells the daemon that no more is to come, however far it came."""
        if self._bar is not None:
            self._draw("")  # the last numbers, which a notebook keeps
            with suppress(Exception), self._undrawn():
                self._bar.stop()
            self._bar = None
        done = self._there + self._computed + self._waited
        self._tell(done, done)


class TerminalBar:
    """A line on standard error that goes away at the end. What does not fit into the terminal is cut."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, force_terminal=True)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._live.start()

    def draw(self, name: str, done: int, total: int, line: str) -> None:
        from rich.text import Text

        bar = "=" * (BAR_CHARS * done // max(total, 1))
        limit = min(NAME_CHARS, self._console.width // 4)
        shown = f"{shortened(name, limit)} [{bar:{BAR_CHARS}}] {line}"
        self._live.update(Text(shown, no_wrap=True, overflow="ellipsis"), refresh=True)

    def stop(self) -> None:
        self._live.stop()


class NotebookBar:
    """A bar below the cell, which stays there with the last numbers."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, name: str, done: int, total: int, line: str) -> None:
        display: Any = import_module("IPython.display")
        bar = f'<progress value="{done}" max="{total}"></progress>'
        shown = {
            "text/plain": f"{name}: {line}",
            "text/html": f"<div>{html.escape(name)} {bar} {html.escape(line)}</div>",
        }
        if self._handle is None:
            self._handle = display.display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def stop(self) -> None:
        """The last numbers stay."""


class LazyProgress:
    """Tells how much of a lazy data set is cached, made by whichever processes, until all is or the job ends.

    A thread says it that keeps neither the data set nor the process alive, and asks the daemon on its own
    time.
    """

    _closes_at: ClassVar[float] = 0.0

    def __init__(self, artifacts: Any, catalogue: Any, name: str, is_shown: bool | None) -> None:
        self._of = weakref.ref(artifacts), weakref.ref(catalogue)
        self._name, self._is_shown = name, is_shown
        self._lock, self._woken, self._is_over = threading.Lock(), threading.Event(), threading.Event()
        self._last = -1
        if is_shown is False or artifacts.mode is Mode.OFF or not len(catalogue.missing):
            return
        weakref.finalize(artifacts, self._woken.set).atexit = False
        with suppress(RuntimeError):  # there are too many threads
            threading.Thread(target=self._run, name="prepcache-progress", daemon=True).start()
            artifacts.session.at_close(self._end, is_last=True)

    def _run(self) -> None:
        pause_s, is_last = FIRST_LINE_S, False
        while not is_last:
            is_last = self._woken.wait(pause_s)
            self._look(LazyProgress._closes_at - time.monotonic() if is_last else ASK_S)
            is_last |= self._tell()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._is_over.set()

    def _end(self) -> None:
        """As the job ends, by Ctrl-C too: what it leaves to the next one. All data sets have `CLOSE_S`: what
        others have made may be downloaded now."""
        now = time.monotonic()
        LazyProgress._closes_at = LazyProgress._closes_at or now + waits.CLOSE_S
        self._woken.set()
        if not self._is_over.wait(max(0.0, LazyProgress._closes_at - now)):
            self._tell()

    def _look(self, limit_s: float) -> None:
        if limit_s > 0 and (artifacts := self._of[0]()) is not None:
            with on_own_time(limit_s):
                artifacts.look()

    def _tell(self) -> bool:
        """Says how much is cached, if that changed; whether all is."""
        if (catalogue := self._of[1]()) is None:
            return True
        total, there = len(catalogue.distinct), int(catalogue.kept)
        with self._lock:
            if there != self._last:
                count = f"all {total:,}" if there == total else f"{there:,} of {total:,}"
                say(f"{self._name}: {count} items are cached", self._is_shown)
            self._last = there
        return there == total
