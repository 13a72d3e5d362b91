"""What lies in the staging folder without a lease: it makes nothing go, is counted, and is swept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepcached.store import durable
from prepcached.store.records import StagedFile
from support.serving import Serving, serving, wait_until
from support.stores import BLOCK, RECIPE, Clock, put

BUDGET = 64 * BLOCK
SPARSE_BYTES = 2 << 30


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture(params=["group", "user"])
def served(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Serving]:
    with serving(tmp_path, clock, isolation=request.param, max_bytes=BUDGET) as found:
        yield found


def drop(served: Serving, name: str, size_bytes: int = BUDGET) -> Path:
    path = Path(served.store.staging) / name
    path.write_bytes(bytes(size_bytes))
    return path


def swept(served: Serving, clock: Clock, path: Path) -> bool:
    for _ in range(2):  # a live session's file is swept when it is found twice
        at, clock.now = served.daemon._swept_at, clock.now + 61
        assert wait_until(lambda at=at: served.daemon._swept_at != at and not served.daemon._tasks)
    return not path.exists()


def test_a_file_without_a_lease_evicts_nothing_and_is_swept(served: Serving, clock: Clock) -> None:
    entries = [put(served.store, name).artifacts[0].key for name in range(10)]
    job = served.job()
    dropped = drop(served, f"{job.session}.large")
    served.store.maintain()
    stats = served.store.stats()
    assert (stats.stray_bytes, stats.staged_bytes, stats.evictions) == (BUDGET, 0, 0)
    assert sorted(one.key for one in served.store.entries().entries) == sorted(entries)
    put(served.store, "new")
    assert served.store.stats().evictions == 0
    assert swept(served, clock, dropped)
    assert served.store.stats().stray_bytes == 0


def test_a_leased_file_counts_and_stays(served: Serving, clock: Clock) -> None:
    job = served.job()
    job.resolve()
    job.lease("a")
    dropped = drop(served, f"{job.session}.file", BLOCK)
    assert wait_until(lambda: served.store.stats().staged_bytes == BLOCK)
    for _ in range(6):
        clock.now += 10
        job.heartbeat(progress=[{"recipe": job.recipe, "name": "n", "done": int(clock.now), "total": 10**6}])
    assert not swept_now(served, dropped)


def swept_now(served: Serving, path: Path) -> bool:
    live = {session.id for session in served.daemon.sessions}
    served.store.sweep_staging(live)
    served.store.sweep_staging(live)
    return not path.exists()


def test_folders_are_swept(served: Serving, clock: Clock) -> None:
    folder = Path(served.store.staging) / f"{served.job().session}.folder"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_bytes(bytes(BUDGET))
    assert swept(served, clock, folder)
    assert served.store.stats().stray_bytes == 0


def test_zeros_are_refused_before_room_is_made_for_them(served: Serving) -> None:
    put(served.store, "a")
    job = served.job()
    lease = job.lease("b", job.resolve().json()["generation"]).json()["lease"]
    path = Path(served.store.staging) / f"{job.session}.zeros"
    path.touch(0o640)
    os.truncate(path, SPARSE_BYTES)
    refused = job.commit([lease], [{"name": path.name, "size_bytes": SPARSE_BYTES}])
    assert refused.json()["code"] == "staged-file-refused"
    assert served.store.stats().entries == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")
def test_another_users_zeros_are_not_copied(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    monkeypatch.setattr(durable, "copy", lambda *_: copied.append(1))
    served.store.register(RECIPE, "tests.recipe", {})
    path = Path(served.store.staging) / "s.zeros"
    path.touch(0o640)
    os.truncate(path, SPARSE_BYTES)
    os.chown(path, 1001, -1)
    with pytest.raises(Exception, match="not a whole artifact"):
        served.store.commit(RECIPE, [StagedFile(path.name, SPARSE_BYTES)], owner_uid=1001)
    assert copied == []
