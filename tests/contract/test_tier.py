"""Two daemons and one bucket: what one made, the other fetches; a bad bucket costs only the work."""

import asyncio
import base64
import errno
import json
import os
import shutil
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from prepcache.errors import ConfigError, StoreError
from prepcached import maintenance
from prepcached.config import load
from prepcached.store.compaction import FANOUT
from prepcached.tier import bucket
from prepcached.tier import tier as tiers
from prepcached.tier.manifests import MAX_OBJECT_BYTES, Manifests
from support.fleet import ITEMS, asked, be_patient, box
from support.serving import READY_S, Serving, serving, wait_until
from support.stores import OTHER_RECIPE, RECIPE, item, items_of


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    monkeypatch.setattr(tiers, "REST_S", 3600.0)  # only a push and a stop copy


def filled(folder: Path, tier: Any, recipe: str = RECIPE) -> dict[str, Any]:
    """A box that has made `ITEMS` and copied them into the bucket; what it says of the tier then."""
    with box(folder, tier) as served:
        job = served.job()
        job.recipe = recipe
        job.fill(served.store.staging, ITEMS)
        assert served.http().post("/v1/tier/push").status_code == 200
        return dict(served.http().get("/v1/tier").json())


def objects(tier: Path) -> list[Path]:
    return [path for path in (tier / "cas").rglob("*") if path.is_file()]


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket"
    folder.mkdir()
    return folder


def test_a_second_box_fetches_what_the_first_has_made(tmp_path, tier):
    told = filled(tmp_path / "first", tier)
    assert (told["written"], told["could_not_tell"]) == (1, 0)
    with box(tmp_path / "second", tier) as second:
        assert asked(second.job()) == (0, 3)
        assert asked(second.job(), ["x", "y"]) == (2, 0)
        told = second.http().get("/v1/tier").json()
        assert (told["hits"], told["misses"], told["bad"]) == (1, 1, 0) and told["hit_bytes"] > 0
        metrics = second.http().get("/metrics").text
        assert "prepcache_tier_hits_total 1.0" in metrics and "prepcache_tier_up 1.0" in metrics
        page = second.http().get("/").text
        for name, text in (("fetched", "1 artifact,"), ("not there", "1 request"), ("could not tell", "0 ")):
            assert f"<dt>{name}</dt><dd><bdi>{text}" in page
        assert not second.store.check()


def test_a_commit_is_copied_without_being_asked_to(tmp_path, tier):
    with box(tmp_path / "first", tier) as first:
        first.job().fill(first.store.staging, ITEMS)
    assert len(objects(tier)) == 1  # a stop copies what waits


def test_a_stop_does_not_wait_for_a_bucket_that_hangs(tmp_path, tier, monkeypatch, caplog):
    monkeypatch.setattr(bucket.Bucket, "put", lambda *_, **__: asyncio.Event().wait())
    monkeypatch.setattr(tiers, "DRAIN_S", 0.1)
    with box(tmp_path / "first", tier) as first:
        first.job().fill(first.store.staging, ITEMS)
    assert "recipes not copied to the tier before the stop: 1" in caplog.text


def test_what_the_full_queue_drops_is_counted_and_copied_later(tmp_path, tier, monkeypatch):
    monkeypatch.setattr(tiers, "QUEUE", 1)
    with box(tmp_path / "box", tier) as served:
        for recipe in (RECIPE, OTHER_RECIPE):
            job = served.job()
            job.recipe = recipe
            job.fill(served.store.staging, ITEMS)
        told = served.http().get("/v1/tier").json()
        assert (told["waiting"], told["dropped"]) == (1, 1)
        assert served.http().post("/v1/tier/push").json()["artifacts"] == 2


def test_without_a_lead_machines_work_in_orders_of_their_own(tmp_path, tier, monkeypatch):
    """And commit soon, so that they meet: what one has made, the others fetch."""

    def order(served: Serving) -> int:
        opened = served.http().post("/v1/sessions", json={"name": "job", "pid": 1, "host": "here"})
        return int(opened.json()["order"])

    with (
        box(tmp_path / "first", tier) as first,
        box(tmp_path / "second", tier) as second,
        box(tmp_path / "third", tier, upstream={"mode": "read-only"}) as third,
    ):
        assert order(first) and order(second) and order(first) != order(second) and not order(third)
        jobs = first.job(), third.job()
        for job in jobs:
            job.resolve()
            assert job.lease(ITEMS).json()["granted"] == [0, 1, 2]
        monkeypatch.setattr(tiers, "PUBLISH_S", -1.0)
        monkeypatch.setattr(tiers, "PUBLISH_SHARE", 0.0)
        assert [job.lease("x").json()["is_waited_for"] for job in jobs] == [True, False]


