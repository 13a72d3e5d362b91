"""Artifacts over HTTP, for jobs that share no folder with the daemon.

Invariants:
    1. Down: in pieces; an open file keeps its bytes when the entry is removed. The ETag is the artifact's
       digest.
    2. Up: a MiB at a time into a staging file of announced length, for which there must be room before a byte
       is read. It ends with its lease: what drips would keep the room from others. What breaks off leaves no
       file.

Source: RFC 9110, 13 (conditions) and 14 (ranges).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from prepcache.errors import BadRequest, UnknownSession
from prepcache.protocol import wire
from prepcached.coordinator import Coordinator
from prepcached.daemon import Daemon, Session
from prepcached.http_protocol import PeerProtocol
from prepcached.routes import messages
from prepcached.routes.messages import BYTES, endpoint
from prepcached.store.store import Store

PIECE_BYTES = 4 << 20
"""Read and handed to the transport at once; with 64 KiB a GB takes six times the CPU."""
WRITE_BYTES = 1 << 20
MAX_PIECES = 256
"""An upload is written when so much has come, or so many pieces: each write takes a worker thread's turn."""
STALL_TIMEOUT_S = 30.0
"""Longest pause of a client within an upload; within a download: http_protocol.py."""
_DIGEST_TAG = re.compile(r'"([0-9a-f]{64})"\Z')
_RANGE = re.compile(r"bytes=(?:(\d{1,50})-(\d{0,50})|-\d{1,50})\Z")


def router(daemon: Daemon, coordinator: Coordinator) -> APIRouter:
    api = APIRouter(tags=["data"])

    async def download(key: messages.HexInPath, request: Request) -> Response:
        """The artifact's bytes, or a range of them.

        With `If-Match: "DIGEST"`, those of that artifact, if it is still an entry.
        """
        condition = request.headers.get("if-match", "*")
        caller = messages.caller(request)
        wanted = _DIGEST_TAG.match(condition)
        if wanted is None and condition != "*":
            raise HTTPException(412, "If-Match: give the tag of one artifact, as in ETag")
        digest = wanted[1] if wanted else None
        fd, entry = await daemon.quick(daemon.store.open_entry, key, caller.confined_to, caller.scope, digest)
        return Download(fd, f'"{entry.digest}"')

    for method in ("GET", "HEAD"):
        name = f"{method.lower()}_data"
        described = endpoint(gives=BYTES, gives_type="application/octet-stream")
        api.add_api_route("/v1/entries/{key}/data", download, methods=[method], name=name, **described)

    @api.put(
        "/v1/leases/{lease_id}/data",
        **endpoint(
            takes_type="application/octet-stream", gives=wire.StagedFile, acts_for_session=True, status=201
        ),
    )
    async def upload(lease_id: messages.IdInPath, request: Request) -> Response:
        """Stages an artifact for a commit of this lease."""
        acting = messages.session(request, daemon)
        daemon.leases.check_live(acting.id, lease_id)
        announced = request.headers.get("content-length", "")
        if not announced.isdecimal() or len(announced) > 18:
            raise HTTPException(411, "send Content-Length: the daemon reserves room for that many bytes")
        staged = await _stage(daemon, coordinator, acting, request, int(announced), lease_id)
        return messages.answer(staged, 201)

    return api


async def _stage(
    daemon: Daemon, coordinator: Coordinator, session: Session, request: Request, size_bytes: int, lease: str
) -> wire.StagedFile:
    name = f"{session.id}.{secrets.token_hex(16)}"
    coordinator.stage(session, name, size_bytes)
    try:
        with contextlib.ExitStack() as stack:
            fd = await daemon.slow(stack.enter_context, daemon.store.upload(name, size_bytes))
            try:
                await _receive(daemon, request, fd, session, lease)
            except BaseException:
                await asyncio.shield(daemon.spawn(daemon.quick(_drop, daemon.store, fd, name)))
                raise
            await daemon.quick(os.close, fd)
        if session.id not in daemon.sessions:  # what it left was swept, but for this file, which was busy
            await daemon.quick(daemon.store.unstage, name)
            raise UnknownSession(f"{session.label}: the session ended before its upload did")
    except BaseException:
        session.staged.pop(name, None)
        raise
    return wire.StagedFile(name, size_bytes)


async def _receive(daemon: Daemon, request: Request, fd: int, session: Session, lease: str) -> None:
    """Writes the body as it comes, while its lease lives."""
    stream, pieces = aiter(request.stream()), list[bytes]()
    while True:
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                piece = await anext(stream, b"")
        except TimeoutError:
            raise BadRequest(f"no part of the body arrived for {STALL_TIMEOUT_S:.0f} s") from None
        daemon.leases.check_live(session.id, lease)
        pieces.append(piece)
        if not piece or sum(map(len, pieces)) >= WRITE_BYTES or len(pieces) == MAX_PIECES:
            writing = daemon.spawn(daemon.slow(_write, fd, pieces))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait([writing])  # it uses the file
                raise
            pieces = []
        if not piece:
            return


def _write(fd: int, pieces: list[bytes]) -> None:
    left = memoryview(b"".join(pieces))
    while left:
        left = left[os.write(fd, left) :]


def _drop(store: Store, fd: int, name: str) -> None:
    os.close(fd)
    store.unstage(name)


class Download(FileResponse):
    """An open artifact, or a range of it, as an answer, which closes it."""

    chunk_size = PIECE_BYTES

    def __init__(self, fd: int, etag: str) -> None:
        super().__init__(
            f"/proc/self/fd/{fd}",
            headers={"etag": etag, "cache-control": "no-transform"},
            media_type="application/octet-stream",
            stat_result=os.fstat(fd),
        )
        self._fd = fd

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def checked(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                size = os.fstat(self._fd).st_size
                unsatisfied = {"content-range": f"bytes */{size}"}
                raise HTTPException(416, f"the artifact has {size} bytes: the range is outside", unsatisfied)
            await send(message)

        try:
            connection = scope["state"].get("connection")
            if isinstance(connection, PeerProtocol):
                connection.send_in_bulk()
            asked = _RANGE.match(Headers(scope=scope).get("range", ""))
            if asked is None or (asked[2] and int(asked[2]) < int(asked[1])):
                # No range, several, or one that means nothing: all of it, as RFC 9110, 14.2 allows.
                kept = [(name, value) for name, value in scope["headers"] if name != b"range"]
                scope = {**scope, "headers": kept}
            await super().__call__(scope, receive, checked)
        finally:
            os.close(self._fd)
