"""Requests that say what means nothing: refused by name, with nothing done, whoever misspelt what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prepcache.protocol import wire
from support.serving import Serving, serving
from support.stores import put

ABSENT = "0" * 64


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("misspelt")) as found:
        put(found.store, "a")
        yield found


MISSPELT = [
    ("/v1/purge", {"name": "tests.recipe", "dryrun": True}, "dryrun", "dry_run"),
    ("/v1/purge", {"owner": 0, "older_then_s": 1e9}, "older_then_s", "older_than_s"),
    ("/v1/purge", {"all": True, "x": 1}, "x", "dry_run"),
    ("/v1/verify", {"key": ABSENT}, "key", "keys"),
    ("/v1/explain", {"recipes": ABSENT}, "recipes", "recipe"),
    ("/v1/sessions", {"name": "n", "pid": 1, "host": "h", "nmae": "n"}, "nmae", "name"),
    ("/v1/resolve", {"recipe": ABSENT, "generations": 3}, "generations", "generation"),
]


@pytest.mark.parametrize(("path", "body", "field", "meant"), MISSPELT)
def test_a_misspelt_member_is_named_and_nothing_is_done(
    served: Serving, path: str, body: dict[str, object], field: str, meant: str
) -> None:
    sessions = len(served.daemon.sessions)
    answer = served.http().post(path, json=body)
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, "bad-request", field)
    assert meant in answer.json()["detail"]
    assert len(served.store.entries().entries) == 1 and len(served.daemon.sessions) == sessions


def test_a_purge_with_unknown_filters_is_refused_by_name(served: Serving) -> None:
    headers = {wire.PROTOCOL_HEADER: str(wire.PROTOCOL)}
    answer = served.http().post("/v1/purge", json={"all": True, "unless": "x"}, headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (400, "unless")


def test_a_job_that_names_its_protocol_may_say_more_in_it(served: Serving) -> None:
    assert served.job().resolve(said_by_later_versions=1).status_code == 200


@pytest.mark.parametrize(
    ("request_line", "field", "meant"),
    [
        ("GET /v1/entries?nam=foo", "nam", "name"),
        ("GET /v1/recipes?name=foo", "name", "cursor, limit, digest"),
        ("GET /v1/stats?x=1", "x", "none"),
        ("POST /v1/purge?dry_run=true", "dry_run", "none"),
        (f"DELETE /v1/entries/{ABSENT}?dry_run=true", "dry_run", "none"),
    ],
)
def test_a_query_parameter_that_means_nothing_is_named(
    served: Serving, request_line: str, field: str, meant: str
) -> None:
    answer = served.http().request(*request_line.split(), content=b'{"all": true}')
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, "bad-request", field)
    assert answer.json()["detail"].endswith(meant + "?" * (meant == "name"))
    assert len(served.store.entries().entries) == 1


def test_what_monitors_ask_may_carry_a_query(served: Serving) -> None:
    for path in ("/healthz", "/metrics"):
        assert served.http().get(f"{path}?at=1").status_code == 200


def test_a_recipe_that_is_none_is_told_in_plain_words(served: Serving) -> None:
    for answer in (
        served.http().get("/v1/entries?recipe=zz"),
        served.http().post("/v1/purge", json={"recipe": "zz"}),
    ):
        assert (answer.status_code, answer.json()["field"]) == (400, "recipe")
        told = "recipe must be 4 to 64 lower-case hex digits: a digest, or its first digits, not 'zz'"
        assert answer.json()["detail"] == told
