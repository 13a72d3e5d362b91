"""One HTTP exchange with a daemon, over a unix socket or TCP. The only module that imports httpx.

Invariants:
    1. An exchange ends by its deadline, whatever the peer does: every read and write on the socket gets
       what is left of it, so a body or a header that drips a byte a second is cut off like a hang.
    2. What comes back is bounded and checked: at most `MAX_ANSWER_BYTES`, a JSON object, no redirect.
       All else is `DaemonUnreachable` with `why` ("absent", "broken", "nonsense"), or the error that a
       problem document names; never another exception.
    3. Connections belong to one process: a forked child closes what it inherited before it does anything
       else, or the daemon would take the parent for alive as long as the child is.

Locking: `_LOCK` guards the making of a pool; the pool is thread-safe.
Not here: retries and how long to wait (patience.py), what the messages mean (client.py, session.py).
Import this module lazily: httpx takes 0.13 s.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import httpcore
import httpx

from prepcache import __version__, wire
from prepcache.errors import DaemonUnreachable, PrepcacheError, from_problem
from prepcache.members import Message
from prepcache.settings import Address

M = TypeVar("M", bound=Message)

MAX_CONNECTIONS = 8
"""Threads of one process that talk at once; more wait for a free connection, within their deadline."""
KEEP_ALIVE_S = 20.0
SLOWEST_TRANSFER = 2 << 20
"""Bytes/s of up- and downloads below which a daemon counts as hung."""
WRITE_BYTES = 256 << 10

_LOCK = threading.Lock()
_SOCKETS: weakref.WeakSet[_DeadlineStream] = weakref.WeakSet()


class _Due(threading.local):
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


_DUE = _Due()


class _DeadlineStream(httpcore.NetworkStream):
    """A connected socket whose every operation ends by the deadline of its thread's exchange."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        _SOCKETS.add(self)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            while True:
                try:
                    self._sock.settimeout(_DUE.left_s())
                    data = self._sock.recv(max_bytes)
                    break
                except TimeoutError:
                    if not _DUE.may_go_on():
                        raise
        except TimeoutError as error:
            raise httpcore.ReadTimeout(error) from error
        except OSError as error:
            raise httpcore.ReadError(error) from error
        _DUE.note(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            for start in range(0, len(buffer), WRITE_BYTES):
                piece = memoryview(buffer)[start : start + WRITE_BYTES]
                # sendall's timeout bounds the whole call, unlike recv's (Python >= 3.5).
                self._sock.settimeout(_DUE.left_s())
                self._sock.sendall(piece)
                _DUE.note(len(piece))
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
    import select

    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class _Backend(httpcore.NetworkBackend):
    """Connects, within the deadline."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        sock = _connected(lambda: socket.create_connection((host, port), timeout=_DUE.left_s()))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _DeadlineStream(sock)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        return _DeadlineStream(_connected(lambda: connect_unix(path, _DUE.left_s())))

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


class _Body(httpx.SyncByteStream):
    """A response's bytes as they come."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        self._stream.close()


class _Engine(httpx.BaseTransport):
    """httpx over a pool of our own streams: its own transport has no deadline, and loads certificates."""

    def __init__(self, address: Address) -> None:
        self._pool = httpcore.ConnectionPool(
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE_S,
            uds=address.socket,
            network_backend=_Backend(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        answer = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=target,
                headers=request.headers.raw,
                content=request.stream,
                extensions={"timeout": {"pool": _DUE.left_s()}},
            )
        )
        assert isinstance(answer.stream, Iterable)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer.stream))

    def close(self) -> None:
        self._pool.close()


