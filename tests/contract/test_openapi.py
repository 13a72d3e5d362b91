"""What the OpenAPI document says of each endpoint."""

from __future__ import annotations

from pathlib import Path

from prepcache.errors import all_errors
from support.serving import serving


def test_every_endpoint_is_described(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        document, page = served.http().get("/openapi.json").json(), served.http().get("/docs").text
    schemas, in_paths = document["components"]["schemas"], set()
    promised = {
        "GET /healthz", "GET /metrics", "GET /v1/info", "GET /v1/stats", "POST /v1/sessions",
        "GET /v1/sessions",
        "POST /v1/sessions/{session_id}/beat", "DELETE /v1/sessions/{session_id}", "POST /v1/resolve",
        "POST /v1/leases", "POST /v1/leases/{lease_id}/commit", "DELETE /v1/leases/{lease_id}",
        "PUT /v1/leases/{lease_id}/data", "GET /v1/entries", "GET /v1/entries/{key}",
        "GET /v1/entries/{key}/data", "HEAD /v1/entries/{key}/data", "GET /v1/recipes",
        "GET /v1/recipes/{digest}", "DELETE /v1/entries/{key}", "POST /v1/purge", "PUT /v1/entries/{key}/pin",
        "DELETE /v1/entries/{key}/pin", "POST /v1/verify",
    }  # fmt: skip
    told = {f"{method.upper()} {path}" for path, ways in document["paths"].items() for method in ways}
    assert promised <= told and {"ResolveRequest", "LeaseAnswer", "EntryPage", "Problem"} <= set(schemas)
    assert set(schemas["Problem"]["properties"]["code"]["enum"]) == {one.code for one in all_errors()}
    for path, methods in document["paths"].items():
        assert path in page
        for way in methods.values():
            assert way["description"]
            [refused] = way["responses"]["default"]["content"].values()
            assert refused["schema"] == {"$ref": "#/components/schemas/Problem"}
            bodies = [way.get("requestBody", {}), *way["responses"].values()]
            for schema in (one["schema"] for body in bodies for one in body.get("content", {}).values()):
                assert "$ref" not in schema or schema["$ref"].rpartition("/")[2] in schemas
            here = [one for one in way.get("parameters", ()) if one["in"] == "path"]
            in_paths |= {(one["name"], one["schema"].get("pattern")) for one in here}
    hex64, token = "^[0-9a-f]{64}$", "^[A-Za-z0-9_-]{1,128}$"
    assert in_paths == {("key", hex64), ("digest", hex64), ("session_id", token), ("lease_id", token)}
