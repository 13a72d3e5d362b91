"""`isolation = "user"`: what each user is given, sees and may do, over a real socket."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from prepcache.errors import ConfigError
from prepcached.auth import NOBODY_UID, TOKEN_UID, Peer
from prepcached.store.store import Store
from support.serving import Job, Serving, open_job, serving
from support.stores import RECIPE, ROOMY, put

ALICE, BOB, CAROL, DAVE = 4001, 4002, 4003, 4004
"""Carol and Dave are trusted."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    with isolated(tmp_path) as found:
        yield found


@contextlib.contextmanager
def isolated(folder: Path) -> Iterator[Serving]:
    with serving(folder, isolation="user", trusted=(CAROL, DAVE)) as found:
        yield found


class Kernel:
    """Who connects, by the kernel's word."""

    uid: int | None = None


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "uid", os.geteuid())
    monkeypatch.setattr(Peer, "of", classmethod(lambda cls, connection: cls(Kernel.uid, 0)))


def as_user(served: Serving, uid: int | None) -> httpx.Client:
    """A client whom the kernel calls by that uid, on the one connection that it keeps."""
    Kernel.uid = uid
    http = served.http(limits=httpx.Limits(max_connections=1, keepalive_expiry=None))
    http.get("/healthz")
    return http


def job_of(served: Serving, uid: int | None) -> Job:
    return open_job(as_user(served, uid), f"job of {uid}")


def keys(http: httpx.Client, **query: Any) -> list[str]:
    return [entry["key"] for entry in http.get("/v1/entries", params=query).json()["entries"]]


def test_a_user_is_given_what_he_made_and_nothing_of_anothers(served):
    alice, bob = job_of(served, ALICE), job_of(served, BOB)
    alice.fill(served.store.staging, "ab", seed=1)
    assert bob.resolve().json() == {**bob.resolve().json(), "generation": 0, "artifacts": []}
    bob.fill(served.store.staging, "ab", seed=2)
    [hers], [his] = (job.resolve().json()["artifacts"] for job in (alice, bob))
    assert hers["key"] == his["key"] and hers["digest"] != his["digest"]
    assert not served.store.check()


def test_one_users_lease_keeps_no_other_from_the_same_items(served):
    alice, bob = job_of(served, ALICE), job_of(served, BOB)
    second = job_of(served, ALICE)
    for job in (alice, bob, second):
        job.resolve()
    assert alice.lease("ab").json()["granted"] == [0, 1]
    assert bob.lease("ab").json()["granted"] == [0, 1]
    answer = second.lease("ab").json()
    assert answer["granted"] == [] and [one["items"] for one in answer["held"]] == [2]
    assert alice.lease("c").json()["is_waited_for"] and not bob.lease("c").json()["is_waited_for"]


def test_those_who_are_trusted_or_have_the_token_share(served):
    """With each other alone."""
    alice, carol, dave = (job_of(served, uid) for uid in (ALICE, CAROL, DAVE))
    alice.fill(served.store.staging, "ab", seed=1)
    assert carol.resolve().json()["artifacts"] == []
    carol.fill(served.store.staging, "ab", seed=2)
    assert dave.resolve().json()["artifacts"] == carol.resolve().json()["artifacts"] != []
    before = keys(alice.http)
    put(served.store, "a", scope=f".{TOKEN_UID}", owner_uid=TOKEN_UID)
    assert keys(alice.http) == before and len(alice.resolve().json()["artifacts"]) == 1
    [record] = served.store.recipes(scope=f".{TOKEN_UID}")[0]
    assert record.digest == RECIPE and record.entries == 1


def test_entries_of_others_are_not_there(served):
    alice, bob = job_of(served, ALICE), job_of(served, BOB)
    hers = alice.fill(served.store.staging, "ab")["artifact"]
    path, http = f"/v1/entries/{hers['key']}", bob.http
    assert keys(http) == keys(http, owner=ALICE) == [] and keys(alice.http) == [hers["key"]]
    not_there = [
        http.get(path),
        http.get(path + "/data"),
        http.get(path + "/data", headers={"If-Match": f'"{hers["digest"]}"'}),
        http.delete(path),
        http.put(path + "/pin"),
        http.delete(path + "/pin"),
        http.get(f"/v1/recipes/{RECIPE}"),
        http.post("/v1/explain", json={"key": hers["key"]}),
        http.post("/v1/explain", json={"recipe": RECIPE}),
        http.post("/v1/explain", json={"name": "tests.recipe"}),
    ]
    assert [answer.json()["code"] for answer in not_there] == ["not-found"] * len(not_there)
    assert http.post("/v1/verify", json={"keys": [hers["key"]]}).json()["checked"] == 0
    assert http.post("/v1/verify", json={"keys": [hers["key"]], "differs": "they do"}).json()["bad"] == []
    assert http.post("/v1/verify").json()["checked"] == 0
    assert http.get("/v1/recipes").json()["recipes"] == []
    assert http.post("/v1/purge", json={"keys": [hers["key"]]}).json()["entries"] == 0
    assert http.post("/v1/purge", json={"all": True}).json()["entries"] == 0
    assert alice.http.get(path + "/data").status_code == 200
    assert alice.http.get(f"/v1/recipes/{RECIPE}").json()["entries"] == 1


