"""A request's body on its way into a file, without passing through the event loop where that can be.

A body that comes by HTTP's own way is read, collected, copied and handed on by the loop's thread, 64 KiB or
so at a time, before anybody writes it. Unless it has come already, reading there is paused instead, and
a worker thread receives the rest from the socket and writes it, a MiB at a time.

Invariants:
    1. Of the socket exactly the announced bytes are taken. The HTTP parser does not hear of them, so the
       connection is closed after the answer (middleware.py, invariant 3).
    2. A worker thread is kept only while bytes come, and for a short turn: a slow client is waited for on
       the loop.
    3. Neither descriptor is closed while a thread uses it: `settle` comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from prepcache.errors import BadRequest
from prepcached.daemon import Daemon
from prepcached.http_protocol import PeerProtocol
from prepcached.store.room import Upload

T = TypeVar("T")

PIECE_BYTES = 1 << 20
"""So much is received before it is written, from border to border: written in the parts in which a socket has
it, a file would come to lie in small folios, each of which costs."""
TURN_S = 0.05
"""A thread works so long before another upload or commit may have it: bytes that come one by one, or over a
slow network, would keep it for minutes. Shorter turns cost: each begins on the loop."""
LINGER_S = 0.005
"""A thread waits so long for more before it is given back."""


class Intake:
    """One body, written to one file.

    Args:
        daemon: whose worker threads write.
        file: the staged file; its descriptor is the caller's to close, after `settle`.
        stall_s: longest pause of the client.
        go_on: called whenever bytes have come; raises where the rest is of no use any more.
    """

    def __init__(self, daemon: Daemon, file: Upload, stall_s: float, go_on: Callable[[], None]) -> None:
        self._daemon = daemon
        self._file = file
        self._stall_s = stall_s
        self._go_on = go_on
        self._work: asyncio.Task[Any] | None = None

    async def take(self, request: Request, announced: int) -> None:
        """Writes the whole body, of the announced length.

        Raises:
            BadRequest: the client paused for too long.
            ClientDisconnect: it hung up before the end.
            PrepcacheError: what `go_on` raised.
        """
        connection = request.scope["state"].get("connection")
        there: tuple[bytes, socket.socket] | None = None
        if isinstance(connection, PeerProtocol):
            there = connection.hand_over(request.scope["state"])
        if there is None:  # all of it has come
            async with self._patience():
                body = await request.body()
            await self._done(_write_all, self._file, body)
            return
        with there[1]:
            try:
                await self._move(request, *there, announced)
            finally:
                await self.settle()

    async def settle(self) -> None:
        """Waits until no thread is at work on the file; whatever came of it."""
        if self._work is not None:
            await asyncio.wait([self._work])

    async def _move(self, request: Request, here: bytes, sock: socket.socket, announced: int) -> None:
        """Writes what has come already, then the rest from the socket."""
        await self._done(_write_all, self._file, here)
        left = announced - len(here)
        sock.settimeout(LINGER_S)
        while left:
            await self._readable(sock)
            moved, is_open = await self._done(_move_some, sock, self._file, left)
            left -= moved
            if left and not is_open:
                async with self._patience():
                    async for _ in request.stream():  # the loop reads on, and so closes what has ended
                        pass
                raise ClientDisconnect

    async def _readable(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        loop.add_reader(sock, came.set)
        try:
            async with self._patience():
                await came.wait()
        finally:
            loop.remove_reader(sock)

    async def _done(self, work: Callable[..., T], *args: Any) -> T:
        task = self._daemon.spawn(self._daemon.slow(work, *args))
        self._work = task
        return await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._stall_s):
                yield
        except TimeoutError:
            raise BadRequest(f"no part of the body arrived for {self._stall_s:.0f} s") from None
        self._go_on()


def _move_some(sock: socket.socket, file: Upload, left: int) -> tuple[int, bool]:
    """Moves what comes without a pause, for a turn: how much, and whether more may come."""
    at = os.lseek(file.fd, 0, os.SEEK_CUR)
    piece = memoryview(bytearray(min(PIECE_BYTES, left)))
    moved, is_open, until = 0, True, time.monotonic() + TURN_S
    while is_open and moved < left and (not moved or time.monotonic() < until):
        to_border = PIECE_BYTES - (at + moved) % PIECE_BYTES
        there, is_open = _gather(sock, piece[: min(to_border, left - moved)], until)
        if not there:
            break
        _write_all(file, piece[:there])
        moved += there
    return moved, is_open


def _gather(sock: socket.socket, piece: memoryview, until: float) -> tuple[int, bool]:
    """Fills a piece with what comes without a pause: how much, and whether more may come."""
    there = 0
    while there < len(piece) and (not there or time.monotonic() < until):
        try:
            n = sock.recv_into(piece[there:])
        except TimeoutError:
            break
        except ConnectionError:
            n = 0
        if not n:
            return there, False
        there += n
    return there, True


def _write_all(file: Upload, data: bytes | memoryview) -> None:
    file.expect(len(data))
    view = memoryview(data)
    while view:
        view = view[os.write(file.fd, view) :]
