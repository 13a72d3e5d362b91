"""HTTP with a daemon, over a unix socket or TCP, by httpcore, the engine of httpx: the client's only HTTP.

Invariants:
    1. An exchange ends by its deadline, whatever the peer does. httpcore bounds each read only: it gets
       sockets of ours, and a `Deadline` as its timeout.
    2. What comes back is bounded and checked. All else is `DaemonUnreachable` with `why` ("absent", "broken",
       "nonsense"), or the error that a problem document names; never another exception.
    3. A forked child closes the connections that it inherited, or the daemon would take its parent for alive.
"""

from __future__ import annotations

import errno
import json
import math
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpcore

from prepcache import __version__, errors, forks
from prepcache.daemon import waits
from prepcache.daemon.launcher import open_to
from prepcache.protocol import wire
from prepcache.protocol.units import printable
from prepcache.settings import Address

MAX_IDLE = 8
WRITE_BYTES = 256 << 10
FOLIO_BYTES = 2 << 20
"""Files are written by as much: NOTE [ Large folios ] in writer.py. As in header.py, which loads numpy."""


class Deadline:
    """When an exchange has to end; httpcore hands it to each operation of the exchange as its timeout.

    It ends within `limit_s`; a transfer is silent for no longer, and ends at `until`, however much it moves.
    """

    def __init__(self, limit_s: float, *, is_transfer: bool = False, until: float = math.inf) -> None:
        self.limit_s = limit_s
        self.at = time.monotonic() + limit_s
        self._is_transfer = is_transfer
        self._until = until

    def left_s(self) -> float:
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def sent(self, count: int) -> None:
        """A transfer has time for what it moved; a drip gains nothing by it."""
        if self._is_transfer:
            self.at = min(self.at + count / waits.SLOWEST_TRANSFER, self._until)

    def received(self, count: int) -> None:
        """What is left of a download has the time of one silence, however quick it was up to here."""
        if self._is_transfer:
            silent_until = time.monotonic() + self.limit_s
            self.at = max(self.at, min(self.at + count / waits.SLOWEST_TRANSFER, silent_until))


class Transport:
    """Exchanges with one daemon; safe to share between threads, reopened after fork."""

    def __init__(self, address: Address, token: str | None = None, who: Callable[[], str] = str) -> None:
        self.address = address
        self._who = who  # names the process that does not answer, for messages
        self._headers = {
            wire.PROTOCOL_HEADER: str(wire.PROTOCOL),
            "User-Agent": f"prepcache/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Host": "prepcached" if address.socket is not None else address.url.removeprefix("http://"),
        }
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self.after_fork()
        forks.note(self)

    def after_fork(self) -> None:
        self._pool = httpcore.ConnectionPool(
            max_connections=sys.maxsize,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=waits.MAX_IDLE_S,
            uds=self.address.socket,
            network_backend=Backend(self.address),
        )

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        limit_s: float,
        gives: type[Any] = dict,
        params: Mapping[str, str] | None = None,
        session: str | None = None,
    ) -> Any:
        """One exchange of JSON; the message that the answer holds, or the error that invariant 2 names."""
        content, headers = b"", {}
        if body is not None:
            content = json.dumps(body, separators=(",", ":"), default=lambda one: one.to_json()).encode()
            headers["Content-Type"] = "application/json"
        headers["Content-Length"] = str(len(content))
        target, deadline = f"{path}?{urlencode(params)}" if params else path, Deadline(limit_s)
        with self._exchange(deadline, method, target, content, headers, session) as response:
            return self._read(response, gives)

    def upload(
        self,
        path: str,
        pieces: Iterable[bytes],
        size_bytes: int,
        *,
        limit_s: float,
        until: float = math.inf,
        gives: type[Any] = dict,
        session: str,
    ) -> Any:
        """PUTs `size_bytes` of a file; `limit_s` and `until` as in `Deadline`."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)}
        deadline = Deadline(limit_s, is_transfer=True, until=until)
        with self._exchange(deadline, "PUT", path, pieces, headers, session) as response:
            return self._read(response, gives)

    def download(self, path: str, fd: int, *, etag: str, max_bytes: int, limit_s: float) -> None:
        """GETs a file into `fd`, from its beginning. After an error part of it may be there."""
        deadline = Deadline(limit_s, is_transfer=True)
        with self._exchange(deadline, "GET", path, b"", {"If-Match": etag}) as response:
            if response.status != 200:
                self._read(response, dict)
            if response.status != 200 or _headers(response).get("etag") != etag:
                raise self._error("nonsense", f"a file other than {etag}")
            with open(fd, "wb", buffering=FOLIO_BYTES, closefd=False) as file:
                file.seek(0)
                for piece in self._pieces(response):
                    if file.tell() + len(piece) > max_bytes:
                        raise self._error("nonsense", f"more than {max_bytes} bytes of {etag}")
                    file.write(piece)
                file.truncate()

    @contextmanager
    def _exchange(
        self,
        deadline: Deadline,
        method: str,
        target: str,
        content: Any,
        headers: Mapping[str, str],
        session: str | None = None,
    ) -> Iterator[httpcore.Response]:
        given = {**self._headers, **headers, **({} if session is None else {wire.SESSION_HEADER: session})}
        host = self.address.host.encode() or b"prepcached"
        url = httpcore.URL(scheme=b"http", host=host, port=self.address.port or None, target=target.encode())
        request = httpcore.Request(
            method,
            url,
            headers=[(name.encode(), text.encode()) for name, text in given.items()],
            content=content,
            extensions={"timeout": {"connect": deadline, "read": deadline, "write": deadline}},
        )
        with self._mapped():
            response = self._pool.handle_request(request)
        with closing(response):
            yield response

    def _read(self, response: httpcore.Response, gives: type[Any]) -> Any:
        status, raw = response.status, bytearray()
        for piece in self._pieces(response):
            raw += piece
            if len(raw) > wire.MAX_ANSWER_BYTES:
                raise self._error("nonsense", f"an answer of more than {wire.MAX_ANSWER_BYTES} bytes")
        try:
            body = json.loads(raw) if raw else {}
        except (ValueError, RecursionError):
            body = None
        if 200 <= status < 300:
            if not isinstance(body, dict):
                raise self._error("nonsense", "an answer that is not a JSON object")
            try:
                return body if gives is dict else gives.from_json(body)
            except errors.PrepcacheError as error:  # nonsense, and not a bad request of ours
                raise self._error("nonsense", error.message) from error
        if status >= 400 and isinstance(body, dict) and isinstance(body.get("code"), str):
            raise _refusal(body)
        why = "broken" if status >= 500 else "nonsense"
        raise self._error(why, f"it answers status {status} in a form that is not prepcached's")

    def _pieces(self, response: httpcore.Response) -> Iterator[bytes]:
        if not {"content-length", "transfer-encoding"} & _headers(response).keys():
            raise self._error("broken", "an answer without a length")
        pieces = response.iter_stream()
        while True:
            with self._mapped():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Turns whatever goes wrong on a connection into `DaemonUnreachable`."""
        try:
            yield
        except httpcore.ConnectError as error:
            raise self._of(error.args[0], "absent") from error
        except OSError as error:
            raise self._of(error, "broken") from error
        except httpcore.ProtocolError as error:
            raise self._error("broken", str(error)) from error
        except httpcore.UnsupportedProtocol as error:
            raise self._error("nonsense", str(error)) from error

    def _of(self, error: OSError, why: str) -> errors.DaemonUnreachable:
        if isinstance(error, TimeoutError):
            return self._error("broken", "no answer in time")
        told = error.strerror or str(error) or type(error).__name__
        is_refused = isinstance(error, PermissionError)  # it is told who may connect
        if why == "absent" and os.environ.get("PREPCACHE_URL") == self.address.url and not is_refused:
            told += "; PREPCACHE_URL names it: start that daemon (`prepcached serve`), or unset it"
        return self._error(why, told[:1].lower() + told[1:])

    def close(self) -> None:
        self._pool.close()

    def _error(self, why: str, reason: str) -> errors.DaemonUnreachable:
        url = self.address.url
        told = f"the daemon at {url}{self._who() if why == 'broken' else ''} cannot be reached"
        if why == "nonsense":
            told = f"the server at {url} is not prepcached with protocol {wire.PROTOCOL} (see PREPCACHE_URL)"
        return errors.DaemonUnreachable(f"{told}: {_printable(reason)}", url=url, why=why)


