"""SIGKILL of a daemon before each of its steps in a bucket, while it copies and compacts a manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import asked, be_patient
from support.fork_processes import Running
from support.serving import serving
from support.tier_actor import FILLS

TURNS = 16


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


class Copying(Running):
    """A running `tier_actor`."""

    def __init__(self) -> None:
        super().__init__("support.tier_actor", os.environ)

    def run(self, folder: Path, bucket: Path, kill_at: int) -> tuple[int, bool]:
        """How many commits there were, and whether the daemon came to its end."""
        self._say(json.dumps({"folder": str(folder), "bucket": str(bucket), "kill_at": kill_at}))
        commits, is_done = 0, False
        while "status" not in (said := self._hear()):
            commits += "committed" in said
            is_done |= "steps" in said
        return commits, is_done


@pytest.fixture(scope="module")
def copying() -> Iterator[Copying]:
    made = Copying()
    yield made
    made.close()


@pytest.mark.nightly
@pytest.mark.parametrize("turn", range(TURNS))
def test_a_daemon_killed_while_it_copies_loses_nothing(copying: Copying, turn: int, tmp_path: Path) -> None:
    kill_at, is_done = turn + 1, False
    while not is_done:
        folder, bucket, other = (tmp_path / f"{name}{kill_at}" for name in ("box", "bucket", "other"))
        for one in (folder, bucket, other):
            one.mkdir()
        commits, is_done = copying.run(folder, bucket, kill_at)
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