def test_a_read_only_daemon_writes_nothing(tmp_path, tier):
    with box(tmp_path / "first", tier, upstream={"mode": "read-only"}) as first:
        first.job().fill(first.store.staging, ITEMS)
        assert first.http().post("/v1/tier/push").status_code == 400
    assert not list(tier.rglob("*"))


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_a_lying_bucket_costs_only_the_work(harm, tmp_path, tier):
    """What it lost, by a lifecycle rule for example, is copied again, while a manifest still names it."""
    filled(tmp_path / "first", tier)
    [path] = objects(tier)
    data = path.read_bytes()
    harmed = {"flip": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], "truncate": data[:-5]}
    path.unlink()
    if harm != "remove":
        path.write_bytes(harmed[harm])
    with box(tmp_path / "second", tier) as second:
        job = second.job()
        assert asked(job) == (3, 0)
        told = second.http().get("/v1/tier").json()
        assert (told["hits"], told["bad"]) == (0, harm != "remove")
        assert not second.store.check()
        job.close()
        second.job().fill(second.store.staging, ITEMS)
        assert second.http().post("/v1/tier/push").json()["artifacts"] == 1
    with box(tmp_path / "third", tier) as third:
        assert asked(third.job()) == (0, 3)


def test_what_is_copied_during_a_collection_stays(tmp_path, tier, monkeypatch):
    filled(tmp_path / "first", tier)
    [path] = objects(tier)
    [named] = (tier / "manifests").rglob("*.json")
    named.rename(tier / "aside")
    os.utime(path, (0, 0))

    async def read(self: Manifests) -> set[str]:
        found = await named_by(self)
        os.utime(path)  # another machine copies it again
        return found

    named_by = Manifests.named
    monkeypatch.setattr(Manifests, "named", read)
    stray = tier / "manifests/v1" / ("ab" * 32) / "shared/empty.json"
    stray.parent.mkdir(parents=True)
    stray.write_text('{"version": 1, "artifacts": []}')
    with box(tmp_path / "second", tier) as second:
        assert second.http().post("/v1/tier/gc", json={"delete": True}).json()["artifacts"] == 0
        assert path.exists()
        os.utime(path, (0, 0))
        monkeypatch.setattr(Manifests, "named", named_by)
        assert second.http().post("/v1/tier/gc", json={"delete": True}).json()["artifacts"] == 1
    assert not path.exists()


def test_garbage_stays_where_a_manifest_cannot_be_read(tmp_path, tier):
    """A manifest of another version names artifacts, too."""
    filled(tmp_path / "first", tier)
    [path] = (tier / "manifests").rglob("*.json")
    path.write_text('{"version": 2}')
    with box(tmp_path / "second", tier) as second:
        refused = second.http().post("/v1/tier/gc", json={"delete": True})
    assert refused.status_code == 500 and "nothing was deleted" in refused.json()["detail"]
    assert len(objects(tier)) == 1


def test_what_a_refresh_has_made_replaces_the_copy(tmp_path, tier):
    with box(tmp_path / "first", tier) as first:
        job = first.job()
        job.fill(first.store.staging, ITEMS)
        assert first.http().post("/v1/tier/push").json()["artifacts"] == 1
        job.fill(first.store.staging, ITEMS, edition=1, seed=1)
        assert first.http().post("/v1/tier/push").json()["artifacts"] == 1
        [new] = job.resolve().json()["artifacts"]
    with box(tmp_path / "second", tier) as second:
        job = second.job()
        assert asked(job) == (0, 3)
        assert [one["digest"] for one in job.resolve().json()["artifacts"]] == [new["digest"]]


def test_what_is_of_no_use_to_a_job_is_fetched_once(tmp_path, tier):
    """Where observed inputs differ here, the job asks for the same items again after looking."""
    filled(tmp_path / "first", tier)
    with box(tmp_path / "second", tier) as second:
        job = second.job()
        assert asked(job) == (0, 3)
        assert asked(job) == (3, 0)
        assert second.http().get("/v1/tier").json()["hits"] == 1


