"""The OpenAPI document as a page: whole in itself, nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse

_STYLE = """
:root{color-scheme:light dark;--text:#1c2330;--dim:#586173;--line:#d5dae3;--back:#fff;--box:#f3f5f9}
@media(prefers-color-scheme:dark){:root{--text:#d8dee9;--dim:#98a2b3;--line:#323b4a;--back:#12161d}
:root{--box:#1b212b}}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:1.5rem auto;padding:0 1rem}
body{color:var(--text);background:var(--back)}a{color:inherit}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
code,pre{font:13px/1.45 ui-monospace,monospace;overflow-wrap:anywhere}
details{border:1px solid var(--line);border-radius:6px;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer}summary b{display:inline-block;width:4.5rem}
summary span,.dim{color:var(--dim)}summary span{margin-left:.6rem}
pre{background:var(--box);padding:.6rem;overflow-x:auto}h2+p{margin:.4rem 0}
@media(max-width:40rem){summary span{display:block;margin:0}}
"""
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "cache-control": "no-cache",
}


def router(app: FastAPI) -> APIRouter:
    api = APIRouter()

    @api.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers=_HEADERS)

    return api


def page(document: dict[str, Any]) -> str:
    """The document as HTML."""
    schemas = document["components"]["schemas"]
    by_tag: dict[str, list[str]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            told = _operation(method, path, operation, schemas)
            by_tag[operation["tags"][0]].append(told)
    sections = "".join(
        f'<h2>{escape(tag["name"])}</h2><p class="dim">{_prose(tag["description"])}</p>'
        + "".join(by_tag[tag["name"]])
        for tag in document["tags"]
    )
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>The same for programs: "
        f'<a href="/openapi.json">/openapi.json</a>. Errors are problem documents (RFC 9457) with a stable '
        f"<code>code</code>.</p>{sections}<h2>messages</h2>{_messages(schemas)}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    first, _, rest = operation["description"].partition("\n")
    parts = [f"<p>{_prose(rest)}</p>"] if rest.strip() else []
    if operation.get("parameters"):
        rows = "".join(
            f"<li><code>{escape(one['name'])}</code> ({one['in']}) {_prose(one.get('description', ''))}"
            for one in operation["parameters"]
        )
        parts.append(f"<ul>{rows}</ul>")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        parts.append(f"takes<pre>{_example(body['schema'], schemas)}</pre>")
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json", {})
        if status != "default" and content.get("schema"):
            parts.append(f"gives ({escape(status)})<pre>{_example(content['schema'], schemas)}</pre>")
    refused = "".join(
        f"<li>{escape(status)} {_prose(answer['description'])}"
        for status, answer in operation["responses"].items()
        if status.isdecimal() and int(status) >= 400
    )
    parts.append(f"refuses with<ul>{refused}</ul>")
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
        f"<span>{_prose(first)}</span></summary>"
        f"{''.join(parts)}</details>"
    )


def _messages(schemas: dict[str, Any]) -> str:
    return "".join(
        f"<details><summary><code>{escape(name)}</code> "
        f"<span>{_prose(schema['description'].splitlines()[0])}</span></summary>"
        f"<pre>{_prose(schema['description'])}</pre></details>"
        for name, schema in schemas.items()
        if schema.get("description")
    )


def _prose(text: str) -> str:
    """Text as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _example(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    return escape(json.dumps(example(schema, schemas), indent=2))


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
