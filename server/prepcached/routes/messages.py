"""Messages of requests and answers: from bytes to a message, and back.

Invariants:
    1. A body is bounded in bytes and time while it arrives, before anything is parsed.
    2. What is parsed is checked by its message class (prepcache.protocol.wire); a fault names the member.
    3. Below /v1, unknown members and query parameters are refused, and so is a body where none is taken: a
       misspelt filter must not purge what it should have spared. Only a job that names its protocol may send
       unknown members, as a newer client does (wire.py, invariant 1).
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Annotated, Any, TypeVar, cast

from fastapi import Path, Query, Request, Response

from prepcache.errors import BadRequest, TooLarge
from prepcache.protocol import wire
from prepcache.protocol.members import Message
from prepcached.auth import Caller
from prepcached.daemon import Daemon
from prepcached.problems import JsonResponse
from prepcached.sessions import Session

M = TypeVar("M", bound=Message)
T = TypeVar("T")

BODY_TIMEOUT_S = 30.0
"""From the head to the body's end, for bodies of messages."""
BIG_BYTES = 64 << 10
"""Bodies over this are parsed, and answers over about this written, in a worker thread."""
BIG_ARTIFACTS = 200
HexInPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$", examples=["0f" * 32])]
"""A key or a recipe's digest."""
HexInQuery = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
IdInPath = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{1,128}$", examples=["3c" * 16])]
"""Of a session or a lease."""
_HEX_PREFIX = re.compile(r"[0-9a-f]{4,64}\Z")


def caller(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


def session(request: Request, daemon: Daemon) -> Session:
    """The session that the request acts for."""
    header = request.headers.get(wire.SESSION_HEADER)
    if header is None:
        raise BadRequest(f"this request acts for a session: send the header {wire.SESSION_HEADER}: ID.TOKEN")
    session_id, token = wire.parse_session_header(header)
    return daemon.sessions.authenticate(session_id, token, caller(request).uid)


def taken_over(cls: type[T], source: object, **others: Any) -> T:
    """A dataclass with the members of `source` of the same names; `others` take the place of some."""
    names = (one.name for one in fields(cast(Any, cls)))
    return cls(**{name: getattr(source, name) for name in names if name not in others}, **others)


async def read(request: Request, message: type[M], daemon: Daemon, limit: int = wire.MAX_BODY_BYTES) -> M:
    """The request's body as a message. No body counts as a message without members.

    Raises:
        BadRequest, TooLarge.
    """
    body = await read_body(request, limit) or b"{}"
    may_say_more = wire.PROTOCOL_HEADER in request.headers and message.__module__ == wire.__name__
    if len(body) > BIG_BYTES:
        return await daemon.quick(_parse, body, message, may_say_more)
    return _parse(body, message, may_say_more)


async def check_request(request: Request) -> None:
    """Refuses query parameters and bodies that the endpoint does not take."""
    if not request.url.path.startswith(wire.API):
        return
    if request.scope["query_string"]:
        taken = request.scope["route"].dependant.query_params
        _refuse_unknown(request.query_params, [one.alias for one in taken], "query parameter")
    has_body = request.headers.get("content-length", "0").strip("0") or "transfer-encoding" in request.headers
    if has_body and "requestBody" not in (request.scope["route"].openapi_extra or {}):
        raise BadRequest(
            f"{request.method} takes no body here: filters are query parameters",
            field="body",
        )


def hex_prefix(value: str | None, where: str) -> str | None:
    """The first digits of a digest, where any were given."""
    if value is not None and not _HEX_PREFIX.match(value):
        must = "4 to 64 lower-case hex digits: a digest, or its first digits"
        raise BadRequest(f"{where} must be {must}, not {value[:64]!r}", field=where)
    return value


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body, whole."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise TooLarge(f"the body has {announced} bytes; the limit is {limit}", limit=limit)
    parts: list[bytes] = []
    total = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                total += len(part)
                if total > limit:
                    raise TooLarge(f"the body is over the limit of {limit} bytes", limit=limit)
                parts.append(part)
    except TimeoutError:
        raise BadRequest(f"the body did not end within {BODY_TIMEOUT_S:.0f} s") from None
    return b"".join(parts)


def answer(message: Message, status: int = 200) -> Response:
    return JsonResponse(message.to_json(), status)


async def big_answer(message: Message, artifacts: int, daemon: Daemon) -> Response:
    """An answer that may list many artifacts."""
    if artifacts < BIG_ARTIFACTS:
        return answer(message)
    return await daemon.quick(answer, message)


def _parse(body: bytes, message: type[M], may_say_more: bool) -> M:
    try:
        value: Any = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise BadRequest(f"the body must be JSON: {str(exc)[:200]}") from None
    if isinstance(value, dict) and not may_say_more:
        _refuse_unknown(value, [one.name for one in fields(message)], "member")
    return message.from_json(value)


def _refuse_unknown(given: Iterable[str], known: Collection[str], what: str) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name[:100], known, 1)
            takes = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known) or 'none'}"
            raise BadRequest(f"this endpoint has no {what} {name[:100]!r}: {takes}", field=name[:100])


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
