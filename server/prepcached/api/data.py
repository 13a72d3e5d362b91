"""Artifacts over HTTP, for jobs that share no folder with the daemon.

Invariants:
    1. Down: pieces of a map, never the whole file in memory; the map keeps its bytes when the entry is
       removed meanwhile. The ETag is the artifact's digest, so a download can be resumed and checked. What a
       session holds it can have, whatever took its place since the look-up that named it.
    2. Up (intake.py): into the daemon's own staging file, of announced length, which counts against the
       session's staged bytes, and for which there must be room, before a byte is read. It ends with its
       lease: what drips would keep the room from all others. What breaks off leaves no file.

Source: RFC 9110, 13 (conditions) and 14 (ranges).
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import re
import secrets
from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from prepcache.errors import Declined, LeaseLapsed, LimitExceeded, NotFound, UnknownSession
from prepcache.protocol import wire
from prepcached.api import exchange
from prepcached.api.describe import BYTES, endpoint
from prepcached.daemon import Daemon
from prepcached.filling import Filling
from prepcached.intake import Intake
from prepcached.protocol import PeerProtocol
from prepcached.sessions import Session

PIECE_BYTES = 8 << 20
"""Handed to the transport at once, which copies none of it: with 2 MiB, and the size that a socket has, the
loop took a third of the time for its turns."""
AHEAD_BYTES = 8 << 20
"""Read ahead of the piece that is sent, so that a cold file does not stop the loop at each page."""
STALL_TIMEOUT_S = 30.0
"""Longest pause of a client within an upload; within a download: protocol.py."""
_OTHERS = {
    206: "the range that was asked for",
    304: "what the client has is the same",
    412: "the artifact is none that was asked for",
    416: "no such range",
}
_DIGEST_TAG = re.compile(r'"([0-9a-f]{64})"\Z')
_RANGE = re.compile(r"bytes=(\d*)-(\d*)\Z")


def router(daemon: Daemon, filling: Filling) -> APIRouter:
    api = APIRouter(tags=["data"])

    async def download(key: exchange.HexInPath, request: Request) -> Response:
        """The artifact's bytes, or a range of them.

        With `If-Match: "DIGEST"` those of an artifact that a session holds, though it was merged meanwhile.
        """
        condition = request.headers.get("if-match", "*")
        wanted = _DIGEST_TAG.match(condition)
        caller = exchange.caller(request)
        owner = caller.confined_to
        if wanted is not None:
            fd = await daemon.quick(daemon.store.open_artifact, key, wanted[1], owner)
            return Download(fd, wanted[0], request)
        fd, entry = await daemon.quick(daemon.store.open_entry, key, owner, caller.scope)
        etag = f'"{entry.digest}"'
        if condition != "*" and etag not in (one.strip() for one in condition.split(",")):
            os.close(fd)
            raise HTTPException(412, f"If-Match: the artifact has the tag {etag}")
        return Download(fd, etag, request)

    for method in ("GET", "HEAD"):
        name = f"{method.lower()}_data"
        described = endpoint(
            gives=BYTES, gives_type="application/octet-stream", others=_OTHERS, refuses=(NotFound,)
        )
        api.add_api_route("/v1/entries/{key}/data", download, methods=[method], name=name, **described)

    @api.put(
        "/v1/leases/{lease_id}/data",
        **endpoint(
            takes_type="application/octet-stream",
            gives=wire.StagedFile,
            acts_for_session=True,
            status=201,
            others={411: "the body's length is not announced"},
            refuses=(LeaseLapsed, LimitExceeded, Declined),
        ),
    )
    async def upload(lease_id: exchange.IdInPath, request: Request) -> Response:
        """Stages an artifact for a commit of this lease."""
        acting = exchange.session(request, daemon)
        daemon.leases.check_live(acting.id, lease_id)
        announced = request.headers.get("content-length", "")
        if not announced.isdecimal() or len(announced) > 18:
            raise HTTPException(411, "say in Content-Length how many bytes follow: room is looked for")
        go_on = partial(daemon.leases.check_live, acting.id, lease_id)
        staged = await _stage(daemon, filling, acting, request, int(announced), go_on)
        return exchange.answer(staged, 201)

    return api


async def _stage(
    daemon: Daemon,
    filling: Filling,
    session: Session,
    request: Request,
    size_bytes: int,
    go_on: Callable[[], None],
) -> wire.StagedFile:
    name = f"{session.id}.{secrets.token_hex(16)}"
    filling.stage(session, name, size_bytes)
    try:
        with contextlib.ExitStack() as stack:
            there = await daemon.slow(stack.enter_context, daemon.store.upload(name, size_bytes))
            intake = Intake(daemon, there, STALL_TIMEOUT_S, go_on)
            try:
                if session.id not in daemon.sessions:  # it was swept before there was this file
                    raise UnknownSession(f"{session.label}: the session ended before its upload began")
                await intake.take(request, size_bytes)
            except BaseException:
                await asyncio.shield(daemon.spawn(_drop(daemon, there.fd, name, intake)))
                raise
            await daemon.quick(os.close, there.fd)
    except BaseException:
        filling.unstage(session.id, [name])
        raise
    return wire.StagedFile(name, size_bytes)


async def _drop(daemon: Daemon, fd: int, name: str, intake: Intake) -> None:
    await intake.settle()
    await daemon.quick(os.close, fd)
    await daemon.quick(daemon.store.unstage, name)


class Download(Response):
    """An open artifact, or a range of it, as an answer.

    Args:
        fd: closed when the answer is over.
        etag: quoted.
    """

    def __init__(self, fd: int, etag: str, request: Request) -> None:
        self._fd = fd
        self.background = None
        size = os.fstat(fd).st_size
        self._start, self._stop, self.status_code = 0, size, 200
        conditions = request.headers.get("if-none-match", "")
        if etag in (one.strip().removeprefix("W/") for one in conditions.split(",")) or conditions == "*":
            self._stop, self.status_code = 0, 304
        elif request.headers.get("if-range", etag) == etag:
            try:
                self._take_range(request.headers.get("range", ""), size)
            except BaseException:
                os.close(fd)
                raise
        headers = {
            "etag": etag,
            "accept-ranges": "bytes",
            "content-type": "application/octet-stream",
            "cache-control": "no-transform",
        }
        if self.status_code != 304:
            headers["content-length"] = str(self._stop - self._start)
        if self.status_code == 206:
            headers["content-range"] = f"bytes {self._start}-{self._stop - 1}/{size}"
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    def _take_range(self, asked: str, size: int) -> None:
        found = _RANGE.match(asked)
        if found is None or found[1] == found[2] == "" or len(asked) > 60:
            return  # no range, several, or of another unit: all of it, as RFC 9110 14.2 allows
        first, last = found[1], found[2]
        if not first:
            start, stop = max(0, size - int(last)), size
        else:
            start, stop = int(first), min(size, int(last) + 1) if last else size
            if last and int(last) < int(first):
                return
        if start >= size or start >= stop:
            raise HTTPException(
                416, f"range {asked}: the artifact has {size} bytes", {"content-range": f"bytes */{size}"}
            )
        self._start, self._stop, self.status_code = start, stop, 206

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            connection = scope["state"].get("connection")
            if isinstance(connection, PeerProtocol):
                connection.send_in_bulk()
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            if scope["method"] == "HEAD" or self._start == self._stop:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            # Not closed here: the transport may still hold pieces; it is unmapped with the last of them.
            view = memoryview(mmap.mmap(self._fd, self._stop, prot=mmap.PROT_READ))
            for start in range(self._start, self._stop, PIECE_BYTES):
                stop = min(start + PIECE_BYTES, self._stop)
                os.posix_fadvise(self._fd, stop, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
                piece = {
                    "type": "http.response.body",
                    "body": view[start:stop],
                    "more_body": stop < self._stop,
                }
                await send(piece)
        finally:
            os.close(self._fd)
