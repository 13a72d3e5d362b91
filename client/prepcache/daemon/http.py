"""HTTP with a daemon, over a unix socket or TCP. No other module speaks it.

The protocol itself is httpcore's, the engine of httpx; deadline.py gives it its sockets.

Invariants:
    1. An exchange ends by its deadline, whatever the peer does (deadline.py).
    2. What comes back is bounded and checked: at most `MAX_ANSWER_BYTES`, a JSON object, no redirect.
       All else is `DaemonUnreachable` with `why` ("absent", "broken", "nonsense"), or the error that a
       problem document names; never another exception.
    3. Connections belong to one process; a forked child opens its own.
    4. Importing it loads httpcore: only what asks a daemon imports it.

Not here: retries and how long to wait (wait_budget.py), what the messages mean (client.py, session.py).
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpcore

from prepcache import __version__
from prepcache.daemon import waits
from prepcache.daemon.deadline import DUE, Backend
from prepcache.errors import (
    DaemonUnreachable,
    PrepcacheError,
    ProtocolMismatch,
    RequestError,
    StoreError,
    from_problem,
)
from prepcache.protocol import wire
from prepcache.protocol.members import Message
from prepcache.settings import Address

M = TypeVar("M", bound=Message)

MAX_IDLE = 8
FOLIO_BYTES = 2 << 20
"""Files are written by as much, from border to border: see NOTE [ Large folios ] in artifact/layout.py."""


class Transport:
    """Exchanges with one daemon; safe to share between threads, reopened after fork.

    Args:
        address: where it listens.
        token: sent as a bearer token.
    """

    def __init__(self, address: Address, token: str | None = None) -> None:
        self.address = address
        self._headers = {
            wire.PROTOCOL_HEADER: str(wire.PROTOCOL),
            "User-Agent": f"prepcache/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Host": "prepcached" if address.socket is not None else address.url.removeprefix("http://"),
        }
        self._host = address.host.encode() or b"prepcached"
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool: tuple[int, httpcore.ConnectionPool] | None = None

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
    ) -> dict[str, Any]:
        """One exchange of JSON.

        Args:
            body: JSON-able; None sends none.
            limit_s: the exchange ends within this.
            session: the value of the session header.

        Raises:
            DaemonUnreachable: no answer, or one that no daemon gives; `why` says which.
            PrepcacheError: the error that the daemon answered with.
        """
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Length": str(len(content))}
        if body is not None:
            headers["Content-Type"] = "application/json"
        DUE.is_transfer, DUE.until = False, math.inf
        with self._exchange(method, path, content, headers, limit_s, params, session) as response:
            return self._json(response)

    def upload(
        self,
        path: str,
        pieces: Iterable[bytes],
        size_bytes: int,
        *,
        limit_s: float,
        until: float = math.inf,
        session: str,
    ) -> dict[str, Any]:
        """PUTs `size_bytes` of a file; otherwise as `call`.

        Args:
            until: when it ends, however much it moves; monotonic seconds.
        """
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)}
        DUE.is_transfer, DUE.until = True, until
        with self._exchange("PUT", path, pieces, headers, limit_s, None, session) as response:
            return self._json(response)

    def download(self, path: str, fd: int, *, etag: str, max_bytes: int, limit_s: float) -> None:
        """GETs a file into `fd`, from its beginning.

        Raises:
            DaemonUnreachable, PrepcacheError: as `call`; part of it may be in `fd` then.
        """
        DUE.is_transfer, DUE.until = True, math.inf
        with self._exchange("GET", path, b"", {"If-Match": etag}, limit_s, None, None) as response:
            if response.status != 200:
                self._json(response)
            if response.status != 200 or _headers(response).get("etag") != etag:
                raise self._nonsense(f"a file other than {etag}")
            offset, kept = 0, bytearray()
            for piece in self._pieces(response):
                if offset + len(kept) + len(piece) > max_bytes:
                    raise self._nonsense(f"more than {max_bytes} bytes of {etag}")
                kept += piece
                offset += _write_out(fd, kept, len(kept) - len(kept) % FOLIO_BYTES, offset)
            offset += _write_out(fd, kept, len(kept), offset)
            os.ftruncate(fd, offset)

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
    ) -> Iterator[httpcore.Response]:
        """Sends a request and yields the response, its body unread; maps whatever goes wrong."""
        if session is not None:
            headers[wire.SESSION_HEADER] = session
        DUE.limit_s, DUE.at, DUE.has_ended = limit_s, time.monotonic() + limit_s, False
        target = f"{path}?{urlencode(params)}" if params else path
        asked = httpcore.Request(
            method,
            httpcore.URL(
                scheme=b"http", host=self._host, port=self.address.port or None, target=target.encode()
            ),
            headers=[
                (name.encode(), text.encode()) for name, text in (*self._headers.items(), *headers.items())
            ],
            content=content,
        )
        with self._mapped(is_body=False):
            response = self._this_pool().handle_request(asked)
        try:
            if not {"content-length", "transfer-encoding"} & _headers(response).keys():
                raise self._unreachable("broken", "an answer without a length")
            yield response
        finally:
            response.close()

    @contextmanager
    def _mapped(self, *, is_body: bool) -> Iterator[None]:
        """Turns whatever goes wrong on a connection into `DaemonUnreachable`."""
        try:
            yield
        except httpcore.ConnectError as error:
            raise self._of(error.args[0], "absent") from error
        except OSError as error:
            raise self._of(error, "broken") from error
        except httpcore.ProtocolError as error:
            if DUE.has_ended:
                raise self._unreachable("broken", f"it closed the connection ({error})") from error
            if is_body:
                raise self._unreachable("broken", str(error)) from error
            raise self._nonsense(str(error)) from error

    def _of(self, error: OSError, why: str) -> DaemonUnreachable:
        """What went wrong on a connection, as `DaemonUnreachable`."""
        if isinstance(error, TimeoutError):
            # What is left of a job's budget may be nothing: that number says nothing about the daemon.
            span = f"within {DUE.limit_s:.1f} s" if DUE.limit_s >= 1 else "in time"
            return self._unreachable("broken", f"no answer {span}")
        if isinstance(error, BlockingIOError):
            return self._unreachable("broken", "too many connections are waiting for it")
        return self._unreachable(why, _reason(error))

    def _pieces(self, response: httpcore.Response) -> Iterator[bytes]:
        """The bytes of an answer, as they come."""
        pieces = response.iter_stream()
        while True:
            with self._mapped(is_body=True):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def _json(self, response: httpcore.Response) -> dict[str, Any]:
        """The JSON object of an answer, or the error that it stands for."""
        status, raw = response.status, bytearray()
        for piece in self._pieces(response):
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
        if status >= 400 and isinstance(body, dict) and isinstance(body.get("code"), str):
            raise _told(body)
        if status >= 500:
            raise self._unreachable("broken", f"status {status} without a problem document")
        raise self._nonsense(f"status {status} without a problem document")

    def _this_pool(self) -> httpcore.ConnectionPool:
        """This process's connections."""
        if self._pool is None or self._pool[0] != os.getpid():  # a thread that is as quick has its own once
            self._pool = (
                os.getpid(),
                httpcore.ConnectionPool(
                    max_connections=sys.maxsize,
                    max_keepalive_connections=MAX_IDLE,
                    keepalive_expiry=waits.MAX_IDLE_S,
                    uds=self.address.socket,
                    network_backend=Backend(self.address),
                ),
            )
        return self._pool[1]

    def close(self) -> None:
        """Closes this process's idle connections; the next call opens new ones."""
        if self._pool is not None and self._pool[0] == os.getpid():
            for one in self._pool[1].connections:
                if one.is_idle():
                    one.close()

    def _unreachable(self, why: str, reason: str) -> DaemonUnreachable:
        return DaemonUnreachable(
            f"the daemon at {self.address.url} cannot be reached: {_printable(reason)}",
            url=self.address.url,
            why=why,
        )

    def _nonsense(self, what: str) -> DaemonUnreachable:
        return DaemonUnreachable(
            f"the server at {self.address.url} is not prepcached with protocol {wire.PROTOCOL}: "
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


def _write_out(fd: int, kept: bytearray, count: int, offset: int) -> int:
    """Moves the first bytes of `kept` to their place in a file; how many, all of them."""
    done = 0
    with memoryview(kept) as view:
        while done < count:
            done += os.pwrite(fd, view[done:count], offset + done)
    del kept[:count]
    return count


def _told(problem: dict[str, Any]) -> PrepcacheError:
    """The error in a problem document. One that no daemon may raise in a job is a plain refusal."""
    data = {k: v for k, v in problem.items() if k.isidentifier() and k not in ("self", "message")}
    error = from_problem({**data, "detail": _printable(problem.get("detail") or problem.get("title"))})
    if isinstance(error, RequestError | StoreError | ProtocolMismatch):
        return error
    return RequestError(error.message, **error.data)


def _reason(error: OSError) -> str:
    """What the system says about it."""
    told = error.strerror or ""
    return told[:1].lower() + told[1:] if told else str(error) or type(error).__name__


def _printable(value: Any) -> str:
    """Foreign text as one line that a terminal survives."""
    line = " ".join(str(value if value is not None else "").split())
    return "".join(c if c.isprintable() else "?" for c in line)[:1000]


def _headers(response: httpcore.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers}
