"""A daemon that says whatever a test wants: a real unix socket, answers by the byte.

`answer(request)` gives the raw bytes to send, or an iterable of pieces; None closes without a word; raising
`Hang` keeps the connection open and silent until the fake is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Hang(Exception):
    """Say nothing, and keep the connection."""


def hang(request: Any) -> Any:
    raise Hang


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def reply(body: Any, status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(raw)}\r\n{more}\r\n"
    return head.encode() + raw


def problem(code: str, status: int, detail: str = "no", **data: Any) -> bytes:
    return reply(
        {"code": code, "status": status, "detail": detail, **data}, status, "application/problem+json"
    )


@dataclass
class FakeDaemon:
    """
    Args:
        path: of its socket; "" for a port of this machine.
        context: of TLS.
    """

    path: str
    answer: Callable[[Request], Any]
    context: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.closing = threading.Event()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self._listener = socket.socket(socket.AF_UNIX if self.path else socket.AF_INET)
        self._listener.bind(self.path or ("127.0.0.1", 0))
        self._listener.listen(16)
        self.port = 0 if self.path else int(self._listener.getsockname()[1])
        self._spawn(self._accept)

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        if self.context is not None:
            with contextlib.suppress(OSError):
                connection = self.context.wrap_socket(connection, server_side=True)
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as file:
            while (request := self._read(file)) is not None:
                self.requests.append(request)
                try:
                    said = self.answer(request)
                except Hang:
                    self.closing.wait()
                    return
                if said is None:
                    return
                for piece in [said] if isinstance(said, bytes) else said:
                    connection.sendall(piece)

    def _read(self, file: Any) -> Request | None:
        line = file.readline().decode()
        if not line:
            return None
        method, path, _ = line.split(" ", 2)
        headers = {}
        while (line := file.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Request(method, path, headers, file.read(int(headers.get("content-length", "0"))))

    def close(self) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(5)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def __enter__(self) -> FakeDaemon:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
