"""The daemon's log: what a line may be."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

from prepcached.log import MAX_CHARS, REQUEST_ID, JsonFormatter, TextFormatter


def test_a_line_is_bounded_and_printable() -> None:
    record = logging.LogRecord(
        "a", logging.ERROR, "", 1, "begins %s ends", ("\x1b[2J\u202e\n" * MAX_CHARS,), None
    )
    line = TextFormatter(is_journal=True).format(record)
    assert len(line) < MAX_CHARS + 10 and line.startswith("<3>a: begins") and line.endswith("ends")
    assert line.isprintable()


def test_json_lines_hold_the_exception_and_the_request() -> None:
    token = REQUEST_ID.set("0123abcd")
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "", 1, "so %d", (1,), sys.exc_info())
    line = JsonFormatter().format(record)
    REQUEST_ID.reset(token)
    found = json.loads(line)
    assert "\n" not in line and found.pop("exception").endswith("ValueError: bad\nnews")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {"level": "error", "logger": "a.b", "message": "so 1", "request_id": "0123abcd"}


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
