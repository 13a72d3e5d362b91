"""The client's protocol over a real socket: what is answered, and what is then in the store."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.serving import Serving, serving, wait_until
from support.stores import Clock, item, items_of


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def served(tmp_path: Path, clock: Clock) -> Iterator[Serving]:
    with serving(tmp_path, clock) as found:
        yield found


def problem(answer: Any, status: int, code: str) -> str:
    """Checks that an answer is that problem; its detail."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["code"], body["status"]) == (code, status)
    return str(body["detail"])


def test_an_item_is_granted_once_and_others_hear_who_has_it(served):
    first, second = served.job("first"), served.job("second")
    first.resolve()
    first.lease("abcd")
    first.heartbeat(progress=[{"recipe": first.recipe, "name": "n", "done": 1, "total": 4}])
    answer = second.lease("cdef").json()
    assert answer["granted"] == [2, 3]
    [held] = answer["held"]
    assert held["who"].startswith("first (pid ") and (held["items"], held["done"], held["total"]) == (2, 1, 4)


@pytest.mark.parametrize("by", ["lease", "beat"])
def test_a_lease_that_its_session_never_heard_of_is_given_back(served, by):
    job, other = served.job("first"), served.job("second")
    job.resolve()
    granted = job.lease("ab").json()["lease"]["id"]
    assert job.lease("ab").json()["granted"] == [], "to the daemon it is the session's own"
    assert other.lease("ab", lost=[granted]).json()["granted"] == [], "and nobody else's"
    if by == "beat":
        assert job.heartbeat(lost=[granted, "0" * 32]).status_code == 200
    lost = [granted] if by == "lease" else []
    again = job.lease("ab", lost=lost).json()
    assert again["granted"] == [0, 1]


def test_a_job_behind_the_newest_generation_must_look_again(served):
    first, second = served.job("first"), served.job("second")
    seen = second.resolve().json()["generation"]
    done = first.fill(served.store.staging, "abc")
    answer = second.lease("abc", seen).json()
    assert answer["lease"] is None and answer["granted"] == []
    assert answer["look_again"]["generation"] == done["generation"]
    assert answer["look_again"]["artifacts"] == [done["artifact"]]
    assert served.store.entry(done["artifact"]["key"]).holds == 2


def waiting(served: Serving) -> int:
    """For how many sessions somebody waits."""
    found: int = served.http().get("/v1/stats").json()["waiting"]
    return found


@pytest.mark.parametrize("how", ["committed", "left by a dead session"])
def test_a_waiting_job_wakes_when_items_are_committed_or_free(served, how):
    first, second = served.job("first"), served.job("second")
    seen = first.resolve().json()["generation"]
    lease = first.lease("ab").json()["lease"]
    answers: list[Any] = []
    waiter = threading.Thread(target=lambda: answers.append(second.lease("ab", seen, wait_s=2).json()))
    waiter.start()
    assert wait_until(lambda: waiting(served) == 1)
    if how == "committed":
        first.commit([lease], first.stage(served.store.staging, "ab"))
    else:
        first.close()
    waiter.join(30)
    if how == "committed":
        assert answers[0]["look_again"]["artifacts"][0]["items"] == 2
    else:
        assert answers[0]["granted"] == [0, 1]


def test_items_without_a_lease_and_files_of_others_are_refused(served):
    job = served.job("greedy")
    lease = job.leased("ab")
    of_another = served.job().stage(served.store.staging, "ab")
    assert "greedy (pid" in problem(job.commit([lease], of_another), 422, "staged-file-refused")
    detail = problem(job.commit([lease], job.stage(served.store.staging, "abc")), 422, "staged-file-refused")
    assert detail.startswith("greedy (pid ") and item("c").hex() in detail
    assert items_of(served.store) == []
    assert job.commit([lease], job.stage(served.store.staging, "ab")).status_code == 200


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_a_commit_whose_answer_was_lost_is_answered_again(served, names):
    job = served.job()
    job.resolve()
    whole, begun = (job.lease(names).json()["lease"] for names in ("x", names))
    asked = [whole, begun], job.stage(served.store.staging, "xab")
    done = job.commit(*asked)
    assert done.status_code == 200
    assert job.commit(*asked).json() == done.json()
    held = [lease.items for lease in served.daemon.leases]
    assert held == [{item(name) for name in names[2:]}] * bool(names[2:]), "the rest is leased as before"
    other = job.commit([begun], job.stage(served.store.staging, "ab"))
    problem(other, *((422, "staged-file-refused") if held else (409, "lease-lapsed")))


def test_an_unknown_recipe_or_generation_is_refused_by_name(served):
    job = served.job("eager")
    detail = problem(job.lease("ab"), 409, "unknown-recipe")
    assert "eager" in detail and job.recipe in detail
    job.resolve()
    assert "eager" in problem(job.lease("ab", 10**6), 409, "future-generation")
    problem(job.resolve(10**6), 409, "future-generation")


def test_no_room_is_said_at_the_lease_and_counted_once(tmp_path):
    with serving(tmp_path, max_bytes=1 << 20) as served:
        job = served.job()
        job.resolve()
        answer = job.lease("ab", nbytes=1 << 30).json()
        assert answer["is_declined"] and answer["lease"] is None
        assert answer["reason"].startswith(
            "1.0 GiB exceed the cache's limit: 1.0 MiB (set PREPCACHED_MAX_BYTES, then run "
        )

        def seen() -> tuple[int, int]:
            (session,) = job.http.get("/v1/sessions").json()["sessions"]
            return job.http.get("/v1/stats").json()["declined_items"], session["declined_items"]

        assert seen() == (0, 0), "it asks for fewer"
        for _ in range(3):
            job.lease("ab", nbytes=1 << 30, left=750)
        assert seen() == (750, 750)
        job.lease("ab", nbytes=1 << 30, left=800)
        assert seen() == (800, 800)
        assert job.lease("a", nbytes=10).json()["lease"]
        assert seen() == (800, 0)
        job.lease("b", nbytes=1 << 30, left=5)
        assert seen() == (805, 5)


def test_a_recipe_without_room_counts_as_a_miss(tmp_path):
    with serving(tmp_path, min_free=1 << 60) as served:
        job = served.job()
        problem(job.resolve(), 507, "declined")
        problem(job.lease("a", left=750), 409, "unknown-recipe")
        told = job.http.post("/v1/explain", json={}).json()
        assert told["recipe"] == job.recipe and told["summary"].startswith("no room for new samples: ")


@pytest.mark.parametrize("raw", [b"", (1 << 40).to_bytes(8, "little")], ids=["zeros", "long header"])
def test_a_staged_file_with_a_bad_header_leaves_the_lease(served, raw):
    job = served.job("confused")
    lease = job.leased("ab")
    staged = job.stage(served.store.staging, "ab")
    path = Path(served.store.staging) / staged["name"]
    path.write_bytes(raw.ljust(path.stat().st_size, b"\0"))
    said = problem(job.commit([lease], staged), 422, "staged-file-refused")
    assert staged["name"] in said and "(pid " in said and "write the files again" in said, said
    assert items_of(served.store) == [] and served.store.check() == []
    assert job.commit([lease], job.stage(served.store.staging, "ab")).status_code == 200
