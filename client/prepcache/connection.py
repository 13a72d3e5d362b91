"""Sockets that keep a deadline: every read and write ends by that of its thread's exchange.

Invariants:
    1. No operation waits past `DUE.left_s()`, however many bytes drip in: a deadline is of the exchange,
       not of one read.
    2. A forked child closes what it inherited before it does anything else, or the daemon would take the
       parent for alive as long as the child is.

Loaded by transport.py only: httpcore is half of what makes httpx slow to import.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import httpcore

SLOWEST_TRANSFER = 2 << 20
"""Bytes/s of up- and downloads below which a daemon counts as hung."""
WRITE_BYTES = 256 << 10

SOCKETS: weakref.WeakSet[DeadlineStream] = weakref.WeakSet()
"""All that this process has open, for its forked children."""


class Due(threading.local):
    """When this thread's exchange has to end, and what moves that moment."""

    at = 0.0
    is_transfer = False
    is_alive: Callable[[], bool] | None = None
    limit_s = 0.0

    def left_s(self) -> float:
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def note(self, count: int) -> None:
        """A transfer that moves has time for what it moved; a drip gains nothing by it."""
        if self.is_transfer:
            self.at += count / SLOWEST_TRANSFER

    def may_go_on(self) -> bool:
        """After a silence: whether the peer, asked on another connection, is alive and at work."""
        is_alive, self.is_alive = self.is_alive, None
        if is_alive is None:
            return False
        kept = self.is_transfer, self.limit_s
        may = is_alive()
        self.is_transfer, self.limit_s = kept
        self.is_alive, self.at = is_alive, time.monotonic() + self.limit_s
        return may


DUE = Due()


class DeadlineStream(httpcore.NetworkStream):
    """A connected socket whose every operation ends by the deadline of its thread's exchange."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        SOCKETS.add(self)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            while True:
                try:
                    self._sock.settimeout(DUE.left_s())
                    data = self._sock.recv(max_bytes)
                    break
                except TimeoutError:
                    if not DUE.may_go_on():
                        raise
        except TimeoutError as error:
            raise httpcore.ReadTimeout(error) from error
        except OSError as error:
            raise httpcore.ReadError(error) from error
        DUE.note(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            for start in range(0, len(buffer), WRITE_BYTES):
                piece = memoryview(buffer)[start : start + WRITE_BYTES]
                # sendall's timeout bounds the whole call, unlike recv's (Python >= 3.5).
                self._sock.settimeout(DUE.left_s())
                self._sock.sendall(piece)
                DUE.note(len(piece))
        except TimeoutError as error:
            raise httpcore.WriteTimeout(error) from error
        except OSError as error:
            raise httpcore.WriteError(error) from error

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        raise httpcore.UnsupportedProtocol("the daemon speaks plain HTTP")

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return _is_readable(self._sock)
        return self._sock if info == "socket" else None


def _is_readable(sock: socket.socket) -> bool:
    """Whether an idle connection has something to say: it was closed, then."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class Backend(httpcore.NetworkBackend):
    """Connects, within the deadline."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        sock = _connected(lambda: socket.create_connection((host, port), timeout=DUE.left_s()))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return DeadlineStream(sock)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        return DeadlineStream(_connected(lambda: connect_unix(path, DUE.left_s())))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def connect_unix(path: str, timeout_s: float) -> socket.socket:
    """A connected unix socket. A full backlog (EAGAIN) is waited for, as long as the time allows."""
    until = time.monotonic() + timeout_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.001, until - time.monotonic()))
            sock.connect(path)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EAGAIN or time.monotonic() + 0.01 >= until:
                raise
            time.sleep(0.01)


def _connected(connect: Callable[[], socket.socket]) -> socket.socket:
    try:
        return connect()
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(error) from error
    except OSError as error:
        raise httpcore.ConnectError(error) from error


def _after_fork_in_child() -> None:
    for stream in list(SOCKETS):
        with suppress(OSError):
            stream.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
