"""A terminal that is lent: the alternate screen, keys as they are typed, sizes as they change.

Invariants:
    1. It is given back as it was, however the command ends: by a key, an error, Ctrl-C, or a signal that
       ends it. While it is stopped (Ctrl-Z), too.
    2. Nothing waits but `wait`, and that ends at once for a key or a signal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

ENDS = (b"q", b"Q")
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_WAKING = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


class Terminal:
    """The terminal at standard output; keys come from standard input, where that is one too.

    Args:
        draw: the lines to show on a screen of (width, height).
    """

    def __init__(self, draw: Callable[[int, int], Sequence[Text]]) -> None:
        self._draw = draw
        self._console = Console(highlight=False, force_terminal=True)
        self._keys: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: Any = None
        self._live: Live | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._fd_before = -1

    def __enter__(self) -> Terminal:
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._handlers = {one: signal.signal(one, _end) for one in _ENDING}
            self._handlers |= {one: signal.signal(one, _ignore) for one in _WAKING}
            self._fd_before = signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        # A second Ctrl-C would leave it half done.
        interrupting = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for one in _ENDING:
                signal.signal(one, signal.SIG_IGN)
            self._give_back()
        finally:
            signal.set_wakeup_fd(self._fd_before)
            for one, handler in self._handlers.items():
                signal.signal(one, handler)
            signal.signal(signal.SIGINT, interrupting)
            os.close(self._woken)
            os.close(self._waking)

    def show(self) -> None:
        """Draws what there is now."""
        assert self._live is not None
        self._live.refresh()

    def wait(self, seconds: float) -> bool:
        """Waits so long, and draws anew where the size changed; False where the person wants to end."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            watched = [self._woken] if self._keys is None else [self._woken, self._keys]
            ready = select.select(watched, [], [], left_s)[0]
            if self._keys in ready and self._is_ending():
                return False
            if self._woken in ready:
                self._take_in(os.read(self._woken, 4096))
        return True

    def _is_ending(self) -> bool:
        assert self._keys is not None
        typed = os.read(self._keys, 4096)
        return not typed or any(key in typed for key in ENDS)

    def _take_in(self, signals: bytes) -> None:
        if signal.SIGTSTP in signals:
            self._give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._take()
        elif signal.SIGCONT in signals and self._keys is not None:  # its shell has had it meanwhile
            tty.setcbreak(self._keys)
        self.show()

    def _take(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            get_renderable=self._drawn,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # it may be gone: the window was closed
            if self._live is not None:
                self._live.stop()
        with contextlib.suppress(OSError, termios.error):
            if self._before is not None and self._keys is not None:
                termios.tcsetattr(self._keys, termios.TCSAFLUSH, self._before)
        self._live = self._before = None

    def _drawn(self) -> Group:
        size = self._console.size
        return Group(*self._draw(size.width, size.height))


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """The wakeup descriptor tells."""
