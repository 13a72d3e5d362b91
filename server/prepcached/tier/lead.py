"""One exchange with the lead daemon, over TCP with a token; bounded in time and size."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import TypeVar
from urllib.parse import urlsplit

import httpcore

from prepcache.errors import BadRequest, from_problem
from prepcache.protocol import wire
from prepcache.protocol.members import Message
from prepcached.tier.outage import ServiceFailed

CALL_S = 1.0
"""Longest wait for an answer, beyond what the lead was asked to wait."""
MAX_ANSWER_BYTES = 8 << 20

M = TypeVar("M", bound=Message)
_BROKEN: tuple[type[Exception], ...] = (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError)
_BROKEN += (httpcore.UnsupportedProtocol, httpcore.TimeoutException, RecursionError)


class LeadAway(ServiceFailed):
    """The lead did not answer in time, or what it said is no answer."""


class Lead:
    """The daemon that leases to the others.

    Args:
        url: `http://host:port`, or `https://host` where a proxy in front of it ends TLS.
        token: what its `token_file` holds.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._headers: dict[bytes | str, bytes | str] = {
            "Host": urlsplit(self.url).netloc,
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            wire.PROTOCOL_HEADER: str(wire.PROTOCOL),
        }
        context = ssl.create_default_context() if url.startswith("https:") else None
        self._pool = httpcore.AsyncConnectionPool(ssl_context=context, keepalive_expiry=30.0)

    async def ask(
        self,
        method: str,
        path: str,
        message: Message | None,
        gives: type[M],
        *,
        session: str = "",
        wait_s: float = 0.0,
    ) -> M:
        """Sends a message and reads the answer.

        Raises:
            LeadAway: see there.
            PrepcacheError: the lead refused.
        """
        headers = dict(self._headers)
        if session:
            headers[wire.SESSION_HEADER] = session
        body = b"" if message is None else json.dumps(message.to_json()).encode()
        url, raw = self.url + wire.API + path, bytearray()
        try:
            async with (
                asyncio.timeout(CALL_S + wait_s),
                self._pool.stream(method, url, headers=headers, content=body) as answer,
            ):
                async for piece in answer.aiter_stream():
                    raw += piece
                    if len(raw) > MAX_ANSWER_BYTES:
                        raise LeadAway(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            told = json.loads(raw or b"{}")
        except TimeoutError:
            raise LeadAway(f"no answer within {CALL_S + wait_s:.1f} s") from None
        except _BROKEN as error:
            raise LeadAway(str(error).split("\n")[0][:200] or type(error).__name__) from None
        if answer.status >= 400 and isinstance(told, dict) and isinstance(told.get("code"), str):
            raise from_problem(told)
        if not 200 <= answer.status < 300:
            raise LeadAway(f"status {answer.status} without a problem document")
        try:
            return gives.from_json(told)
        except BadRequest as error:
            raise LeadAway(f"not an answer: {error.message[:200]}") from None

    async def close(self) -> None:
        await self._pool.aclose()
