"""One HTTP exchange with a daemon, over a unix socket or TCP. The only module that imports httpx.

Invariants:
    1. An exchange ends by its deadline, whatever the peer does (connection.py): a body or a header that
       drips a byte a second is cut off like a hang.
    2. What comes back is bounded and checked: at most `MAX_ANSWER_BYTES`, a JSON object, no redirect.
       All else is `DaemonUnreachable` with `why` ("absent", "broken", "nonsense"), or the error that a
       problem document names; never another exception.
    3. Connections belong to one process; a forked child opens its own.

Locking: `_LOCK` guards the making of a pool; the pool is thread-safe.
Not here: retries and how long to wait (patience.py), what the messages mean (client.py, session.py).
Import this module lazily: httpx takes 0.13 s.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpcore
import httpx

from prepcache import __version__, wire
from prepcache.connection import DUE, Backend
from prepcache.errors import DaemonUnreachable, PrepcacheError, from_problem
from prepcache.members import Message
from prepcache.settings import Address

M = TypeVar("M", bound=Message)

MAX_CONNECTIONS = 8
"""Threads of one process that talk at once; more wait for a free connection, within their deadline."""
KEEP_ALIVE_S = 20.0

_LOCK = threading.Lock()


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
            network_backend=Backend(),
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
                extensions={"timeout": {"pool": DUE.left_s()}},
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
        DUE.is_transfer, DUE.is_alive = False, is_alive
        with self._exchange(method, path, content, headers, limit_s, params, session) as response:
            return self._json(response)

    def upload(
        self, path: str, pieces: Iterable[bytes], size_bytes: int, *, limit_s: float, session: str
    ) -> dict[str, Any]:
        """PUTs `size_bytes` of a file; otherwise as `call`."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)}
        DUE.is_transfer, DUE.is_alive = True, None
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
        DUE.is_transfer, DUE.is_alive = True, None
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
        DUE.limit_s, DUE.at = limit_s, time.monotonic() + limit_s
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


os.register_at_fork(after_in_child=_after_fork_in_child)
