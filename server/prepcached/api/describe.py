"""What the OpenAPI document says of each endpoint: its messages, from their classes, with an example each."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from starlette.responses import Response

from prepcache.errors import (
    BadRequest,
    Forbidden,
    IndexCorrupt,
    PrepcacheError,
    ProtocolMismatch,
    StoreError,
    TooLarge,
    Unauthorized,
    UnknownSession,
    all_errors,
)
from prepcache.protocol import members, wire
from prepcache.protocol.members import Message
from prepcached.problems import PROBLEM_TYPE, document

HEX = "0f" * 32
ID = "3c" * 16
_CHECKS: dict[Any, dict[str, Any]] = {
    members.hex64: {"type": "string", "pattern": "^[0-9a-f]{64}$", "example": HEX},
    members.token: {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$", "example": ID},
    members.file_name: {"type": "string", "maxLength": 128, "example": f"{ID}.1"},
    members.folder: {"type": "string", "example": "/var/cache/prepcache"},
    members.digest_run: {
        "type": "string",
        "description": "item digests, 64 hex digits each, in one run",
        "example": HEX,
    },
    members.natural: {"type": "integer", "minimum": 0, "example": 1},
    members.tally: {"type": "integer", "minimum": 0, "maximum": members.MAX_TALLY, "example": 1},
    members.amount: {"type": "number", "minimum": 0, "example": 1.5},
    members.json_object: {"type": "object", "example": {}},
}
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string", "example": "text"},
    int: {"type": "integer", "minimum": 0, "example": 1},
    float: {"type": "number", "minimum": 0, "example": 1.5},
    bool: {"type": "boolean", "example": False},
}
_PROBLEM = {"$ref": "#/components/schemas/Problem"}
_OF_ALL = (Forbidden, ProtocolMismatch, PrepcacheError)
_OF_ALL_BUT_OPEN = (Unauthorized, BadRequest, StoreError, IndexCorrupt)
BYTES: Mapping[str, Any] = {"type": "string", "format": "binary", "example": ""}


def endpoint(
    *,
    takes: type[Message] | None = None,
    gives: type[Message] | Mapping[str, Any] | None = None,
    takes_type: str = "",
    needs_body: bool = False,
    gives_type: str = "application/json",
    acts_for_session: bool = False,
    status: int = 200,
    others: Mapping[int, str] | None = None,
    refuses: Iterable[type[PrepcacheError]] = (),
    is_open: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of a route: its OpenAPI description.

    Args:
        gives: a message, or a JSON Schema.
        takes_type, gives_type: media types, where they are not JSON.
        needs_body: although what it takes has no member that must be there; else none at all is one without.
        others: statuses beside `status` that are no refusals, or that HTTP has for just that refusal.
        refuses: errors, beside those of every endpoint, of a body, and of a session.
        is_open: asks for no token, and looks at nothing.
    """
    answered: dict[str, Any] = {"description": "done"}
    if gives is not None:
        schema = reference(gives) if isinstance(gives, type) else dict(gives)
        answered["content"] = {gives_type: {"schema": schema}}
    extra: dict[str, Any] = {}
    if takes is not None or takes_type:
        schema = dict(BYTES) if takes is None else reference(takes)
        extra["requestBody"] = {
            "required": takes is None or needs_body or bool(_needed(takes)),
            "content": {takes_type or "application/json": {"schema": schema}},
        }
    if acts_for_session:
        extra["parameters"] = [
            {
                "name": wire.SESSION_HEADER,
                "in": "header",
                "required": True,
                "description": "who acts: `<session id>.<token>`, from the answer that opened the session",
                "schema": {"type": "string", "example": f"{ID}.{ID}"},
            }
        ]
    refused = {*refuses, *_OF_ALL, *(() if is_open else _OF_ALL_BUT_OPEN)}
    if "requestBody" in extra:
        refused.add(TooLarge)
    if acts_for_session:
        refused.add(UnknownSession)
    return {
        "status_code": status,
        "response_class": Response,  # FastAPI adds a type of its own to what is described here, else
        "responses": {
            status: answered,
            **{
                other: _refusal(text, {BadRequest}) if other >= 400 else {"description": text}
                for other, text in (others or {}).items()
            },
            **_refusals(refused),
            "default": {"description": "refused", "content": {PROBLEM_TYPE: {"schema": _PROBLEM}}},
        },
        "openapi_extra": extra,
    }


def _refusals(errors: Collection[type[PrepcacheError]]) -> dict[int, Any]:
    """What an endpoint may refuse with, by status."""
    found = {}
    for status in sorted({error.status for error in errors}):
        alike = {error for error in errors if error.status == status}
        told = sorted(f"`{error.code}`: {(error.__doc__ or '').splitlines()[0]}" for error in alike)
        found[status] = _refusal(" ".join(told), alike)
    return found


def _refusal(text: str, errors: Collection[type[PrepcacheError]]) -> dict[str, Any]:
    codes = {"type": "object", "properties": {"code": {"enum": sorted(error.code for error in errors)}}}
    return {"description": text, "content": {PROBLEM_TYPE: {"schema": {"allOf": [_PROBLEM, codes]}}}}


def counters(*of: type[Any], more: Mapping[str, str]) -> dict[str, Any]:
    """The schema of numbers by name: the members of dataclasses, and more, with what they are."""
    names = [one.name for cls in of for one in fields(cls)]
    number = {"type": ["number", "object", "null"], "example": 1}
    told = {name: {**number, "description": text} for name, text in more.items()}
    return {"type": "object", "properties": {**dict.fromkeys(names, number), **told}}


def reference(message: type[Message]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{message.__name__}"}


def schemas() -> dict[str, Any]:
    """All message classes, and the problem document, as JSON Schema."""
    found = {cls.__name__: _schema(cls) for cls in _all(Message)}
    codes = sorted({error.code for error in all_errors(PrepcacheError)})
    found["Problem"] = {
        "type": "object",
        "description": "RFC 9457 problem document; `code` is stable",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "enum": codes},
        },
        "example": document(404, "not-found", f"there is no entry {HEX}"),
    }
    return found


def _all(base: type[Message]) -> list[type[Message]]:
    return [cls for child in base.__subclasses__() for cls in (child, *_all(child))]


def _schema(cls: type[Message]) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    properties = {f.name: _of(hints[f.name]) for f in fields(cls)}
    required = _needed(cls)
    return {
        "type": "object",
        "description": (cls.__doc__ or "").strip(),
        "properties": properties,
        **({"required": required} if required else {}),
    }


def _needed(cls: type[Message]) -> list[str]:
    """Members that must be there."""
    return [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]


def _of(annotation: Any) -> dict[str, Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        known = [_CHECKS[check] for check in args[1:] if check in _CHECKS]
        return known[0] if known else _of(args[0])
    if origin in (Union, types.UnionType):
        inner = next(_of(arg) for arg in args if arg is not type(None))
        return {"anyOf": [inner, {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _of(args[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of(args[1])}
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return reference(annotation)
    return _PLAIN[annotation]
