"""POST /v1/explain over a real socket: what a miss is explained by, and what is refused."""

import copy
from typing import Any

import httpx
from blake3 import blake3

from prepcache.protocol import inspection
from prepcached.store import listing
from support.serving import Job, Serving, serving

PARTS: dict[str, Any] = {
    "format": 1,
    "name": "prep.tokenize",
    "code": {
        "mode": "script",
        "files": {"prep.py": "a"},
        "definitions": {"prep.tokenize": "1"},
        "values": {},
        "variables": {},
        "untracked": [],
    },
    "config": {"max_len": {"digest": "128", "text": "128"}},
    "environment": {"python": "cpython 3.11", "distributions": {"numpy": "2.1.0 aa"}},
    "version": None,
    "expand": False,
    "read": "path",
}


def digest(name: str) -> str:
    return blake3(name.encode()).hexdigest()


def parts(**leaves: Any) -> dict[str, Any]:
    """The parts, with config leaves set, or `numpy`."""
    made = copy.deepcopy(PARTS)
    made["environment"]["distributions"]["numpy"] = leaves.pop("numpy", "2.1.0 aa")
    made["config"] |= {name: {"digest": str(value), "text": str(value)} for name, value in leaves.items()}
    return made


def look(served: Serving, recipe: str, of: dict[str, Any], name: str = "prep.tokenize") -> Job:
    """A job that opens a data set of that recipe."""
    job = served.job()
    job.recipe = digest(recipe)
    assert job.resolve(name=name, register=of).status_code == 200
    return job


def fill(served: Serving, recipe: str, of: dict[str, Any], name: str = "prep.tokenize") -> str:
    job = look(served, recipe, of, name)
    return str(job.fill(served.store.staging, [recipe])["artifact"]["key"])


def make(served: Serving, job: Job, names: list[object], why: str) -> None:
    """The job makes items of what it has opened, and says why they were missing."""
    lease = job.lease(names, served.store.generation(job.recipe), why=why).json()["lease"]
    assert job.commit([lease], job.stage(served.store.staging, names)).status_code == 200


def ask(served: Serving, **members: Any) -> inspection.Explanation:
    answer = served.http().post("/v1/explain", json=members)
    assert answer.status_code == 200, answer.text
    return inspection.Explanation.from_json(answer.json())


