"""One connection: uvicorn's HTTP protocol with the peer's credentials and bounds on what precedes a body.

Invariants:
    1. `request.state.peer` comes from the socket.
    2. Head and URL are bounded in bytes and time. What follows of a body after its answer is thrown away, for
       a bounded time. Refusals are problem documents.
    3. A client that does not read its answer is disconnected, which frees the answer's memory.
    4. Each peer (a user of the unix socket; all of TCP together) has at most half of the connections.

uvicorn's protocol class has no public interface for this: pyproject.toml bounds uvicorn's version.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from prepcache.errors import BadRequest, LimitExceeded, PrepcacheError, TooLarge
from prepcache.protocol import wire
from prepcached.auth import Peer
from prepcached.problems import PROBLEM_TYPE, document

LOG = logging.getLogger(__name__)

MAX_HEAD_BYTES = wire.MAX_HEADER_BYTES
"""Request line and headers together; what a client of ours sends is under 1 KiB."""
HEAD_TIMEOUT_S = 10.0  # from a connection's or a request's first byte to the end of its head
REST_TIMEOUT_S = 30.0  # from an answer that did not wait for the end of its request's body to that end
STALL_TIMEOUT_S = 30.0  # longest pause of a client in the middle of reading an answer
MAX_CONNECTIONS = 8192
DESCRIPTOR_SHARE = 2
"""Connections may use one in so many of the process's descriptors; the store needs the others."""
FLOOD_LOG_S = 60.0  # between two log lines about refused connections
BULK_BYTES = 1 << 20  # send buffer of a connection that downloads; the system may grant less


def is_look(scope: Mapping[str, Any]) -> bool:
    """Whether a request only looks: pages, watching commands and scrapers keep no idle daemon alive."""
    return scope["method"] in ("GET", "HEAD") and not scope["path"].endswith("/data")


class Slots:
    """The open connections of one server, by peer: a uid, or None for TCP."""

    def __init__(self, limit: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = limit or max(8, min(MAX_CONNECTIONS, soft // DESCRIPTOR_SHARE))
        self.open: Counter[int | None] = Counter()
        self.refused = 0  # connections closed for want of a slot, since the start
        self._logged_at = float("-inf")

    def take(self, uid: int | None) -> str | None:
        """Counts a new connection until `give_back`; returns why it must be refused, if it must."""
        self.open[uid] += 1
        if self.open[uid] <= self.limit // 2 and self.open.total() <= self.limit:
            return None
        self.refused += 1
        who = "TCP" if uid is None else f"uid {uid}"
        why = f"{who} has {self.open[uid] - 1} of {self.limit} connections open: close some"
        if time.monotonic() - self._logged_at >= FLOOD_LOG_S:
            self._logged_at = time.monotonic()
            LOG.warning("refusing connections: %s", why)
        return why

    def give_back(self, uid: int | None) -> None:
        self.open[uid] -= 1


class PeerProtocol(HttpToolsProtocol):
    peer: Peer
    _head_bytes = 0
    _in_head = True
    _in_body = False

    def __init__(self, *arguments: Any, slots: Slots, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._slots = slots
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = Peer.of(transport.get_extra_info("socket"))
        refusal = self._slots.take(self.peer.uid)
        if refusal is None:
            self._expect_head()
        else:
            self._refuse(503, LimitExceeded, refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slots.give_back(self.peer.uid)
        for what in list(self._timers):
            self._came(what)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._came("reader")
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, TooLarge, f"the request's head is over {MAX_HEAD_BYTES} bytes")
            elif "head" not in self._timers:
                self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self.scope["state"]["peer"] = self.peer
        self.scope["state"]["connection"] = self

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        self._came("head")
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > MAX_HEAD_BYTES:
            self._refuse(431, TooLarge, f"the request's head is over {MAX_HEAD_BYTES} bytes")
            return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._came("rest")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete and not self.transport.is_closing():
            self._expect("rest", REST_TIMEOUT_S, self.transport.close)

    def send_in_bulk(self) -> None:
        """Enlarges the send buffer, so that each turn of the loop writes more of a long answer."""
        with contextlib.suppress(OSError, ValueError):  # the client has hung up
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BULK_BYTES)

    def abandon(self, state: dict[str, Any]) -> bool:
        """Disconnects the client in mid-request or mid-answer; False if it has sent another request since."""
        if self.cycle is None or self.cycle.scope["state"] is not state:
            return False
        self.cycle.disconnected = True
        self.transport.abort()
        return True

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, BadRequest, msg)

    def _expect(self, what: str, seconds: float, late: Callable[..., None], *given: object) -> None:
        self._timers[what] = self.loop.call_later(seconds, late, *given)

    def _came(self, what: str) -> None:
        timer = self._timers.pop(what, None)
        if timer is not None:
            timer.cancel()

    def _expect_head(self) -> None:
        late = f"no whole request head within {HEAD_TIMEOUT_S:.0f} s"
        self._expect("head", HEAD_TIMEOUT_S, self._refuse, 408, BadRequest, late)

    def _await_reader(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._expect("reader", STALL_TIMEOUT_S, self._reader_is_late, unread_bytes)

    def _reader_is_late(self, unread_bytes: int) -> None:
        if self.transport.get_write_buffer_size() < unread_bytes:
            self._await_reader()
        else:
            self.transport.abort()

    def _refuse(self, status: int, error: type[PrepcacheError], detail: str) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps(document(status, error.code, detail)).encode()
        head = f"content-type: {PROBLEM_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()