def test_of_the_jobs_and_names_of_others_nothing_is_told(served):
    alice, bob = job_of(served, ALICE), job_of(served, BOB)
    alice.resolve(name="alices.secret")
    alice.fill(served.store.staging, "ab")
    for text in (bob.http.get("/").text, bob.http.get("/v1/sessions").text):
        assert f"job of {BOB}" in text
        assert f"job of {ALICE}" not in text and "alices.secret" not in text
    carol = as_user(served, CAROL)
    page = carol.get("/").text
    assert f"job of {ALICE}" in page and "alices.secret" in page


def test_a_miss_is_explained_to_the_user_whose_job_missed(served):
    alice, bob = job_of(served, ALICE), job_of(served, BOB)
    for seed, job in enumerate((alice, bob)):
        job.fill(served.store.staging, "a", seed=seed)
    generation = alice.resolve().json()["generation"]
    alice.lease("b", generation, why="b.txt changed")
    told = [job.http.post("/v1/explain", json={"name": "tests.recipe"}).json() for job in (alice, bob)]
    assert told[0]["summary"] == "b.txt changed" != told[1]["summary"]


def test_users_who_cannot_be_told_apart_are_refused(tmp_path):
    with isolated(tmp_path) as served:
        refused = as_user(served, NOBODY_UID).get("/v1/entries")
        assert refused.json()["code"] == "forbidden" and "user namespace" in refused.json()["detail"]
        assert as_user(served, BOB).get("/v1/entries").status_code == 200
    with serving(tmp_path) as served:
        assert as_user(served, NOBODY_UID).get("/v1/entries").status_code == 200


def test_the_trusted_see_everybodys_entries_and_change_none(served):
    alice, bob = job_of(served, ALICE), job_of(served, BOB)
    hers = alice.fill(served.store.staging, "ab", seed=1)["artifact"]
    bob.fill(served.store.staging, "ab", seed=2)
    carol = as_user(served, CAROL)
    assert keys(carol) == [hers["key"]] * 2
    assert [record["digest"] for record in carol.get("/v1/recipes").json()["recipes"]] == [RECIPE] * 2
    assert carol.get(f"/v1/recipes/{RECIPE}").json()["parts"] == {"format": 1}
    assert carol.get(f"/v1/entries/{hers['key']}").json()["owner"] == ALICE
    assert carol.delete(f"/v1/entries/{hers['key']}").json()["code"] == "forbidden"
    assert "another" not in carol.post("/v1/explain", json={"key": hers["key"]}).json()["summary"]


@pytest.mark.parametrize("other", [BOB, CAROL])
def test_what_a_user_pins_and_removes_is_his_own_of_this_key(served, other):
    alice, job = job_of(served, ALICE), job_of(served, other)
    alice.resolve(register={"said by": "alice"})
    hers = alice.fill(served.store.staging, "ab", seed=1)["artifact"]
    job.resolve(register={"said by": "other"})
    own = job.fill(served.store.staging, "ab", seed=2)["artifact"]
    path, http = f"/v1/entries/{own['key']}", job.http
    assert hers["key"] == own["key"]
    assert http.get(path).json()["owner"] == other
    assert http.get(path + "/data").headers["etag"] == f'"{own["digest"]}"'
    assert http.put(path + "/pin").json()["digest"] == own["digest"]
    assert not alice.http.get(path).json()["is_pinned"]
    assert http.get(f"/v1/recipes/{RECIPE}").json()["parts"] == {"said by": "other"}
    assert http.delete(path).json()["entries"] == 1
    assert job.resolve().json()["artifacts"] == []
    assert [one["digest"] for one in alice.resolve().json()["artifacts"]] == [hers["digest"]]


def test_a_job_of_an_admin_takes_away_only_what_it_was_given(served):
    alice, dave = job_of(served, ALICE), job_of(served, DAVE)
    hers = alice.fill(served.store.staging, "ab", seed=1)["artifact"]
    dave.fill(served.store.staging, "ab", seed=2)
    root = as_user(served, os.geteuid())
    asked = {"keys": [hers["key"]], "differs": "they do"}
    assert root.post("/v1/verify", json=asked).json()["bad"] == [hers["key"]]
    assert dave.resolve().json()["artifacts"] == []
    assert [one["digest"] for one in alice.resolve().json()["artifacts"]] == [hers["digest"]]


