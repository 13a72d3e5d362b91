"""What the OpenAPI document says that endpoints refuse with; support/serving.py holds answers against it."""

from __future__ import annotations

from pathlib import Path

from prepcache.errors import NotFound
from support.serving import serving


def test_openapi_lists_the_error_codes_of_each_endpoint(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        paths, page = served.openapi(), served.http().get("/docs").text

    def codes(method: str, path: str) -> set[str]:
        problems = [
            one["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"]["code"]["enum"]
            for status, one in paths[path][method]["responses"].items()
            if status.isdecimal() and int(status) >= 400
        ]
        return {code for some in problems for code in some}

    assert codes("get", "/healthz") == {"forbidden", "protocol-mismatch", "prepcache-error"}
    of_all = codes("get", "/healthz") | {"unauthorized", "bad-request", "store-error", "index-corrupt"}
    assert codes("get", "/v1/entries") == of_all
    assert codes("get", "/v1/entries/{key}") == of_all | {"not-found"}
    assert codes("post", "/v1/leases/{lease_id}/commit") == of_all | {
        "too-large", "unknown-session", "limit-exceeded", "lease-lapsed", "staged-file-refused",
        "unknown-recipe", "declined",
    }  # fmt: skip
    assert f"<code>not-found</code>: {NotFound.__doc__}" in page


def test_path_parameters_say_what_they_may_be(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        paths = served.openapi()
    in_paths = [
        (one["name"], one["schema"].get("pattern"))
        for methods in paths.values()
        for way in methods.values()
        for one in way.get("parameters", ())
        if one["in"] == "path"
    ]
    hex64, token = "^[0-9a-f]{64}$", "^[A-Za-z0-9_-]{1,128}$"
    wanted = {("key", hex64), ("digest", hex64), ("session_id", token), ("lease_id", token)}
    assert set(in_paths) == wanted
