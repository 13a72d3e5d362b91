"""A terminal of a test's own: a command that runs in one, what it draws, what is typed, how it is left."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.serving import READY_S

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MAIN = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from prepcache.command.cli import main
main()
"""
"""The terminal becomes the command's own, so that keys and sizes reach it as signals."""
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"


@dataclass
class Terminal:
    """What a command sees as its terminal, from the other side.

    Args:
        drawn: all that the command wrote so far.
    """

    master: int
    slave: int
    process: subprocess.Popen[bytes]
    drawn: str = ""
    _seen: int = 0

    def until(self, pattern: str) -> None:
        """Reads until something drawn since the last such call matches."""
        limit = time.monotonic() + READY_S
        while re.search(pattern, _ESCAPES.sub("", self.drawn[self._seen :])) is None:
            assert self._read(limit), f"{pattern!r} was not drawn: {self.drawn[self._seen :]!r}"
        self._seen = len(self.drawn)

    def _read(self, limit: float) -> bool:
        if not select.select([self.master], [], [], max(0.0, limit - time.monotonic()))[0]:
            return False
        with contextlib.suppress(OSError):  # the command ended, and nobody else has the other side open
            self.drawn += os.read(self.master, 1 << 16).decode()
        return True

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ended(self) -> int:
        """The exit code; all that was drawn is in `drawn` then."""
        code = self.process.wait(READY_S)
        while self._read(time.monotonic()):
            pass
        return code

    @property
    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    @property
    def is_left_alone(self) -> bool:
        """Whether the normal screen and the cursor are there again."""
        return (self.drawn.count(ALTERNATE), self.drawn.count(HIDDEN)) == (
            self.drawn.count(NORMAL),
            self.drawn.count(SHOWN),
        )


@contextlib.contextmanager
def terminal(
    *arguments: str, environ: Mapping[str, str], command: Sequence[str] = ("-c", _MAIN)
) -> Iterator[Terminal]:
    """`prepcache`, or another Python program, with these arguments, in a terminal; killed at the end of the
    block if it still runs."""
    master, slave = pty.openpty()
    kept = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *command, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env=kept | {"TERM": "xterm-256color"} | environ,
    )
    try:
        yield Terminal(master, slave, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)
