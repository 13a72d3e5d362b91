"""The middleware: what every request passes before the app sees it, and every answer after.

Invariants:
    1. The caller is known (auth.py) before a byte of the body is read.
    2. Every exception ends here: the client gets a problem document.
    3. A connection whose request body was not read to its end is closed after the answer, so that a body
       that never ends is never read. A small body is read and thrown away first: a client that is still
       sending could not read the answer from a connection that is closed.
    4. Every GET endpoint answers HEAD with the same head. Downloads do so themselves, without reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from time import perf_counter

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prepcache import __version__
from prepcache.errors import PrepcacheError, ProtocolMismatch
from prepcache.protocol import wire
from prepcache.protocol.units import span_text
from prepcached import problems
from prepcached.auth import Auth
from prepcached.http_protocol import PeerProtocol, is_look
from prepcached.log import REQUEST_ID

LOG = logging.getLogger(__name__)
Observe = Callable[[Scope, int, float], None]
"""(scope, status, seconds), once for each answered request."""
LINGER_S = 1.0
LINGER_BYTES = 256 << 10
"""How long, and how much, is read from a client that was refused before its connection is closed."""
_PROTOCOL_HEADER = wire.PROTOCOL_HEADER.lower().encode()


class Middleware:
    """ASGI app around the app."""

    def __init__(self, app: ASGIApp, auth: Auth, observe: Observe) -> None:
        self._app = app
        self._auth = auth
        self._observe = observe
        self.uses = 0
        """Requests so far that did more than look, and those of them that are not answered yet."""
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(4)
        REQUEST_ID.set(request_id)  # each request is a task, and so has a context, of its own
        is_use = not is_look(scope)
        self.uses += is_use
        self.under_way += is_use
        if scope["method"] == "HEAD" and not scope["path"].endswith("/data"):
            scope = {**scope, "method": "GET"}  # the connection sends no body
        answer = _Answer(scope, receive, send, request_id)
        began = perf_counter()
        line = f"{scope['method']} {scope['path'][:200]}"
        try:
            self._admit(scope)
            await self._app(scope, answer.receive, answer.send)
        except ClientDisconnect:
            LOG.debug("%s: the client hung up", line)
        except PrepcacheError as error:
            await problems.response(error)(scope, answer.receive, answer.send)
        except Exception as exc:
            if not answer.status:
                await problems.unforeseen(exc, line)(scope, answer.receive, answer.send)
            elif not answer.is_answered:
                LOG.error("%s: the answer was cut short", line, exc_info=exc)
                raise
        except asyncio.CancelledError:
            connection = scope["state"].get("connection")
            if not isinstance(connection, PeerProtocol) or not connection.abandon(scope["state"]):
                raise
            LOG.warning("%s: interrupted by the shutdown after %s", line, span_text(perf_counter() - began))
        finally:
            self.under_way -= is_use
        self._observe(scope, answer.status, perf_counter() - began)

    def _admit(self, scope: Scope) -> None:
        port = scope["server"][1] if scope["server"] else None
        scope["state"]["caller"] = self._auth.caller(
            scope["state"]["peer"], scope["path"], scope["headers"], port
        )
        for name, value in scope["headers"]:
            if name == _PROTOCOL_HEADER and value != str(wire.PROTOCOL).encode():
                theirs = value[:20].decode("latin-1")
                raise ProtocolMismatch(
                    f"the client speaks protocol {theirs}, this daemon of prepcache {__version__} speaks "
                    f"{wire.PROTOCOL}: run `prepcached stop`, and the next job starts a daemon of its own "
                    "version; a service must have the same version as its jobs",
                    protocol=wire.PROTOCOL,
                )


class _Answer:
    """One request and its answer, as they pass."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        headers = dict(scope["headers"])
        self._is_read = not headers.keys() & {b"content-length", b"transfer-encoding"}
        self._is_sending = not self._is_read and b"expect" not in headers  # else it waits for our word
        self._receive = receive
        self._send = send
        self._headers = [(b"x-request-id", request_id.encode())]
        self.status = 0
        self.is_answered = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._is_read = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if not self._is_read:
                self._headers.append((b"connection", b"close"))
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        elif not message.get("more_body"):
            self.is_answered = True
            if self._is_sending and not self._is_read and self.status >= 400:
                await self._send({**message, "more_body": True})
                await self._discard()
                message = {**message, "body": b""}
        await self._send(message)

    async def _discard(self) -> None:
        """Reads what the client is still sending, within bounds."""
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while left > 0 and not self._is_read:
                    message = await self.receive()
                    if message["type"] != "http.request":
                        return
                    left -= len(message["body"])
