"""What lies in the staging folder: it counts, and is swept when it belongs to no open session."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prepcache.protocol.wire import StagedFile
from prepcached.store import durable
from prepcached.store.staging import Swept
from support.serving import READY_S, Serving, serving, wait_until
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


def test_what_belongs_to_no_open_session_is_swept(served, clock):
    job = served.job()
    staged = drop(served, f"{job.session}.file", BLOCK)
    folder = Path(served.store.staging) / f"{job.session}.folder"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_bytes(bytes(BLOCK))
    rubbish = drop(served, "rubbish", BLOCK)
    for _ in range(7):
        clock.now += 10
        job.heartbeat(progress=[{"recipe": job.recipe, "name": "n", "done": int(clock.now), "total": 10**6}])
    assert wait_until(lambda: not folder.exists() and not rubbish.exists())
    assert staged.exists() and served.store.stats().staged_bytes == BLOCK


def test_what_a_session_stages_as_a_sweep_begins_stays(served, monkeypatch):
    sweep, staged = served.store.sweep_staging, list[Path]()

    def open_a_session_first(is_live: Callable[[str], bool]) -> Swept:
        staged.append(drop(served, f"{served.job().session}.file", BLOCK))
        return sweep(is_live)

    monkeypatch.setattr(served.store, "sweep_staging", open_a_session_first)
    rubbish = drop(served, "rubbish", BLOCK)
    asyncio.run_coroutine_threadsafe(served.daemon.sweep(), served.server.loop).result(READY_S)
    assert staged[0].exists() and not rubbish.exists()


def test_zeros_are_refused_before_room_is_made_for_them(served):
    put(served.store, "a")
    job = served.job()
    lease = job.leased("b")
    path = Path(served.store.staging) / f"{job.session}.zeros"
    path.touch(0o640)
    os.truncate(path, SPARSE_BYTES)
    refused = job.commit([lease], {"name": path.name, "size_bytes": SPARSE_BYTES})
    assert refused.json()["code"] == "staged-file-refused"
    assert served.store.stats().entries == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")
def test_another_users_zeros_are_not_copied(served, monkeypatch):
    copied: list[int] = []
    monkeypatch.setattr(durable, "copy", lambda *_: copied.append(1))
    served.store.register(RECIPE, "tests.recipe", {})
    path = Path(served.store.staging) / "s.zeros"
    path.touch(0o640)
    os.truncate(path, SPARSE_BYTES)
    os.chown(path, 1001, -1)
    with pytest.raises(Exception, match="not a whole artifact"):
        served.store.commit(RECIPE, StagedFile(path.name, SPARSE_BYTES), owner_uid=1001)
    assert copied == []
