"""What lies in a bucket and should not: other layouts, an attacker's manifests, artifacts that do not fit."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from prepcached.tier import manifests as manifest
from prepcached.tier import tier as tiers
from support.fleet import be_patient, box
from support.serving import Job, Serving
from support.stores import RECIPE, item

ITEMS = ["a", "b", "c"]
OTHER_RECIPE = "cd" * 32


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    monkeypatch.setattr(tiers, "REST_S", 3600.0)  # only a push and a stop copy


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket"
    folder.mkdir()
    return folder


def filled(folder: Path, bucket: Path, recipe: str = RECIPE, **kinds: Any) -> str:
    """What a machine has made and copied; the artifact's digest."""
    with box(folder, bucket) as served:
        job = served.job()
        job.recipe = recipe
        found = job.fill(served.store.staging, ITEMS, **kinds)
        assert served.http().post("/v1/tier/push").json()["artifacts"] == 1
        return str(found["artifacts"][0]["digest"])


def planted(bucket: Path, rows: list[dict[str, Any]]) -> None:
    """A manifest that somebody else wrote."""
    path = bucket / "manifests/v1" / RECIPE / "shared" / "planted.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "artifacts": rows}))


def row(digest: str, size_bytes: int, names: list[str] = ITEMS) -> dict[str, Any]:
    items = base64.b64encode(b"".join(map(item, names))).decode()
    told = {"digest": digest, "size_bytes": size_bytes, "cost_s": 1.0, "edition": 0, "observed": []}
    return {**told, "items": items}


def granted(served: Serving, names: list[str] = ITEMS) -> tuple[int, Job]:
    """How many items a job here may preprocess in the end."""
    job = served.job()
    for _ in range(20):
        answer = job.lease(names, job.resolve().json()["generation"], wait_s=2.0).json()
        if answer["granted"] or answer["look_again"]:
            return len(answer["granted"]), job
    raise AssertionError("nothing was granted or found")


def stored(bucket: Path, digest: str) -> Path:
    return bucket / "cas/v1" / digest[:2] / digest


def test_another_recipes_artifact_is_not_taken(tmp_path: Path, bucket: Path) -> None:
    digest = filled(tmp_path / "first", bucket, OTHER_RECIPE)
    planted(bucket, [row(digest, stored(bucket, digest).stat().st_size)])
    with box(tmp_path / "second", bucket) as second:
        assert granted(second)[0] == 3
        assert second.http().get("/v1/tier").json()["bad"] == 1
        assert not second.store.check()


def test_an_artifact_of_other_items_gives_only_its_own(tmp_path: Path, bucket: Path) -> None:
    """The manifest says that it has an item that it has not."""
    digest = filled(tmp_path / "first", bucket)
    size_bytes = stored(bucket, digest).stat().st_size
    for path in (bucket / "manifests").rglob("*.json"):
        path.unlink()
    planted(bucket, [row(digest, size_bytes, [*ITEMS, "x"])])
    with box(tmp_path / "second", bucket) as second:
        assert granted(second, ["x"])[0] in (0, 1)
        assert granted(second, ["x"])[0] == 1
        assert not second.store.check()


@pytest.mark.parametrize("by", [-1, 1, 1 << 40])
def test_a_size_that_is_not_true_costs_only_the_work(by: int, tmp_path: Path, bucket: Path) -> None:
    digest = filled(tmp_path / "first", bucket)
    size_bytes = stored(bucket, digest).stat().st_size
    for path in (bucket / "manifests").rglob("*.json"):
        path.unlink()
    planted(bucket, [row(digest, size_bytes + by)])
    with box(tmp_path / "second", bucket) as second:
        assert granted(second)[0] == 3
        assert second.http().get("/v1/tier").json()["hits"] == 0


def test_an_artifact_over_the_budget_is_left_to_a_job(tmp_path: Path, bucket: Path) -> None:
    digest = filled(tmp_path / "first", bucket)
    data = bytes(2 << 20)
    planted(bucket, [row(digest, len(data), ["x"])])
    stored(bucket, digest).write_bytes(data)
    with box(tmp_path / "second", bucket, max_bytes=1 << 20) as second:
        assert granted(second, ["x"])[0] == 1
        assert second.store.stats().disk_bytes < 1 << 20


def test_other_layouts_and_strays_are_let_alone(tmp_path: Path, bucket: Path) -> None:
    strays = ["cas/v2/ab/" + "ab" * 32, "manifests/v2/x.json", "README", "data/train/0001.jpg"]
    for name in strays:
        (bucket / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket / name).write_text("somebody's")
    filled(tmp_path / "first", bucket)
    with box(tmp_path / "second", bucket) as second:
        assert granted(second)[0] == 0
        assert second.http().post("/v1/tier/gc", json={"delete": True}).json()["artifacts"] == 0
    assert all((bucket / name).read_text() == "somebody's" for name in strays)


def test_fleets_with_isolated_users_share_a_prefix(tmp_path: Path, bucket: Path) -> None:
    """What a fleet shares and what one of its users made in another fleet do not mix."""
    filled(tmp_path / "first", bucket)
    with box(tmp_path / "second", bucket, isolation="user") as second:
        assert granted(second)[0] == 3
        job = second.job()
        job.fill(second.store.staging, ["x"])
        assert second.http().post("/v1/tier/push").json()["artifacts"] == 1
    with box(tmp_path / "third", bucket) as third:
        assert granted(third, ["x"])[0] == 1


@pytest.mark.nightly
def test_a_manifest_of_a_million_rows_is_bounded(tmp_path: Path, bucket: Path) -> None:
    one = json.dumps(row("f" * 64, 100, ["x"]))
    path = bucket / "manifests/v1" / RECIPE / "shared" / "planted.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": 1, "artifacts": [' + ",".join([one] * 1_000_000) + "]}")
    assert path.stat().st_size > manifest.MAX_OBJECT_BYTES
    with box(tmp_path / "box", bucket) as served:
        assert granted(served)[0] == 3