def test_pull_fetches_what_is_not_here(tmp_path, tier, monkeypatch):
    """A recipe that no job has asked for, and nothing that was merged since it was pulled before."""
    monkeypatch.setattr(maintenance, "TURN_S", 3600.0)
    with box(tmp_path / "first", tier) as first:
        job = first.job()
        for name in range(FANOUT):
            job.fill(first.store.staging, [name])
        assert first.http().post("/v1/tier/push").json()["artifacts"] == FANOUT
    monkeypatch.setattr(maintenance, "TURN_S", 0.01)
    running: list[int] = []
    stream = bucket.Bucket.stream

    def counted(*given: Any) -> Any:
        running.append(len(second.daemon.commits))
        return stream(*given)

    monkeypatch.setattr(bucket.Bucket, "stream", counted)
    with box(tmp_path / "second", tier) as second:
        http = second.http()
        for fetched in (FANOUT, 0):
            assert http.post("/v1/tier/pull", json={"recipe": RECIPE}).json()["artifacts"] == fetched
            assert wait_until(lambda: second.store.stats().entries == 1), "they are merged"
        assert len(items_of(second.store)) == FANOUT
        assert http.post("/v1/tier/pull", json={"recipe": "0" * 64}).status_code == 404
    assert max(running) == tiers.DOWNLOADS


def test_a_fetch_that_failed_at_its_end_is_looked_up(tmp_path, tier, monkeypatch):
    """The store has what it could not say that it took: no job makes it again."""
    filled(tmp_path / "first", tier)
    with box(tmp_path / "second", tier) as second:
        job, commit = second.job(), second.store.commit
        generation = job.resolve().json()["generation"]

        def fail(*given: Any, **kinds: Any) -> Any:
            commit(*given, **kinds)
            raise StoreError("the disk says no")

        monkeypatch.setattr(second.store, "commit", fail)
        assert job.lease(ITEMS, generation).json()["granted"] == []
        answer = job.lease(ITEMS, generation, wait_s=60.0).json()
        assert answer["granted"] == [] and answer["look_again"]["artifacts"]


def test_two_fetches_of_one_artifact_fail_alike(tmp_path, tier, monkeypatch):
    begun, go_on, stream = threading.Semaphore(0), threading.Event(), bucket.Bucket.stream

    async def hang(self: bucket.Bucket, name: str, *given: Any) -> AsyncIterator[memoryview]:
        if name.startswith("cas/"):
            begun.release()
            await asyncio.to_thread(go_on.wait, READY_S)
            raise bucket.CouldNotTell("no answer")
        async for piece in stream(self, name, *given):
            yield piece

    monkeypatch.setattr(bucket.Bucket, "stream", hang)
    with box(tmp_path / "second", tier) as second, ThreadPoolExecutor(2) as people:
        job, pulls = second.job(), []
        lease = job.leased(ITEMS[:1])
        filled(tmp_path / "first", tier)
        for _ in range(2):
            http = second.http()
            pulls.append(people.submit(http.post, "/v1/tier/pull", json={"recipe": RECIPE}))
            assert begun.acquire(timeout=READY_S)
            job.release(lease)  # its item is free, and so the artifact is fetched for it
        go_on.set()
        assert [one.result().json() for one in pulls] == [{"artifacts": 0, "failed": 1, "names": []}] * 2


