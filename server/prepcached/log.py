"""The daemon's log: one line a record, on standard error, as text or JSON.

Invariants:
    1. A record is one line of printable characters, at most `MAX_CHARS` long in text.
    2. In the journal each line has its level and no time, which the journal adds (sd-daemon(3)).
    3. What is logged for a request, in worker threads too, carries its id, which the client gets as
       `x-request-id`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from contextvars import ContextVar

MAX_CHARS = 8000  # a traceback has some 3,000
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 3}
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that is being answered; empty outside of one."""


class TextFormatter(logging.Formatter):
    """One line a record, with tracebacks folded in."""

    def __init__(self, *, is_journal: bool = False) -> None:
        shown = "%(name)s: %(message)s"
        super().__init__(shown if is_journal else f"%(asctime)s %(levelname)s {shown}")
        self._is_journal = is_journal

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record).replace("\n", " | ")
        if REQUEST_ID.get():
            line += f" [request {REQUEST_ID.get()}]"
        if len(line) > MAX_CHARS:
            line = f"{line[: MAX_CHARS // 2]} ... {line[-MAX_CHARS // 2 :]}"
        level = priority(record.levelno) if self._is_journal else ""
        return level + "".join(c if c.isprintable() else "?" for c in line)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        members = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if REQUEST_ID.get():
            members["request_id"] = REQUEST_ID.get()
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members)


def priority(level: int) -> str:
    return f"<{_PRIORITIES.get(level, 6)}>"


def is_journal(environ: Mapping[str, str]) -> bool:
    """Whether standard error goes to systemd's journal (JOURNAL_STREAM in systemd.exec(5))."""
    try:
        status = os.fstat(2)
    except OSError:  # closed
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure(level: str, environ: Mapping[str, str], log_format: str = "text") -> None:
    handler = logging.StreamHandler()
    is_json = log_format == "json"
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter(is_journal=is_journal(environ)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # It warns of each malformed request, so a stranger could fill the log.
    logging.getLogger("uvicorn.error").setLevel("ERROR")