def _refusal(problem: dict[str, Any]) -> errors.PrepcacheError:
    """The error in a problem document. One that no daemon may raise in a job is a plain refusal."""
    told = _printable(problem.get("detail") or problem.get("title"))
    error = errors.from_problem({**problem, "detail": told})
    if isinstance(error, errors.RequestError | errors.StoreError | errors.ProtocolMismatch):
        return error
    return errors.RequestError(error.message, **error.data)


def _printable(value: Any) -> str:
    return printable(" ".join(str(value or "").split()))[:1000]


def _headers(response: httpcore.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers}


class Stream(httpcore.NetworkStream):
    """A connected socket whose every operation ends by the deadline of its exchange."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._is_asked = False
        forks.note(self)

    def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        self._sock.settimeout(timeout.left_s())
        data = self._sock.recv(max_bytes)
        timeout.received(len(data))
        if self._is_asked and data[:5] != b"HTTP/"[: len(data)]:  # a parser would wait for the end of a head
            raise httpcore.UnsupportedProtocol(f"it answers {data[:40]!r}")
        self._is_asked = False
        return data

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        whole, self._is_asked = memoryview(buffer), True
        try:
            for start in range(0, len(whole), WRITE_BYTES):
                piece = whole[start : start + WRITE_BYTES]
                self._sock.settimeout(timeout.left_s())  # bounds the whole of sendall, unlike recv
                self._sock.sendall(piece)
                timeout.sent(len(piece))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise httpcore.WriteError from error  # it may have answered before it had read all of us

    def close(self) -> None:
        self._sock.close()

    def after_fork(self) -> None:
        with suppress(OSError):
            os.close(self._sock.detach())

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

    def connect_unix_socket(self, path: str, timeout: Any = None, socket_options: Any = None) -> Stream:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(timeout.left_s())
            sock.connect(path)
            if self._address.owner not in (None, peer_uid(sock)):
                raise PermissionError(errno.EACCES, "another user listens there", path)
        except OSError as error:
            sock.close()
            if isinstance(error, PermissionError) and error.filename is None:
                error = PermissionError(error.errno, f"{error.strerror}; {open_to(Path(path))}", path)
            raise httpcore.ConnectError(error) from error  # the pool raises it again without its cause
        return Stream(sock)

    def connect_tcp(
        self, host: str, port: int, timeout: Any = None, local_address: str | None = None,
        socket_options: Any = None,
    ) -> Stream:  # fmt: skip
        try:
            sock = socket.create_connection((host, port), timeout=timeout.left_s())
        except OSError as error:
            raise httpcore.ConnectError(error) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Stream(sock)


def peer_uid(sock: socket.socket) -> int:
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)
