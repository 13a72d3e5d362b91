"""Inspection, purge, pins and care over a real socket: what is answered, and what is then in the store."""

import platform
import re
from typing import Any

import httpx
import pytest

from prepcache.protocol import inspection, wire
from prepcached.auth import Peer
from support.serving import Serving
from support.stores import RECIPE, put

ABSENT = "0" * 64


def keys(served: Serving) -> set[str]:
    return {entry.key for entry in served.store.entries().entries}


def become(served: Serving, monkeypatch: pytest.MonkeyPatch, uid: int | None) -> httpx.Client:
    """A client whom the kernel calls by that uid."""
    monkeypatch.setattr(Peer, "of", classmethod(lambda cls, connection: cls(uid, 0)))
    return served.http()


def test_entries_come_in_pages_that_lose_and_repeat_nothing(served):
    for name in range(7):
        put(served.store, name)
    http = served.http()
    found: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": 3, "sort": "created_at", **({"cursor": cursor} if cursor else {})}
        page = inspection.EntryPage.from_json(http.get("/v1/entries", params=query).json())
        found += [entry.key for entry in page.entries]
        if page.cursor is None:
            break
        cursor = page.cursor
    assert len(found) == 7 and set(found) == keys(served)


def test_a_recipe_is_shown_with_its_parts(served):
    put(served.store, "a")
    http = served.http()
    [listed] = http.get("/v1/recipes").json()["recipes"]
    assert (listed["digest"], listed["entries"], listed["parts"]) == (RECIPE, 1, None)
    assert http.get(f"/v1/recipes/{RECIPE}").json()["parts"] == {"format": 1}


def test_odd_names_break_no_answer(served):
    job = served.job()
    body = f'{{"recipe": "{job.recipe}", "name": "n", "register": {{"file": "a\\udcff"}}}}'
    assert job.http.post("/v1/resolve", content=body).status_code == 200
    assert served.http().get(f"/v1/recipes/{job.recipe}").json()["parts"]["file"] == "a\udcff"


def test_parts_that_are_nested_too_deeply_are_a_bad_request(served):
    for depth in (300, 600, 900, 940, 980, 20_000):
        parts = '{"a":' * depth + "1" + "}" * depth
        body = f'{{"recipe": "{depth:064x}", "name": "n", "register": {parts}}}'
        answer = served.http().post("/v1/resolve", content=body)
        assert answer.status_code == 200 or answer.json()["code"] == "bad-request", (depth, answer.text)


def test_what_is_not_there_is_a_problem(served):
    absent = (f"/v1/entries/{ABSENT}", f"/v1/entries/{ABSENT}/data", f"/v1/recipes/{ABSENT}")
    for path in (*absent, "/nowhere", "/v1/entries/", "/docs/"):
        answer = served.http().get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found"), path
        assert answer.headers["content-type"] == "application/problem+json", path


def test_the_log_says_who_purged_how_much(served, monkeypatch, caplog):
    caplog.set_level("INFO", "prepcached")
    refs = [put(served.store, name).artifact for name in range(3)]
    http = become(served, monkeypatch, 0)
    http.post("/v1/purge", json={"all": True, "dry_run": True})
    http.delete(f"/v1/entries/{refs[0].key}")
    http.post("/v1/purge", json={"all": True})
    http.post("/v1/purge", json={"all": True})
    said = [record.getMessage() for record in caplog.records if " purged " in record.getMessage()]
    assert [line.partition(",")[0] for line in said] == ["uid 0 purged 1 entry", "uid 0 purged 2 entries"]


def test_a_purge_must_say_what(served):
    put(served.store, "a")
    for body in ({}, {"all": False}, {"all": True, "recipe": RECIPE}, {"produced_by": ""}):
        answer = served.http().post("/v1/purge", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-request"), body
        assert len(keys(served)) == 1


def test_a_purge_spares_another_users_newer_entry(served, monkeypatch):
    ref = put(served.store, "a").artifact
    entry = served.store.entry

    def replaced_then(*asked: Any) -> Any:
        found = entry(*asked)
        put(served.store, "a", edition=1, owner_uid=4242)
        return found

    monkeypatch.setattr(served.store, "entry", replaced_then)
    assert served.http().delete(f"/v1/entries/{ref.key}").json()["entries"] == 0
    assert entry(ref.key).owner == 4242


def test_another_user_may_look_but_neither_purge_nor_pin(served, monkeypatch):
    ref = put(served.store, "a").artifact
    job = served.job()
    http = job.http = become(served, monkeypatch, 12345)
    assert job.heartbeat().json()["code"] == "unknown-session", "which is another user's"
    assert http.get(f"/v1/entries/{ref.key}").status_code == 200
    refused = [
        http.delete(f"/v1/entries/{ref.key}"),
        http.put(f"/v1/entries/{ref.key}/pin"),
        http.delete(f"/v1/entries/{ref.key}/pin"),
        http.post("/v1/purge", json={"owner": served.store.entry(ref.key).owner}),
        http.post("/v1/purge", json={"keys": [ref.key], "dry_run": True}),
        http.post("/v1/purge", json={"keys": ["00" * 32, ref.key]}),
    ]
    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(403, "forbidden")}
    assert http.post("/v1/purge", json={"all": True}).json()["entries"] == 0
    assert keys(served) == {ref.key} and not served.store.entry(ref.key).is_pinned


