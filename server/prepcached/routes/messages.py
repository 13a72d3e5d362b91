"""Messages of requests and answers: from bytes to a message, back, and as the OpenAPI document has them.

Invariants:
    1. A body is bounded in bytes and time while it arrives, before anything is parsed.
    2. A message is checked by its class (prepcache.protocol.wire); a fault names the member.
    3. Below /v1, unknown members and query parameters are refused, and so is a body where none is taken: a
       misspelt filter must not purge what it should have spared. Only a job that names its protocol may send
       unknown members, as a newer client does.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import FastAPI, Path, Query, Request, Response

from prepcache.errors import BadRequest, PrepcacheError, TooLarge, all_errors
from prepcache.protocol import inspection, wire
from prepcache.protocol.wire import HEX, ID, Message
from prepcached.auth import Caller
from prepcached.daemon import Daemon, Session
from prepcached.problems import PROBLEM_TYPE, JsonResponse, document

M = TypeVar("M", bound=Message)
T = TypeVar("T")

BODY_TIMEOUT_S = 30.0  # from the head to the body's end, for bodies of messages
BIG_BYTES = 64 << 10
"""Bodies over this are parsed, and answers over about this written, in a worker thread."""
BIG_ARTIFACTS = 200
HexInPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$", examples=["0f" * 32])]
"""A key or a recipe's digest."""
HexInQuery = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
IdInPath = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{1,128}$", examples=["3c" * 16])]
"""Of a session or a lease."""
_REFERENCE = "#/components/schemas/{name}"
BYTES: Mapping[str, Any] = {"type": "string", "format": "binary", "examples": [""]}
_SESSION = {
    "name": wire.SESSION_HEADER,
    "in": "header",
    "required": True,
    "description": "the session: `<session id>.<token>`, from the answer that opened it",
    "schema": {"type": "string", "examples": [f"{ID}.{ID}"]},
}
_REFUSED = {
    "description": "refused: a problem document, whose `code` says why",
    "content": {PROBLEM_TYPE: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
}


def caller(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


def session(request: Request, daemon: Daemon) -> Session:
    header = request.headers.get(wire.SESSION_HEADER)
    if header is None:
        raise BadRequest(f"this request acts for a session: send the header {wire.SESSION_HEADER}: ID.TOKEN")
    session_id, token = wire.parse_session_header(header)
    return daemon.session(session_id, token, caller(request).uid)


def taken_over(cls: type[T], source: object, **others: Any) -> T:
    """A record with the members of `source` of the same names; `others` take the place of some."""
    names = inspect.signature(cls).parameters
    return cls(**{name: getattr(source, name) for name in names if name not in others}, **others)


async def read(request: Request, message: type[M], daemon: Daemon, limit: int = wire.MAX_BODY_BYTES) -> M:
    """The request's body as a message. No body counts as a message without members."""
    body = await read_body(request, limit) or b"{}"
    may_say_more = wire.PROTOCOL_HEADER in request.headers and message.__module__ == wire.__name__
    if len(body) > BIG_BYTES:
        return await daemon.quick(_parse, body, message, may_say_more)
    return _parse(body, message, may_say_more)


def query(request: Request, message: type[M]) -> M:
    """The request's query parameters as a message."""
    return message.from_json(dict(request.query_params), strict=False)


async def check_request(request: Request) -> None:
    """Refuses query parameters and bodies that the endpoint does not take."""
    if not request.url.path.startswith(wire.API):
        return
    described = request.scope["route"].openapi_extra or {}
    if request.scope["query_string"]:
        taken = [one["name"] for one in described.get("parameters", ()) if one["in"] == "query"]
        _refuse_unknown(request.query_params, taken, "query parameter")
    has_body = request.headers.get("content-length", "0").strip("0") or "transfer-encoding" in request.headers
    if has_body and "requestBody" not in described:
        raise BadRequest(
            f"{request.method} takes no body here: filters are query parameters",
            field="body",
        )


async def read_body(request: Request, limit: int) -> bytes:
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
    if artifacts < BIG_ARTIFACTS:
        return answer(message)
    return await daemon.quick(answer, message)


def _parse(body: bytes, message: type[M], may_say_more: bool) -> M:
    try:
        value: Any = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise BadRequest(f"the body must be JSON: {str(exc)[:200]}") from None
    if isinstance(value, dict) and not may_say_more:
        _refuse_unknown(value, message.__struct_fields__, "member")
    return message.from_json(value)


def _refuse_unknown(given: Iterable[str], known: Collection[str], what: str) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name[:100], known, 1)
            takes = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known) or 'none'}"
            raise BadRequest(f"this endpoint has no {what} {name[:100]!r}: {takes}", field=name[:100])


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Described(FastAPI):
    """An app whose OpenAPI document has the messages, which FastAPI does not see."""

    def openapi(self) -> dict[str, Any]:
        made = super().openapi()
        made.setdefault("components", {}).setdefault("schemas", {}).update(_schemas())
        return made


def endpoint(
    *,
    query: type[Message] | None = None,
    takes: type[Message] | None = None,
    gives: type[Message] | Mapping[str, Any] | None = None,
    takes_type: str = "application/json",
    gives_type: str = "application/json",
    acts_for_session: bool = False,
    status: int = 200,
) -> dict[str, Any]:
    """Keyword arguments of a route: its OpenAPI description. `gives` may be a JSON Schema; bytes are taken
    where `takes_type` is not JSON."""
    answered: dict[str, Any] = {"description": "done"}
    if gives is not None:
        answered["content"] = {gives_type: {"schema": _schema(gives)}}
    parameters = [] if query is None else _parameters(query)
    extra: dict[str, Any] = {"parameters": [*parameters, *([_SESSION] if acts_for_session else [])]}
    if takes is not None or takes_type != "application/json":
        is_required = takes is None or any(one.required for one in msgspec.structs.fields(takes))
        schema = _schema(BYTES if takes is None else takes)
        extra["requestBody"] = {"required": is_required, "content": {takes_type: {"schema": schema}}}
    return {
        "status_code": status,
        "response_class": Response,  # FastAPI adds a type of its own to what is described here, else
        "responses": {status: answered, "default": _REFUSED},
        "openapi_extra": extra,
    }


def _parameters(query: type[Message]) -> list[dict[str, Any]]:
    members = msgspec.json.schema(query)["$defs"][query.__name__]["properties"]
    return [
        {"name": name, "in": "query", "description": schema.get("description", ""), "schema": schema}
        for name, schema in members.items()
    ]


def _schema(of: type[Message] | Mapping[str, Any]) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(name=of.__name__)} if isinstance(of, type) else dict(of)


def _schemas() -> dict[str, Any]:
    named = [*vars(wire).values(), *vars(inspection).values()]
    messages = {one for one in named if isinstance(one, type) and issubclass(one, Message)} - {Message}
    in_order = sorted(messages, key=lambda one: one.__name__)
    _, found = msgspec.json.schema_components(in_order, ref_template=_REFERENCE)
    members: dict[str, Any] = {name: {"type": "string"} for name in ("type", "title", "detail")}
    codes = sorted({error.code for error in all_errors(PrepcacheError)})
    found["Problem"] = {
        "type": "object",
        "description": "RFC 9457 problem document; `code` is stable",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {**members, "status": {"type": "integer"}, "code": {"type": "string", "enum": codes}},
        "examples": [document(404, "not-found", f"there is no entry {HEX}")],
    }
    return found
