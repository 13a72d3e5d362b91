"""Errors as problem documents (RFC 9457), the only form of a refusal.

Invariants:
    1. Every answer of status 400 and up has a `code` of prepcache.errors and the status of that code, or the
       one that HTTP defines for the case (a range, a length, a condition).
    2. No traceback, path of the daemon's code or text of an unforeseen exception reaches a client. The log
       has them, under the `incident` that the client gets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from prepcache.errors import BadRequest, MethodNotAllowed, NotFound, PrepcacheError, StoreError
from prepcached.log import REQUEST_ID

LOG = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
_RESERVED = frozenset({"type", "title", "status", "detail", "code", "instance"})
_OF_HTTP = (411, 412, 416)
"""Length Required, Precondition Failed, Range Not Satisfiable: HTTP clients expect exactly these.
Source: RFC 9110."""


class JsonResponse(Response):
    """An answer in JSON. File names that are not UTF-8 (lone surrogates) are escaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def document(status: int, code: str, detail: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    members = {k: v for k, v in (data or {}).items() if k not in _RESERVED and _is_plain(v)}
    return {
        "type": f"urn:prepcache:error:{code}",
        "title": code.replace("-", " "),
        "status": status,
        "detail": detail,
        "code": code,
        **members,
    }


def response(
    error: PrepcacheError, headers: Mapping[str, str] | None = None, status: int | None = None
) -> JsonResponse:
    status = status or error.status
    extra = dict(headers or {})
    if status == 401:
        extra |= {"www-authenticate": "Bearer", "connection": "close"}  # a stranger keeps no connection
    if error.is_retryable and status in (429, 503):
        extra["retry-after"] = "1"
    body = document(status, error.code, error.message, error.data)
    return JsonResponse(body, status, headers=extra, media_type=PROBLEM_TYPE)


def unforeseen(exc: BaseException, line: str) -> JsonResponse:
    incident = REQUEST_ID.get()
    LOG.error("incident %s in %s", incident, line, exc_info=exc)
    told = f"unexpected error in the daemon; its log has the details under incident {incident}"
    return response(PrepcacheError(told, incident=incident))


def install(app: FastAPI) -> None:
    app.add_exception_handler(PrepcacheError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_unforeseen)


async def _on_error(request: Request, exc: Exception) -> JsonResponse:
    assert isinstance(exc, PrepcacheError)
    if isinstance(exc, StoreError):
        LOG.error("%s %s: %s", request.method, request.url.path, exc)
    return response(exc)


async def _on_invalid(_: Request, exc: Exception) -> JsonResponse:
    assert isinstance(exc, RequestValidationError)
    told = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in exc.errors())
    return response(BadRequest(f"the request is malformed: {told}"))


async def _on_http(request: Request, exc: Exception) -> JsonResponse:
    assert isinstance(exc, HTTPException)
    what = f"{request.method} {request.url.path[:200]}"
    if exc.status_code == 404:
        error: PrepcacheError = NotFound(f"{what}: no such endpoint; /openapi.json lists the endpoints")
    elif exc.status_code == 405:
        error = MethodNotAllowed(f"{what}: method not allowed; /openapi.json lists the methods")
    else:
        error = BadRequest(f"{what}: {exc.detail}")
    is_of_http = exc.status_code in _OF_HTTP
    return response(error, exc.headers, exc.status_code if is_of_http else None)


async def _on_unforeseen(request: Request, exc: Exception) -> Response:
    if isinstance(exc, ClientDisconnect):
        return Response(status_code=400)  # nobody reads it; app.py notes that the client hung up
    return unforeseen(exc, f"{request.method} {request.url.path[:200]}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (str, int, float, bool))