def test_metrics_have_a_sentence_of_their_own_and_units(served):
    put(served.store, "a")
    http = served.http()
    text = http.get("/metrics").text
    names = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP prepcache_"))
    kinds = dict(re.findall(r"^# TYPE (prepcache\w+) (\w+)$", text, re.MULTILINE))
    for name, kind in kinds.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_s", "_ms", "_per_s")), name
    assert f'prepcache_build_info{{python="{platform.python_version()}",version="' in text
    assert "process_resident_memory_bytes" in text
    counters = ("hit_items", "miss_items", "saved_seconds")
    assert {f"prepcache_{name}_total" for name in counters} <= set(kinds)
    assert len(set(names.values())) == len(names)
    assert not [told for told in names.values() if "_" in told or not told.endswith(".")]


def test_info_stats_and_metrics_agree_with_the_store(served):
    job = served.job()
    job.fill(served.store.staging, "abc")
    http = served.http()
    info = inspection.Info.from_json(http.get("/v1/info").json())
    assert (info.instance, info.root) == (served.store.instance, served.store.root)
    assert info.protocol == wire.PROTOCOL
    stats = http.get("/v1/stats").json()
    assert (stats["entries"], stats["sessions"], stats["leases"]) == (1, 1, 0)
    assert (stats["committed_items"], stats["committed_bytes"]) == (3, stats["size_bytes"])
    metrics = http.get("/metrics").text
    assert "prepcache_entries 1.0" in metrics and "prepcache_commits_total 1.0" in metrics
    assert 'route="/v1/leases/{lease_id}/commit"' in metrics


def test_sessions_are_listed_with_what_they_hold_and_have_leased(served):
    job, idle = served.job("a job"), served.job("idle")
    ref = job.fill(served.store.staging, "abc")["artifact"]
    generation = job.resolve().json()["generation"]
    [job.lease(name, generation) for name in ("d", "ef")]
    answer = served.http().get("/v1/sessions")
    assert job.token not in answer.text
    listed = {one["name"]: one for one in answer.json()["sessions"]}
    told = [(one["leases"], one["leased_items"], one["holds"], one["held_bytes"]) for one in listed.values()]
    assert list(listed) == ["a job", "idle"]
    assert told == [(2, 3, 1, served.store.entry(ref["key"]).disk_bytes), (0, 0, 0, 0)]
    served.http().delete(f"/v1/entries/{ref['key']}")
    assert served.http().get("/v1/sessions").json()["sessions"][0]["held_bytes"] == told[0][3]
    idle.close()


@pytest.mark.parametrize("kind", ["whole", "chunked"])
def test_an_unexpected_body_is_refused(served, kind):
    put(served.store, "a")
    [key] = keys(served)
    body: Any = b'{"dry_run": true}' if kind == "whole" else iter([b'{"dry_run": true}'])
    asked = served.http().build_request("DELETE", f"/v1/entries/{key}", content=body)
    answer = served.http().send(asked)
    assert answer.status_code == 400 and "takes no body" in answer.json()["detail"]
    assert keys(served) == {key}
    listed = served.http().request("GET", "/v1/entries", json={"name": "other"})
    assert listed.status_code == 400 and listed.json()["field"] == "body"
    assert served.http().request("GET", "/v1/entries", content=b"").status_code == 200
    assert served.http().delete(f"/v1/entries/{key}").status_code == 200


def test_an_entry_that_a_job_found_to_differ_is_removed(served):
    key = put(served.store, "a").artifact.key
    other = put(served.store, "b").artifact.key
    body = {"keys": [key], "differs": "item 3 differs"}
    answer = served.http().post("/v1/verify", json=body)
    assert (answer.status_code, answer.json()["bad"]) == (200, [key])
    assert keys(served) == {other}
    assert served.store.stats().damaged == 1
    assert served.store.check() == []


def test_only_who_may_purge_an_entry_may_have_it_taken_away(served, monkeypatch):
    key = put(served.store, "a").artifact.key
    body = {"keys": [key], "differs": "so I say"}
    answer = become(served, monkeypatch, 4242).post("/v1/verify", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert keys(served) == {key}
    answer = served.http().post("/v1/verify", json={"differs": "everything"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-request")