def test_a_full_disk_costs_only_the_work(tmp_path, tier, monkeypatch):
    filled(tmp_path / "first", tier)
    monkeypatch.setattr(tiers, "_write", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    monkeypatch.setattr(tiers, "AHEAD", 0)
    with box(tmp_path / "second", tier) as second:
        assert asked(second.job()) == (3, 0)
        assert not second.store.check()


def test_a_daemon_without_a_tier_says_so(tmp_path):
    with serving(tmp_path) as served:
        assert served.http().get("/v1/tier").status_code == 404
        assert "prepcache_tier" not in served.http().get("/metrics").text


# What lies in a bucket and should not.


def planted(tier: Path, rows: list[dict[str, Any]]) -> None:
    """A manifest that somebody else wrote."""
    path = tier / "manifests/v1" / RECIPE / "shared" / "planted.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "artifacts": rows}))


def row(digest: str, size_bytes: int, names: list[str] = ITEMS) -> dict[str, Any]:
    items = base64.b64encode(b"".join(map(item, names))).decode()
    told = {"digest": digest, "size_bytes": size_bytes, "cost_s": 1.0, "edition": 0, "observed": []}
    return {**told, "items": items}


def test_another_recipes_artifact_is_not_taken(tmp_path, tier):
    filled(tmp_path / "first", tier, OTHER_RECIPE)
    [path] = objects(tier)
    planted(tier, [row(path.name, path.stat().st_size)])
    with box(tmp_path / "second", tier) as second:
        assert asked(second.job())[0] == 3
        assert second.http().get("/v1/tier").json()["bad"] == 1
        assert not second.store.check()


@pytest.mark.parametrize("lie", ["items", "one byte less", "one byte more", "a terabyte", "over the budget"])
def test_a_row_that_is_not_true_costs_only_the_work(lie, tmp_path, tier):
    filled(tmp_path / "first", tier)
    [path], [named] = objects(tier), (tier / "manifests").rglob("*.json")
    named.unlink()
    if lie == "over the budget":
        path.write_bytes(bytes(2 << 20))
    by = {"one byte less": -1, "one byte more": 1, "a terabyte": 1 << 40}.get(lie, 0)
    names = [*ITEMS, "x"] if lie == "items" else ITEMS
    planted(tier, [row(path.name, path.stat().st_size + by, names)])
    with box(tmp_path / "second", tier, max_bytes=1 << 20) as second:
        if lie == "items":  # it is fetched for what it lacks
            assert asked(second.job(), ["x"])[0] in (0, 1)
        assert asked(second.job(), names[-1:])[0] == 1
        assert second.http().get("/v1/tier").json()["hits"] == (lie == "items")
        assert second.store.stats().disk_bytes < 1 << 20 and not second.store.check()


def test_a_prefix_that_is_copied_into_another_adds_to_it(tmp_path, tier):
    (theirs := tmp_path / "theirs").mkdir()
    for folder, names in ((tier, "ab"), (theirs, "cd")):
        with box(tmp_path / f"box of {folder.name}", folder) as served:
            served.job().fill(served.store.staging, list(names))
            served.http().post("/v1/tier/push")
    shutil.copytree(theirs, tier, dirs_exist_ok=True)
    with box(tmp_path / "third", tier) as third:
        pulled = third.http().post("/v1/tier/pull", json={"recipe": RECIPE})
        assert (pulled.json()["artifacts"], pulled.json()["failed"]) == (2, 0)
        assert items_of(third.store) == sorted(map(item, "abcd"))


def test_other_layouts_and_strays_are_let_alone(tmp_path, tier):
    strays = ["cas/v2/ab/" + "ab" * 32, "manifests/v2/x.json", "README", "data/train/0001.jpg"]
    for name in strays:
        (tier / name).parent.mkdir(parents=True, exist_ok=True)
        (tier / name).write_text("somebody's")
    filled(tmp_path / "first", tier)
    with box(tmp_path / "second", tier) as second:
        assert asked(second.job())[0] == 0
        assert second.http().post("/v1/tier/gc", json={"delete": True}).json()["artifacts"] == 0
    assert all((tier / name).read_text() == "somebody's" for name in strays)


def test_fleets_with_isolated_users_share_a_prefix(tmp_path, tier):
    """What a fleet shares and what one of its users made in another fleet do not mix."""
    filled(tmp_path / "first", tier)
    with box(tmp_path / "second", tier, isolation="user") as second:
        assert asked(second.job())[0] == 3
        job = second.job()
        job.fill(second.store.staging, ["x"])
        assert second.http().post("/v1/tier/push").json()["artifacts"] == 1
    with box(tmp_path / "third", tier) as third:
        assert asked(third.job(), ["x"])[0] == 1


@pytest.mark.nightly
def test_a_manifest_of_a_million_rows_is_bounded(tmp_path, tier):
    one = json.dumps(row("f" * 64, 100, ["x"]))
    path = tier / "manifests/v1" / RECIPE / "shared" / "planted.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 1, "artifacts": [' + ",".join([one] * 1_000_000) + "]}")
    assert path.stat().st_size > MAX_OBJECT_BYTES
    with box(tmp_path / "box", tier) as served:
        assert asked(served.job())[0] == 3


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s4://bucket", "give s3://bucket/prefix"),
        ("bucket/prefix", "give s3://bucket/prefix"),
        ("s3://key:secret@bucket/prefix", "must not hold credentials"),
        ("s3://bucket/prefix?X-Amz-Signature=secret", "must not hold credentials"),
        ("file:///no/such/folder", "/no/such/folder names no folder that is there: create it, or mount"),
        ("file://nfs/prepcache", "names no folder that is there"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url, text):
    with pytest.raises(ConfigError, match=text) as refused:
        bucket.opened(url)
    assert "secret" not in str(refused.value)


def test_the_tier_is_a_url_or_a_table(tmp_path):
    file = tmp_path / "prepcached.toml"
    file.write_text('[tier]\nurl = "s3://bucket/prefix"\nmode = "read-only"\n')
    in_file = load({}, {}, file).tier
    assert in_file is not None and (in_file.url, in_file.mode) == ("s3://bucket/prefix", "read-only")
    on_line = load({"tier": "gs://other"}, {}, file).tier
    assert on_line is not None and (on_line.url, on_line.mode) == ("gs://other", "read-write")
    file.write_text('[tier]\nurl = "s3://bucket"\nmodes = "read-only"\n')
    with pytest.raises(ConfigError, match="tier"):
        load({}, {}, file)