def test_an_equal_artifact_of_another_user_is_not_ones_own(served):
    alice, bob = job_of(served, ALICE), job_of(served, BOB)
    alice.fill(served.store.staging, "ab")
    lease = bob.leased("ab")
    refused = bob.commit([lease], bob.stage(served.store.staging, "ab"))
    assert refused.json()["code"] == "declined"
    assert bob.resolve().json()["artifacts"] == []
    assert len(alice.resolve().json()["artifacts"]) == 1 and not served.store.check()


def test_many_small_artifacts_merge_within_a_user(tmp_path):
    scopes = f".{ALICE}", f".{BOB}"
    with contextlib.closing(Store(tmp_path, limits=ROOMY)) as store:
        for name in "abcdefgh":
            for seed, scope in enumerate(scopes):
                put(store, name, scope=scope, owner_uid=int(scope[1:]), seed=seed)
        while store.merge_some():
            pass
        [hers], [his] = (store.resolve(RECIPE + scope).artifacts for scope in scopes)
        assert hers.items == his.items == 8
        assert hers.key == his.key and hers.digest != his.digest
        assert not store.check()


def test_entries_after_a_restart_stay_with_their_user(tmp_path):
    with isolated(tmp_path) as served:
        alice = job_of(served, ALICE)
        alice.fill(served.store.staging, "ab")
    with isolated(tmp_path) as served:
        bob = job_of(served, BOB)
        assert bob.resolve().json()["artifacts"] == []
        assert bob.lease("ab").json()["granted"] == [0, 1]
        again = Job(as_user(served, ALICE), alice.session, alice.token)
        assert again.heartbeat().json()["code"] == "unknown-session"
        assert len(job_of(served, ALICE).resolve().json()["artifacts"]) == 1


def test_a_job_under_way_stops_sharing_with_former_peers(tmp_path):
    with isolated(tmp_path) as served:
        carol = job_of(served, CAROL)
        lease = carol.leased("ab")
    with serving(tmp_path, isolation="user", trusted=(DAVE,)) as served:
        again = Job(as_user(served, CAROL), carol.session, carol.token)
        refused = again.commit([lease], again.stage(served.store.staging, "ab"))
        assert refused.json()["code"] == "unknown-session"
        assert resolved(served, DAVE) == resolved(served, CAROL) == []
        dave = job_of(served, DAVE)
        dave.resolve()
        assert dave.lease("ab").json()["granted"] == [0, 1]


def test_an_index_made_again_from_files_has_the_same_scopes(tmp_path):
    with isolated(tmp_path) as served:
        for number, uid in enumerate((ALICE, BOB, CAROL)):
            job_of(served, uid).fill(served.store.staging, "ab", seed=number)
        before = {uid: resolved(served, uid) for uid in (ALICE, BOB, CAROL, DAVE)}
    os.unlink(tmp_path / "root" / "v1" / "index.sqlite")
    with isolated(tmp_path) as served:
        assert {uid: resolved(served, uid) for uid in before} == before
        assert not served.store.check()
    assert len({*map(str, before.values())}) == 3 and before[CAROL] == before[DAVE]


def test_users_are_not_isolated_where_files_keep_no_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "keeps_marks", lambda _: False)
    with serving(tmp_path / "shared"):
        pass
    with pytest.raises(ConfigError, match="no extended attributes, which record"), isolated(tmp_path):
        pass


def resolved(served: Serving, uid: int) -> list[str]:
    return [one["digest"] for one in job_of(served, uid).resolve().json()["artifacts"]]


def test_entries_of_before_are_given_to_nobody_and_found_again(tmp_path):
    """And their recipes, which others share, are shown to trusted users alone."""
    with serving(tmp_path) as served:
        shared = job_of(served, ALICE).fill(served.store.staging, "ab")["artifact"]
    with isolated(tmp_path) as served:
        alice, carol = as_user(served, ALICE), as_user(served, CAROL)
        assert keys(alice) == [shared["key"]] and keys(as_user(served, BOB)) == []
        assert alice.get(f"/v1/recipes/{RECIPE}").json()["code"] == "not-found"
        assert alice.post("/v1/explain", json={"key": shared["key"]}).json()["code"] == "not-found"
        assert carol.get(f"/v1/recipes/{RECIPE}").json()["parts"] == {"format": 1}
        assert [resolved(served, uid) for uid in (ALICE, CAROL, os.geteuid())] == [[], [], []]
    with serving(tmp_path) as served:
        assert resolved(served, BOB) == [shared["digest"]]


def test_nothing_that_names_artifacts_is_readable_for_the_group(served):
    root = Path(served.store.root) / "v1"
    modes = {path.name: path.stat().st_mode & 0o077 for path in root.glob("index.sqlite*")}
    assert modes and not any(modes.values())
    for folder in ("", "staging", "objects"):
        assert not (root / folder).stat().st_mode & 0o044, folder
