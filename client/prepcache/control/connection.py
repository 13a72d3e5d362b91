"""HTTP connections that keep a deadline, over a unix socket or TCP, and the pool that lends them.

Invariants:
    1. No operation waits past `DUE.left_s()`, however many bytes drip in: a deadline is of the exchange,
       not of one read.
    2. A connection is lent to one exchange at a time, and comes back only after an answer was read whole.
    3. A forked child closes what it inherited before it does anything else, or the daemon would take the
       parent for alive as long as the child is.
    4. What a signal handler of the job's raises is the job's, a TimeoutError too.

Locking: `Pool._lock` guards its list, and is never held while waiting.
Why `http.client`: 0.4 ms an exchange and 10 ms to import, where httpx takes 1 ms and 130 ms, logs a line for
every request where a job shows INFO, and bounds each read but no exchange.
"""

from __future__ import annotations

import errno
import http.client
import math
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prepcache.control import waits
from prepcache.control.refused import for_whom
from prepcache.control.settings import Address

WRITE_BYTES = 256 << 10
MAX_IDLE = 8

_SOCKETS: weakref.WeakSet[DeadlineSocket] = weakref.WeakSet()
"""All that this process has open, for its forked children."""


class Due(threading.local):
    """When this thread's exchange has to end, and what moves that moment."""

    at = 0.0
    is_transfer = False
    is_alive: Callable[[], bool] | None = None
    limit_s = 0.0
    until = math.inf

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
        """An answer has begun, so what took long is done: the rest of it has the time of one silence. So has
        what is left of a download, however quick it was up to here: the job waits for it.
        """
        if self.is_transfer:
            silent_until = time.monotonic() + self.limit_s
            self.at = max(self.at, min(self.at + count / waits.SLOWEST_TRANSFER, silent_until))
        if self.is_alive is not None:
            self.is_alive, self.at = None, time.monotonic() + self.limit_s

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


class DeadlineSocket(socket.socket):
    """A socket whose every operation ends by the deadline of its thread's exchange."""

    def __init__(self, *arguments: Any, **names: Any) -> None:
        super().__init__(*arguments, **names)
        _SOCKETS.add(self)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:  # what makefile() reads by
        while True:
            try:
                self.settimeout(DUE.left_s())
                count = super().recv_into(buffer, nbytes, flags)
            except TimeoutError as error:
                if is_of_handler(error) or not DUE.may_go_on():
                    raise
            else:
                DUE.hear(count)
                return count

    def sendall(self, data: Any, flags: int = 0) -> None:
        whole = memoryview(data).cast("B")
        for start in range(0, len(whole), WRITE_BYTES):
            piece = whole[start : start + WRITE_BYTES]
            self.settimeout(DUE.left_s())  # bounds the whole of sendall, unlike recv
            super().sendall(piece, flags)
            DUE.note(len(piece))

    def is_stale(self) -> bool:
        """Whether an idle connection has something to say: it was closed, then."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(0))


class Connection(http.client.HTTPConnection):
    """One connection to a daemon."""

    def __init__(self, address: Address) -> None:
        super().__init__("prepcached" if address.socket is not None else address.host, address.port or 80)
        self._address = address
        self.idle_since = 0.0

    def connect(self) -> None:
        path = self._address.socket
        if path is not None:
            try:
                sock = connect_unix(path, DUE.left_s())
            except PermissionError as error:
                if whom := for_whom(path):
                    raise PermissionError(error.errno, f"{error.strerror}; {whom}", path) from error
                raise
            if self._address.owner not in (None, peer_uid(sock)):
                sock.close()
                raise PermissionError(errno.EACCES, "another user listens there", path)
            self.sock = sock
            return
        plain = socket.create_connection((self.host, self.port), timeout=DUE.left_s())
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = DeadlineSocket(fileno=plain.detach())

    def connect_if_new(self) -> None:
        if self.sock is None:
            self.connect()


def connect_unix(path: str, timeout_s: float) -> DeadlineSocket:
    """A connected unix socket. A full backlog (EAGAIN) is waited for, as long as the time allows."""
    until = time.monotonic() + timeout_s
    while True:
        sock = DeadlineSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.001, until - time.monotonic()))
            sock.connect(path)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EAGAIN or time.monotonic() + 0.01 >= until:
                raise
            time.sleep(0.01)


def is_of_handler(error: BaseException) -> bool:
    """Whether a signal handler of the job's raised it: a call that was given the frame it interrupted."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for value in trace.tb_frame.f_locals.values():
            given = value if isinstance(value, tuple) else (value,)
            if any(one is interrupted for one in given):
                return True
    return False


def peer_uid(sock: socket.socket) -> int:
    """Who listens at the other end of a connected unix socket, by the kernel's word (unix(7))."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


class Pool:
    """The idle connections of one process to one daemon."""

    def __init__(self, address: Address) -> None:
        self.pid = os.getpid()
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    def take(self) -> Connection:
        """An idle connection that still stands, or a new one; it is the caller's alone."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return Connection(self._address)
            sock, is_old = connection.sock, time.monotonic() - connection.idle_since > waits.MAX_IDLE_S
            if not is_old and isinstance(sock, DeadlineSocket) and not sock.is_stale():
                return connection
            connection.close()

    def give_back(self, connection: Connection) -> None:
        """Takes a connection whose answer was read whole; closes it if there are enough."""
        connection.idle_since = time.monotonic()
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _after_fork_in_child() -> None:
    for sock in list(_SOCKETS):
        with suppress(OSError):
            # Not close(): that waits for the file objects of an exchange that another thread was in.
            os.close(sock.detach())


os.register_at_fork(after_in_child=_after_fork_in_child)
