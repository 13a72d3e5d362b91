"""The daemon's log: one line a record, on standard error, as text or JSON.

Invariants:
    1. A record is one line of printable characters, at most `MAX_CHARS` long in text.
    2. What is logged for a request, in worker threads too, carries its id, which the client gets as
       `x-request-id`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TextIO

from prepcache.protocol.units import printable

MAX_CHARS = 8000  # a traceback has some 3,000
PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that is being answered; empty outside of one."""


class TextFormatter(logging.Formatter):
    """One line a record, with tracebacks folded in."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record).replace("\n", " | ")
        if REQUEST_ID.get():
            line += f" [request {REQUEST_ID.get()}]"
        if len(line) > MAX_CHARS:
            line = f"{line[: MAX_CHARS // 2]} ... {line[-MAX_CHARS // 2 :]}"
        return printable(line)


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


class JournalHandler(logging.StreamHandler[TextIO]):
    """Begins each line with its priority, which the journal takes off: sd-daemon(3)."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{PRIORITIES.get(record.levelno, 7)}>{super().format(record)}"


def configure(level: str, log_format: str = "text", environ: Mapping[str, str] = os.environ) -> None:
    is_journal = False
    with contextlib.suppress(OSError):  # it may be closed
        stderr = os.fstat(2)
        # The variable alone may be one that a job has inherited: systemd.exec(5).
        is_journal = environ.get("JOURNAL_STREAM") == f"{stderr.st_dev}:{stderr.st_ino}"
    handler = JournalHandler() if is_journal else logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # It warns of each malformed request, so a stranger could fill the log.
    logging.getLogger("uvicorn.error").setLevel("ERROR")
