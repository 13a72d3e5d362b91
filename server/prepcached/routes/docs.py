"""The OpenAPI document as a page: nothing is loaded from elsewhere, and there is no script."""

from __future__ import annotations

import json
import re
from typing import Any

from fastapi import APIRouter, FastAPI
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from prepcached.dashboard import routes, view


def router(app: FastAPI) -> APIRouter:
    api = APIRouter()
    templates = view.environment()
    templates.filters |= {"code": _code, "sample": _sample}

    @api.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        page = templates.get_template("docs.html").render(api=app.openapi())
        return HTMLResponse(page, headers=routes.HEADERS)

    return api


def _code(text: str) -> Markup:
    """Text in which what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _sample(schema: dict[str, Any], document: dict[str, Any]) -> Markup:
    return Markup(escape(json.dumps(example(schema, document["components"]["schemas"]), indent=2)))


def example(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """A value that fits a schema."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], schemas)
    if schema.get("type") == "boolean":
        return False
    if schema.get("type") == "array":
        return [example(schema["items"], schemas)]
    if schema.get("type") == "object":
        return {name: example(one, schemas) for name, one in schema.get("properties", {}).items()}
    return None
