"""Leases from a lead daemon, so that only one of several machines preprocesses an item.

Before a daemon grants a job an item that the bucket lacks, it leases it from the lead, in pieces of some
seconds of work, by the request by which jobs lease. A piece on which no job works, and whose recipe waits for
no copy, goes back.

Invariants:
    1. A lead that lies can cause work to be done twice, never a wrong sample. Without it, all leases are
       local.
    2. What was just leased is looked for in the bucket once more: another machine may just have copied it.
    3. An exchange that fails ends this machine's session at the lead, and all its leases with it.

Locking: none; everything runs on the daemon's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import ssl
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpcore
from blake3 import blake3

from prepcache.digests import RecipeDigest
from prepcache.errors import LimitExceeded, PrepcacheError, UnknownSession, from_problem
from prepcache.protocol import wire
from prepcache.protocol.wire import Message
from prepcached.daemon import Daemon, Session
from prepcached.leases import digests
from prepcached.tier.bucket import Outage

if TYPE_CHECKING:
    from prepcached.tier.tier import Tier

CALL_S = 1.0  # longest wait for an answer of the lead, beyond what it was asked to wait
MAX_ANSWER_BYTES = 8 << 20
PIECE_S = 10.0  # seconds of work that are leased at once, so that the lead is asked rarely
FEWEST_PIECES = 4
"""A piece is at most this part of what the job says is missing, so that machines end together."""
IDLE_S = 3.0  # after which a piece that no job here works on is given back
BEAT_S = 2.0
HELD_AGE_S = 2.0
"""While other machines hold everything, the bucket is asked this often for what they have copied."""
RETRY_S = 10.0

M = TypeVar("M", bound=Message)
_BROKEN = (
    *(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException),
    *(OSError, ValueError, RecursionError),
)


class LeadAway(Exception):
    """The lead did not answer in time, or what it said is no answer."""


@dataclass(eq=False)
class Piece:
    """A lease of this machine; `used_at` is when a job here was last at work on it."""

    lease: wire.Lease
    items: set[bytes]
    used_at: float


class Upstream:
    """This machine's leases from the lead, which may be behind a proxy that ends TLS."""

    def __init__(self, daemon: Daemon, tier: Tier, url: str, token: str) -> None:
        meanwhile = "this machine leases by itself, so other machines may preprocess the same items"
        self._url = url.rstrip("/")
        self._headers: dict[bytes | str, bytes | str] = {
            "Host": urlsplit(self._url).netloc,
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            wire.PROTOCOL_HEADER: str(wire.PROTOCOL),
        }
        context = ssl.create_default_context() if url.startswith("https:") else None
        self._pool = httpcore.AsyncConnectionPool(ssl_context=context, keepalive_expiry=30.0)
        self._session = ""  # as the header names it; empty where there is none
        self._outage = Outage(f"the lead {self._url}", meanwhile, RETRY_S, daemon.clock)
        self._daemon = daemon
        self._tier = tier
        self._mine: dict[str, dict[bytes, Piece]] = {}

    @property
    def is_away(self) -> bool:
        return not (self._session and self._outage.is_usable)

    def status(self) -> dict[str, Any]:
        return {
            "upstream": self._url,
            "is_upstream_away": self.is_away,
            "upstream_failures": self._outage.failures,
            "last_upstream_failure": self._outage.last_failure,
        }

    async def watch(self) -> None:
        await self._outage.watch(self._beat, BEAT_S)

    async def leave(self) -> None:
        with contextlib.suppress(LeadAway):
            await self._end_session()
        await self._pool.aclose()

    async def share(
        self, recipe: str, request: wire.LeaseRequest, session: Session, wait_s: float
    ) -> tuple[Container[bytes] | None, tuple[wire.Holder, ...]]:
        """Leases what a job asks for and this machine may not preprocess yet. Returns the items that a job
        here may preprocess (None: all, the lead is away), and who has some of the rest."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._outage.was_asked.wait(), CALL_S)
        if self.is_away:
            return None, ()
        items = digests(request.items)
        mine, leased = self._mine.get(recipe, {}), self._daemon.leases.leased(recipe)
        free = [item for item in items if item not in leased]
        asked = [item for item in free if item not in mine][: wire.MAX_ITEMS]
        lacking = min(request.want, len(free)) - (len(free) - len(asked))
        if lacking <= 0:
            return mine, ()
        began = self._daemon.clock()
        try:
            may_wait_s = wait_s if len(asked) == len(items) else 0.0
            piece, holders = await self._lease(recipe, asked, lacking, request, may_wait_s)
        except (LeadAway, PrepcacheError) as error:
            if isinstance(error, UnknownSession):  # the lead has restarted: the next beat opens another one
                self._session = ""
            elif not isinstance(error, LimitExceeded):
                self._outage.note_failure(error)
                self._outage.note_lost(began)
            return None, ()
        try:
            max_age_s = HELD_AGE_S if piece is None else 0.0
            await self._tier.claim(recipe, request.items, session, max_age_s)
        finally:
            if piece is not None:
                self._mine.setdefault(recipe, {}).update(dict.fromkeys(piece.items, piece))
        return self._mine.get(recipe, {}), holders

    async def _lease(
        self, recipe: str, asked: list[bytes], lacking: int, request: wire.LeaseRequest, wait_s: float
    ) -> tuple[Piece | None, tuple[wire.Holder, ...]]:
        want, item_s = lacking, request.cost_s / request.want
        if item_s > 0:
            want = max(lacking, min(int(PIECE_S / item_s), len(asked) // FEWEST_PIECES))
        wanted = wire.LeaseRequest(
            lease=secrets.token_hex(16),
            # What machines call a recipe, scoped, is no job's recipe, and another one for each scope.
            recipe=RecipeDigest(blake3(f"machines {recipe}".encode()).hexdigest()),
            generation=0,
            items=b"".join(asked),
            want=want,
            cost_s=item_s * want,
            wait_s=wait_s,
            is_for_machine=True,
        )
        answer = await self._ask("POST", "/leases", wanted, wire.LeaseAnswer, wait_s)
        if lie := answer.lie(len(asked), want):
            raise LeadAway(f"its answer cannot be true: {lie}")
        if not (answer.lease or answer.held):
            raise LeadAway("it neither granted the items nor said who has them")
        if answer.lease is None:
            return None, answer.held
        items = {asked[index] for index in answer.granted}
        return Piece(answer.lease, items, self._daemon.clock()), answer.held

    async def _beat(self) -> None:
        """Keeps the session at the lead, or opens one."""
        if self._session and not self._outage.is_on:
            with contextlib.suppress(UnknownSession):
                told = wire.BeatRequest(lost=self._idle())
                await self._ask("POST", f"{self._own_path()}/beat", told, wire.BeatAnswer)
                return
        await self._end_session()
        self._mine.clear()
        opening = wire.SessionRequest("prepcached", os.getpid(), socket.gethostname()[:256])
        opened = await self._ask("POST", "/sessions", opening, wire.SessionAnswer)
        self._session = wire.session_header(opened.session, opened.token)

    async def _end_session(self) -> None:
        if self._session:
            with contextlib.suppress(PrepcacheError):
                await self._ask("DELETE", self._own_path(), None, wire.Nothing)
        self._session = ""

    def _own_path(self) -> str:
        return f"/sessions/{self._session.partition('.')[0]}"

    def _idle(self) -> tuple[str, ...]:
        """Forgets the pieces on which nobody works, and names their leases."""
        now, idle = self._daemon.clock(), []
        for recipe, mine in list(self._mine.items()):
            leased, is_pending = self._daemon.leases.leased(recipe), self._tier.is_pending(recipe)
            for piece in set(mine.values()):
                if is_pending or any(item in leased for item in piece.items):
                    piece.used_at = now
                elif now - piece.used_at > IDLE_S:
                    idle.append(piece.lease.id)
                    for item in piece.items:
                        mine.pop(item, None)
            if not mine:
                del self._mine[recipe]
        return tuple(idle)

    async def _ask(
        self, method: str, path: str, message: Message | None, gives: type[M], wait_s: float = 0.0
    ) -> M:
        """One exchange with the lead; raises LeadAway, or the PrepcacheError that it answered."""
        headers = {**self._headers, wire.SESSION_HEADER: self._session} if self._session else self._headers
        body = b"" if message is None else json.dumps(message.to_json()).encode()
        raw = bytearray()
        try:
            async with (
                asyncio.timeout(CALL_S + wait_s),
                self._pool.stream(
                    method, self._url + wire.API + path, headers=headers, content=body
                ) as answer,
            ):
                async for piece in answer.aiter_stream():
                    raw += piece
                    if len(raw) > MAX_ANSWER_BYTES:
                        raise LeadAway(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            found = json.loads(raw or b"{}")
            if answer.status >= 400 and isinstance(found, dict) and isinstance(found.get("code"), str):
                raise from_problem(found)
            if not 200 <= answer.status < 300:
                raise LeadAway(f"status {answer.status} without a problem document")
            return gives.from_json(found)
        except TimeoutError:
            raise LeadAway(f"no answer within {CALL_S + wait_s:.1f} s") from None
        except _BROKEN as error:
            raise LeadAway(str(error).split("\n")[0][:200] or type(error).__name__) from None
