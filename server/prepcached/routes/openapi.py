"""What the OpenAPI document says of each endpoint: its messages, from their classes, with an example each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

import msgspec
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
from prepcache.protocol import inspection, wire
from prepcache.protocol.members import HEX, ID, Message
from prepcached.problems import PROBLEM_TYPE, document

_REFERENCE = "#/components/schemas/{name}"
_PROBLEM = {"$ref": _REFERENCE.format(name="Problem")}
_OF_ALL = (Forbidden, ProtocolMismatch, PrepcacheError)
_OF_ALL_BUT_OPEN = (Unauthorized, BadRequest, StoreError, IndexCorrupt)
BYTES: Mapping[str, Any] = {"type": "string", "format": "binary", "examples": [""]}


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
            "required": takes is None or needs_body or _needs_members(takes),
            "content": {takes_type or "application/json": {"schema": schema}},
        }
    if acts_for_session:
        extra["parameters"] = [
            {
                "name": wire.SESSION_HEADER,
                "in": "header",
                "required": True,
                "description": "the session: `<session id>.<token>`, from the answer that opened it",
                "schema": {"type": "string", "examples": [f"{ID}.{ID}"]},
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
    number = {"type": ["number", "object", "array", "null"], "examples": [1]}
    told = {name: {**number, "description": text} for name, text in more.items()}
    return {"type": "object", "properties": {**dict.fromkeys(names, number), **told}}


def reference(message: type[Message]) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(name=message.__name__)}


def schemas() -> dict[str, Any]:
    """All message classes, and the problem document, as JSON Schema."""
    _, found = msgspec.json.schema_components(_messages(), ref_template=_REFERENCE)
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
        "examples": [document(404, "not-found", f"there is no entry {HEX}")],
    }
    return found


def _messages() -> list[type[Message]]:
    """All that the protocol has."""
    named = [*vars(wire).values(), *vars(inspection).values()]
    found = {one for one in named if isinstance(one, type) and issubclass(one, Message)}
    return sorted(found - {Message}, key=lambda one: one.__name__)


def _needs_members(cls: type[Message]) -> bool:
    """Whether there is a member that must be there."""
    return any(f.default is MISSING and f.default_factory is MISSING for f in fields(cls))
