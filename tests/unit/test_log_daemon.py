"""The daemon's log: what a line may be."""

import json
import logging
import os
import re
import subprocess
import sys

import pytest

from prepcached.log import MAX_CHARS, REQUEST_ID, JsonFormatter, TextFormatter


def test_a_line_is_bounded_and_printable():
    record = logging.LogRecord(
        "a", logging.ERROR, "", 1, "begins %s ends", ("\x1b[2J\u202e\n" * MAX_CHARS,), None
    )
    line = TextFormatter().format(record)
    assert len(line) < MAX_CHARS + 10 and " ERROR a: begins" in line and line.endswith("ends")
    assert line.isprintable()


def test_json_lines_hold_the_exception_and_the_request():
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


@pytest.mark.parametrize(("offset", "begins"), [(0, ["<4>", "<3>"]), (1, ["202", "202"])])
def test_lines_for_the_journal_begin_with_their_priority(offset, begins):
    ours, theirs = os.pipe()
    status = os.fstat(theirs)
    code = "import logging; from prepcached import log; log.configure('warning')\n"
    code += "logging.info('a'); logging.warning('b'); logging.error('c')"
    environ = {**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + offset}"}
    with os.fdopen(ours) as lines:
        subprocess.run([sys.executable, "-c", code], env=environ, stderr=theirs, check=True)
        os.close(theirs)
        assert [line[:3] for line in lines] == begins


def test_a_closed_standard_error_ends_no_daemon():
    code = "import logging; from prepcached import log; log.configure('warning'); logging.error('a')"
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code], check=True)
