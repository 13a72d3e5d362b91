"""A request's body on its way into a file, without passing through the event loop where that can be.

A body that comes by HTTP's own way is read, collected, copied and handed on by the loop's thread, 64 KiB or
so at a time, before anybody writes it. Unless it has come already, reading there is paused instead, and
a worker thread receives the rest from the socket and writes it, a MiB at a time.

Invariants:
    1. Of the socket exactly the announced bytes are taken. The HTTP parser does not hear of them, so the
       connection is closed after the answer (middleware.py, invariant 3).
    2. A worker thread is kept only while bytes come, and for a short turn: a slow client is waited for on
       the loop.
    3. No thread uses the file or the socket any more when `take` ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from prepcache.errors import BadRequest
from prepcached.daemon import Daemon
from prepcached.http_protocol import PeerProtocol
from prepcached.store.room import Upload

T = TypeVar("T")

PIECE_BYTES = 1 << 20
"""So much is received before it is written, from border to border: smaller writes cost more."""
TURN_S = 0.05
"""A thread works so long before another upload or commit may have it."""
LINGER_S = 0.005
"""A thread waits so long for more before it is given back."""


async def take(
    daemon: Daemon, request: Request, file: Upload, announced: int, stall_s: float, go_on: Callable[[], None]
) -> None:
    """Writes the whole body, of the announced length.

    Args:
        daemon: whose worker threads write.
        stall_s: longest pause of the client.
        go_on: called whenever bytes have come; raises where the rest is of no use any more.

    Raises:
        BadRequest: the client paused for too long.
        ClientDisconnect: it hung up before the end.
        PrepcacheError: what `go_on` raised.
    """
    connection = request.scope["state"].get("connection")
    there = connection.hand_over(request.scope["state"]) if isinstance(connection, PeerProtocol) else None
    if there is None:  # all of it has come
        async with _patience(stall_s):
            body = await request.body()
        await _done(daemon, _write_all, file, body)
        return
    here, sock = there
    with sock:
        sock.settimeout(LINGER_S)
        await _done(daemon, _write_all, file, here)
        left = announced - len(here)
        while left:
            async with _patience(stall_s):
                await _readable(sock)
            go_on()
            moved, is_open = await _done(daemon, _move_some, sock, file, left)
            left -= moved
            if left and not is_open:
                async with _patience(stall_s):
                    async for _ in request.stream():  # the loop reads on, and so closes what has ended
                        pass
                raise ClientDisconnect


async def _done(daemon: Daemon, work: Callable[..., T], *args: Any) -> T:
    """Works in a thread, and waits for its end though the request is cancelled."""
    task = daemon.spawn(daemon.slow(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@asynccontextmanager
async def _patience(stall_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(stall_s):
            yield
    except TimeoutError:
        raise BadRequest(f"no part of the body arrived for {stall_s:.0f} s") from None


async def _readable(sock: socket.socket) -> None:
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(sock)


def _move_some(sock: socket.socket, file: Upload, left: int) -> tuple[int, bool]:
    """Moves what comes without a pause, for a turn: how much, and whether more may come."""
    at, until = os.lseek(file.fd, 0, os.SEEK_CUR), time.monotonic() + TURN_S
    piece = memoryview(bytearray(min(PIECE_BYTES, left)))
    moved, is_open, is_flowing = 0, True, True
    while is_flowing and moved < left and time.monotonic() < until:
        there, wanted = 0, min(PIECE_BYTES - (at + moved) % PIECE_BYTES, left - moved)
        try:
            while is_open and there < wanted and time.monotonic() < until:
                n = sock.recv_into(piece[there:wanted])
                there += n
                is_open = n > 0
        except TimeoutError:
            is_flowing = False
        except ConnectionError:
            is_open = False
        _write_all(file, piece[:there])
        moved += there
        is_flowing = is_flowing and is_open
    return moved, is_open


def _write_all(file: Upload, data: bytes | memoryview) -> None:
    file.expect(len(data))
    view = memoryview(data)
    while view:
        view = view[os.write(file.fd, view) :]
