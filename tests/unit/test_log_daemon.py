"""The daemon's log: what a line may be, and how many may come."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prepcached.log import BURST, MAX_CHARS, PAUSE_S, Bounded, OneLine
from support.storing import Clock


class Lines(logging.Handler):
    """A log whose lines are kept."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(OneLine("%(message)s"))
        self.addFilter(Bounded(clock))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock) -> Lines:
    return Lines(clock)


@pytest.fixture
def logger(lines: Lines) -> logging.Logger:
    made = logging.Logger("tests.log")
    made.addHandler(lines)
    return made


def test_what_is_said_over_and_over_is_left_out_and_counted(
    lines: Lines, logger: logging.Logger, clock: Clock
) -> None:
    for number in range(10_000):
        logger.error("the disk fails at %d", number)
    assert len(lines.lines) == BURST
    clock.now += PAUSE_S
    for number in range(10):
        logger.error("the disk fails at %d", number)  # another place in the code
    assert len(lines.lines) == BURST + 10


def test_how_much_was_left_out_is_said_with_the_next_line(
    lines: Lines, logger: logging.Logger, clock: Clock
) -> None:
    def say() -> None:
        logger.error("no room")

    for _ in range(BURST + 7):
        say()
    clock.now += PAUSE_S
    say()
    say()
    assert lines.lines[-1] == "no room (and 7 lines like this were left out before)"
    assert len(lines.lines) == BURST + 1
    clock.now += 1000 * BURST * PAUSE_S
    for _ in range(2 * BURST):
        say()
    assert len(lines.lines) == 2 * BURST + 1


def test_a_line_has_an_end(lines: Lines, logger: logging.Logger) -> None:
    logger.error("begins %s ends", "x\n" * MAX_CHARS)
    [line] = lines.lines
    assert len(line) < MAX_CHARS + 10 and line.startswith("begins") and line.endswith("ends")
    assert line.isprintable()


def said(folder: Path, *, to_journal: bool) -> str:
    """What a daemon of a wrong setting, and one that logs, write to a file that may be systemd's journal."""
    path = folder / "stderr"
    with path.open("wb") as file:
        status = os.fstat(file.fileno())
        stream = f"{status.st_dev}:{status.st_ino}" if to_journal else "1:1"  # of some process before it
        environ = os.environ | {"JOURNAL_STREAM": stream, "PREPCACHED_LOG_LEVEL": "loud"}
        subprocess.run([sys.executable, "-m", "prepcached", "serve"], stderr=file, env=environ, check=False)
        code = "import logging, os; from prepcached.log import configure; configure('debug', os.environ)"
        code += "".join(f"; logging.{name}('so')" for name in ("debug", "info", "warning", "critical"))
        subprocess.run([sys.executable, "-c", code], stderr=file, env=environ, check=True)
    return path.read_text()


def test_the_journal_is_told_how_bad_a_line_is(tmp_path: Path) -> None:
    first, *lines = said(tmp_path, to_journal=True).splitlines()
    assert first.startswith("<3>prepcached: PREPCACHED_LOG_LEVEL = 'loud'")
    assert lines == ["<7>root: so", "<6>root: so", "<4>root: so", "<3>root: so"]


def test_a_log_that_is_no_journal_has_the_time(tmp_path: Path) -> None:
    first, *lines = said(tmp_path, to_journal=False).splitlines()
    assert first.startswith("prepcached: ")
    assert [re.sub(r"^[-0-9]+ [:,0-9]+ ", "", line) for line in lines][2] == "WARNING root: so"
