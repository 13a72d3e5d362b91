"""The daemon's log: one line a record, on standard error, as text or JSON.

Invariants:
    1. A record is one line of printable characters, at most `MAX_CHARS` long in text.
    2. What is logged for a request, in worker threads too, carries its id, which the client gets as
       `x-request-id`.
"""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar

MAX_CHARS = 8000  # a traceback has some 3,000
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
        return "".join(c if c.isprintable() else "?" for c in line)


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


def configure(level: str, log_format: str = "text") -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # It warns of each malformed request, so a stranger could fill the log.
    logging.getLogger("uvicorn.error").setLevel("ERROR")
