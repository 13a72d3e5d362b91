"""What the OpenAPI document says of each endpoint: its messages, from their classes, with an example each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.responses import Response

from prepcache.errors import PrepcacheError, all_errors
from prepcache.protocol import inspection, wire
from prepcache.protocol.members import HEX, ID, Message
from prepcached.problems import PROBLEM_TYPE, document

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


class Described(FastAPI):
    """An app whose OpenAPI document has the messages, which FastAPI does not see."""

    def openapi(self) -> dict[str, Any]:
        made = super().openapi()
        made.setdefault("components", {}).setdefault("schemas", {}).update(_schemas())
        return made


def endpoint(
    *,
    takes: type[Message] | None = None,
    gives: type[Message] | Mapping[str, Any] | None = None,
    takes_type: str = "application/json",
    gives_type: str = "application/json",
    acts_for_session: bool = False,
    status: int = 200,
) -> dict[str, Any]:
    """Keyword arguments of a route: its OpenAPI description.

    Args:
        gives: a message, or a JSON Schema.
        takes_type, gives_type: media types; bytes are taken where `takes_type` is not JSON.
    """
    answered: dict[str, Any] = {"description": "done"}
    if gives is not None:
        answered["content"] = {gives_type: {"schema": _schema(gives)}}
    extra: dict[str, Any] = {"parameters": [_SESSION]} if acts_for_session else {}
    if takes is not None or takes_type != "application/json":
        is_required = takes is None or any(
            one.default is MISSING and one.default_factory is MISSING for one in fields(takes)
        )
        schema = _schema(BYTES if takes is None else takes)
        extra["requestBody"] = {"required": is_required, "content": {takes_type: {"schema": schema}}}
    return {
        "status_code": status,
        "response_class": Response,  # FastAPI adds a type of its own to what is described here, else
        "responses": {status: answered, "default": _REFUSED},
        "openapi_extra": extra,
    }


def _schema(of: type[Message] | Mapping[str, Any]) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(name=of.__name__)} if isinstance(of, type) else dict(of)


def _schemas() -> dict[str, Any]:
    """All messages, and the problem document, as JSON Schema."""
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