def refused(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_a_recipe_is_explained_by_the_nearest_of_its_name(served):
    fill(served, "far", parts(max_len=64, lower=True))
    fill(served, "near", parts(max_len=128))
    look(served, "missed", parts(max_len=256))
    told = ask(served, recipe=digest("missed"))
    assert told.nearest is not None
    assert told.nearest.recipe == digest("near")
    assert told.nearest.items == 1 and told.nearest.size_bytes > 0
    assert [(d.section, d.name, d.old, d.new) for d in told.differences] == [
        ("config", "max_len", "128", "256")
    ]
    assert told.summary == "config.max_len 128 -> 256"
    assert not told.was_there and told.entries == 0


def test_parts_that_are_too_large_are_said_to_be_so(served, monkeypatch):
    monkeypatch.setattr(listing, "MAX_PARTS_BYTES", 10)
    fill(served, "a", parts())
    look(served, "b", parts(max_len=256))
    told = served.http().post("/v1/explain", json={"recipe": digest("b")}).json()
    assert told["nearest"] is None
    assert told["summary"].startswith("others of this name are cached") and "too large" in told["summary"]


def test_a_later_recipe_is_no_reason_for_an_earlier_miss(served):
    fill(served, "a", parts(max_len=1))
    fill(served, "b", parts(max_len=2))
    fill(served, "c", parts(max_len=3))
    assert ask(served, recipe=digest("b")).summary == "config.max_len 1 -> 2"


def test_parts_are_explained_without_being_kept(served):
    fill(served, "a", parts(max_len=1))
    told = ask(served, parts=parts(max_len=2), name="prep.tokenize", recipe=None)
    assert told.summary == "config.max_len 1 -> 2" and told.recipe is None
    assert [one["digest"] for one in served.http().get("/v1/recipes").json()["recipes"]] == [digest("a")]


def test_the_last_miss_is_remembered_after_the_fill(served):
    fill(served, "a", parts(max_len=1))
    fill(served, "b", parts(max_len=2))
    look(served, "a", parts(max_len=1))  # a hit
    fill(served, "other", parts(), name="prep.decode")
    assert ask(served, name="prep.tokenize").recipe == digest("b")
    assert ask(served).recipe == digest("other")


def test_names_with_a_common_prefix_are_found_until_a_restart(tmp_path):
    with serving(tmp_path) as served:
        look(served, "a", parts(), name="prep.tokenize")
        look(served, "b", parts(), name="prep.decode")
        look(served, "c", parts(), name="other")
        asked = {name: ask(served, name=name).recipe for name in ("prep.*", "prep.t*", "*")}
    assert asked == {"prep.*": digest("b"), "prep.t*": digest("a"), "*": digest("c")}
    with serving(tmp_path) as served:
        for body in ({}, {"name": "prep.*"}):
            answer = served.http().post("/v1/explain", json=body)
            refused(answer, 404, "not-found")
            assert answer.json()["detail"].endswith("has missed since the daemon started")


def test_a_recipe_that_was_purged_is_said_to_have_been_there(served):
    key = fill(served, "a", parts(max_len=1))
    fill(served, "b", parts(max_len=2))
    assert served.http().delete(f"/v1/entries/{key}").status_code == 200
    look(served, "a", parts(max_len=1))
    told = ask(served, name="prep.tokenize")
    assert told.recipe == digest("a") and told.was_there
    assert told.summary == "it was cached, but has been evicted, purged or found damaged"


def test_the_reason_of_a_last_miss_is_that_given_first(served):
    fill(served, "b", parts(tag="b"))
    key = fill(served, "c", parts(tag="c"))
    look(served, "d", parts(tag="d"))
    assert ask(served, recipe=digest("d")).summary == "config.tag c -> d"
    assert served.http().delete(f"/v1/entries/{key}").status_code == 200
    told = ask(served, name="prep.tokenize")
    assert told.summary == "config.tag c -> d" and [one.line for one in told.differences] == [
        "config.tag b -> d"
    ]
    assert ask(served, recipe=digest("d")).summary == "config.tag b -> d"


def test_a_job_that_misses_some_items_has_missed_last(served):
    fill(served, "a", parts(max_len=1))
    fill(served, "b", parts(max_len=2))
    job = look(served, "a", parts(max_len=1))
    assert ask(served).recipe == digest("b")
    make(served, job, ["one more"], "1 of 2 items not cached")
    told = ask(served)
    assert told.recipe == digest("a") and told.entries == 2 and told.is_partial
    assert told.nearest is None and told.summary == "1 of 2 items not cached"
    assert ask(served, recipe=digest("b")).summary == "config.max_len 1 -> 2"


def test_what_is_absent_or_malformed_is_refused(served):
    http = served.http()
    for body in ({}, {"name": "never"}, {"recipe": digest("never")}, {"key": digest("never")}):
        refused(http.post("/v1/explain", json=body), 404, "not-found")
    for one in (
        *({"recipe": "abc"}, {"key": "../../etc"}, {"parts": []}, {"name": 3}, {"name": "a" * 257}),
        {"name": "a", "recipe": "0" * 64},
    ):
        refused(http.post("/v1/explain", json=one), 400, "bad-request")


def test_a_strangers_parts_are_shown_and_never_trusted(served):
    fill(served, "a", parts())
    nested: Any = {"digest": "x"}
    for _ in range(500):
        nested = [nested]
    wild = [
        {"config": "no mapping", "code": 7},
        {"config": {"\x1b[2J": {"digest": "1", "text": "x" * 100_000}}, "code": {"files": {"a\n": "1"}}},
        {"config": {f"k{i}": 1 for i in range(2000)}, "code": {}, "environment": None},
        {"config": {"max_len": nested}, "format": nested, "version": nested},
    ]
    for one in wild:
        told = ask(served, name="prep.tokenize", parts=one)
        assert len(told.differences) + told.more > 0
        assert len(told.differences) <= inspection.MAX_DIFFERENCES
