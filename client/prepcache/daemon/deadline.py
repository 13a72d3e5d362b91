"""Sockets for httpcore that keep the deadline of a whole exchange.

httpcore and httpx bound each read, so that a daemon that sends a byte a second would hold a job for ever.
Here no operation waits past `DUE.left_s()`, however many bytes drip in.

Invariants:
    1. A forked child closes what it inherited before it does anything else, or the daemon would take the
       parent for alive as long as the child is.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpcore

from prepcache.daemon import waits
from prepcache.daemon.full_disk import for_whom
from prepcache.settings import Address

WRITE_BYTES = 256 << 10

_SOCKETS: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""All that this process has open, for its forked children."""


class Due(threading.local):
    """When this thread's exchange has to end, and what moves that moment."""

    at = 0.0
    is_transfer = False
    limit_s = 0.0
    until = math.inf
    has_ended = False
    """Whether the peer closed the connection."""

    def left_s(self) -> float:
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def note(self, count: int) -> None:
        """A transfer that moves has time for what it moved, until it has to end in any case; a drip gains
        nothing by it."""
        if self.is_transfer:
            self.at = min(self.at + count / waits.SLOWEST_TRANSFER, self.until)

    def hear(self, count: int) -> None:
        """What is left of a download has the time of one silence, however quick it was up to here: the job
        waits for it."""
        if self.is_transfer:
            silent_until = time.monotonic() + self.limit_s
            self.at = max(self.at, min(self.at + count / waits.SLOWEST_TRANSFER, silent_until))


DUE = Due()


class Stream(httpcore.NetworkStream):
    """A connected socket whose every operation ends by the deadline of its thread's exchange."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._is_asked = False
        _SOCKETS.add(sock)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._sock.settimeout(DUE.left_s())
        data = self._sock.recv(max_bytes)
        if self._is_asked and not data.startswith(b"HTTP/"[: len(data)]):
            raise httpcore.RemoteProtocolError(f"it sent {data[:40]!r}")  # h11 would wait for more
        self._is_asked = False
        DUE.hear(len(data))
        DUE.has_ended = not data
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        whole, self._is_asked = memoryview(buffer), True
        try:
            for start in range(0, len(whole), WRITE_BYTES):
                piece = whole[start : start + WRITE_BYTES]
                self._sock.settimeout(DUE.left_s())  # bounds the whole of sendall, unlike recv
                self._sock.sendall(piece)
                DUE.note(len(piece))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise httpcore.WriteError from error  # it may have answered before it had read all of us

    def close(self) -> None:
        self._sock.close()

    def get_extra_info(self, info: str) -> Any:
        """`is_readable`: an idle connection that has something to say was closed."""
        if info != "is_readable":
            return None
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))


class Backend(httpcore.NetworkBackend):
    """Connects to one daemon; what goes wrong at that is in a `ConnectError`'s arguments."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> Stream:
        with _connecting():
            try:
                sock = connect_unix(path, DUE.left_s())
            except PermissionError as error:
                if whom := for_whom(path):
                    raise PermissionError(error.errno, f"{error.strerror}; {whom}", path) from error
                raise
            with _closed_on_failure(sock):
                if self._address.owner not in (None, peer_uid(sock)):
                    raise PermissionError(errno.EACCES, "another user listens there", path)
                return Stream(sock)

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Any = None,
    ) -> Stream:  # fmt: skip
        with _connecting():
            sock = socket.create_connection((host, port), timeout=DUE.left_s())
            with _closed_on_failure(sock):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return Stream(sock)


@contextmanager
def _closed_on_failure(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


@contextmanager
def _connecting() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise httpcore.ConnectError(error) from error  # the pool raises it again without its cause


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


def peer_uid(sock: socket.socket) -> int:
    """The user that listens at the other end of a connected unix socket, as the kernel says (unix(7))."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def _after_fork_in_child() -> None:
    for sock in list(_SOCKETS):
        with suppress(OSError):
            os.close(sock.detach())


os.register_at_fork(after_in_child=_after_fork_in_child)
