"""SIGKILL of a daemon before each of its steps in a bucket, while it copies and compacts a manifest."""

import os
from collections.abc import Iterator

import pytest

from support import tier_actor
from support.fleet import asked, patient_fixture  # noqa: F401
from support.forked import JobServer
from support.serving import serving
from support.tier_actor import FILLS

pytestmark = pytest.mark.usefixtures("patient")
TURNS = 16


@pytest.fixture(scope="module")
def server() -> Iterator[JobServer]:
    made = JobServer("support.tier_actor")
    yield made
    made.close()


@pytest.mark.nightly
@pytest.mark.parametrize("turn", range(TURNS))
def test_a_daemon_killed_while_it_copies_loses_nothing(server, turn, tmp_path):
    kill_at, is_done = turn + 1, False
    while not is_done:
        folder, bucket, other = (tmp_path / f"{name}{kill_at}" for name in ("box", "bucket", "other"))
        for one in (folder, bucket, other):
            one.mkdir()
        command = [tier_actor.__file__, str(folder), str(bucket), str(kill_at)]
        said, _ = server.start(command, os.environ, tmp_path).communicate()
        commits, is_done = said.count("committed"), "steps" in said
        tier = {"url": f"file://{bucket}"}
        with serving(folder, tier=tier) as again:
            assert len(again.job().resolve().json()["artifacts"]) == commits
            assert not again.store.check()
            assert again.http().post("/v1/tier/push").status_code == 200
        with serving(other, tier=tier) as fresh:
            assert all(asked(fresh.job(), names)[1] for names in FILLS[:commits])
            assert fresh.http().get("/v1/tier").json()["bad"] == 0
            assert not fresh.store.check()
        kill_at += TURNS
    assert commits == len(FILLS) and kill_at > TURNS