class Transport:
    """Exchanges with one daemon; safe to share between threads, reopened after fork.

    Args:
        address: where it listens.
        token: sent as a bearer token.
    """

    def __init__(self, address: Address, token: str | None = None) -> None:
        self.address = address
        self._base = "http://prepcached" if address.socket is not None else address.url
        self._headers = {
            wire.PROTOCOL_HEADER: str(wire.PROTOCOL),
            "User-Agent": f"prepcache/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
        }
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._made: tuple[int, _Engine] | None = None

    def __reduce__(self) -> Any:
        raise TypeError("a Transport holds connections and belongs to one process: it is not pickled")

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        limit_s: float,
        params: Mapping[str, str] | None = None,
        session: str | None = None,
        is_alive: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """One exchange of JSON.

        Args:
            body: JSON-able; None sends none.
            limit_s: the exchange ends within this.
            session: the value of the session header.
            is_alive: asked after each `limit_s` of silence; True waits for another, since the daemon is
                only busy. For what may honestly take long.

        Raises:
            DaemonUnreachable: no answer, or one that no daemon gives; `why` says which.
            PrepcacheError: the error that the daemon answered with.
        """
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        _DUE.is_transfer, _DUE.is_alive = False, is_alive
        with self._exchange(method, path, content, headers, limit_s, params, session) as response:
            return self._json(response)

    def upload(
        self, path: str, pieces: Iterable[bytes], size_bytes: int, *, limit_s: float, session: str
    ) -> dict[str, Any]:
        """PUTs `size_bytes` of a file; otherwise as `call`."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)}
        _DUE.is_transfer, _DUE.is_alive = True, None
        with self._exchange("PUT", path, pieces, headers, limit_s, None, session) as response:
            return self._json(response)

    def download(self, path: str, fd: int, *, start: int, etag: str, max_bytes: int, limit_s: float) -> int:
        """GETs a file from `start` on, as far as it comes, into `fd` at its place.

        Returns:
            The length of what `fd` holds then; 0 where the daemon began from the start, and broke off.

        Raises:
            DaemonUnreachable, PrepcacheError: as `call`; `fd` may have grown.
        """
        headers = {"Range": f"bytes={start}-", "If-Range": etag} if start else {}
        _DUE.is_transfer, _DUE.is_alive = True, None
        with self._exchange("GET", path, None, headers, limit_s, None, None) as response:
            if response.status_code not in (200, 206):
                self._json(response)
            if response.status_code not in (200, 206) or response.headers.get("ETag") != etag:
                raise self._nonsense(f"another file than {etag}")
            offset = start if response.status_code == 206 else 0
            for piece in response.iter_raw():
                if offset + len(piece) > max_bytes:
                    raise self._nonsense(f"more than {max_bytes} bytes of {etag}")
                offset += os.pwrite(fd, piece, offset)
            return offset

    @contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        content: Any,
        headers: dict[str, str],
        limit_s: float,
        params: Mapping[str, str] | None,
        session: str | None,
    ) -> Iterator[httpx.Response]:
        """Sends a request and yields the response, its body unread; maps whatever goes wrong."""
        if session is not None:
            headers[wire.SESSION_HEADER] = session
        _DUE.limit_s, _DUE.at = limit_s, time.monotonic() + limit_s
        try:
            url = httpx.URL(self._base + path, params=params or None)
            request = httpx.Request(method, url, headers={**self._headers, **headers}, content=content)
            response = self._engine().handle_request(request)
            try:
                yield response
            finally:
                response.close()
        except httpx.InvalidURL as error:
            raise self._nonsense(str(error)) from error
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise self._unreachable("absent", _reason(error)) from error
        except (httpcore.TimeoutException, TimeoutError) as error:
            raise self._unreachable("broken", f"no answer within {limit_s:.1f} s") from error
        except (httpcore.NetworkError, httpx.StreamError) as error:
            raise self._unreachable("broken", f"the connection broke ({_reason(error)})") from error
        except httpcore.RemoteProtocolError as error:
            # A server that was killed closes without a word; one that speaks, but not HTTP, lies.
            why = "broken" if "disconnected" in str(error) or "closed" in str(error) else "nonsense"
            raise self._unreachable(why, f"what answers there does not speak HTTP ({error})") from error
        except (httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
            raise self._nonsense(str(error)) from error

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        """The JSON object of an answer, or the error that it stands for."""
        status, raw = response.status_code, bytearray()
        for piece in response.iter_raw():
            raw += piece
            if len(raw) > wire.MAX_ANSWER_BYTES:
                raise self._nonsense(f"an answer of more than {wire.MAX_ANSWER_BYTES} bytes")
        try:
            body = json.loads(raw) if raw else {}
        except (ValueError, RecursionError):
            body = None
        if 200 <= status < 300:
            if not isinstance(body, dict):
                raise self._nonsense("an answer that is not a JSON object")
            return body
        if isinstance(body, dict) and isinstance(body.get("code"), str):
            raise from_problem({**body, "detail": _printable(body.get("detail") or body.get("title"))})
        if status >= 500:
            raise self._unreachable("broken", f"status {status} without a problem document")
        raise self._nonsense(f"status {status} without a problem document")

    def _engine(self) -> _Engine:
        """This process's pool. No `httpx.Client` around it: that logs each request where a job shows INFO."""
        pid, made = os.getpid(), self._made
        if made is not None and made[0] == pid:
            return made[1]
        with _LOCK:
            made = self._made
            if made is None or made[0] != pid:
                self._made = made = (pid, _Engine(self.address))
            return made[1]

    def close(self) -> None:
        """Closes this process's connections; the next call opens new ones."""
        with _LOCK:
            made, self._made = self._made, None
        if made is not None and made[0] == os.getpid():
            made[1].close()

    def _unreachable(self, why: str, reason: str) -> DaemonUnreachable:
        return DaemonUnreachable(
            f"the daemon at {self.address.url} cannot be reached: {_printable(reason)}",
            url=self.address.url,
            why=why,
        )

    def _nonsense(self, what: str) -> DaemonUnreachable:
        return DaemonUnreachable(
            f"what answers at {self.address.url} is no prepcached of protocol {wire.PROTOCOL}: "
            f"{_printable(what)}",
            url=self.address.url,
            why="nonsense",
        )

    def read(self, message: type[M], answer: Any) -> M:
        """The message in an answer; an answer that holds none is nonsense, not a bad request of ours."""
        try:
            return message.from_json(answer)
        except PrepcacheError as error:
            raise self._nonsense(error.message) from error


def _reason(error: Exception) -> str:
    """What the system says about it."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return str(error) or type(error).__name__


def _printable(value: Any) -> str:
    """Foreign text as one line that a terminal survives."""
    line = " ".join(str(value if value is not None else "").split())
    return "".join(c if c.isprintable() else "?" for c in line)[:1000]


def _after_fork_in_child() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    for stream in list(_SOCKETS):
        with suppress(OSError):
            stream.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
