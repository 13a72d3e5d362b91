"""Sessions with a real daemon: a wrong token, and a daemon that lost its store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache.daemon.client import Client
from prepcache.daemon.session import Session
from prepcache.daemon.wait_budget import WaitBudget
from prepcache.protocol import wire
from support.serving import process, wait_until
from support.stores import RECIPE, item, write_artifact

Open = Callable[[], Session]


@dataclass
class SomeRecipe:
    digest: str = RECIPE
    name: str = "tests.recipe"
    parts: dict[str, Any] = field(default_factory=lambda: {"format": 1})


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens sessions as several jobs would: one each time."""
    for name in ("PREPCACHE", "PREPCACHE_URL", "PREPCACHE_TOKEN", "PREPCACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[Session] = []

    def open_one() -> Session:
        # A crowded test machine is no reason to give a daemon up: 5 s are tested elsewhere.
        client = Client(f"unix://{tmp_path}/s.sock", budget=WaitBudget(60.0))
        made.append(Session(client))
        return made[-1]

    yield open_one
    for session in made:
        session.close()


def digests(*names: object) -> Any:
    return np.frombuffer(b"".join(map(item, names)), np.uint8).reshape(-1, 32)


def lease(session: Session, *names: object) -> wire.Lease:
    generation = session.resolve(SomeRecipe(), register=True).generation
    answer = session.lease(RECIPE, generation, digests(*names), want=len(names))
    assert answer.lease is not None and len(answer.granted) == len(names)
    return answer.lease


def commit(session: Session, held: wire.Lease, *names: object, size_bytes: int = 100) -> wire.Committed:
    with session.stage() as staged:
        write_artifact(staged.fd, names, size_bytes=size_bytes)
        return session.commit([held], [staged])


def test_a_daemon_that_lost_its_store_is_met_as_a_new_one(tmp_path: Path, opened: Open) -> None:
    gone: list[set[str]] = []
    with process(tmp_path) as daemon:
        one = opened()
        one.on_removed(gone.append)
        done = commit(one, lease(one, "a"), "a")
        one.resolve(SomeRecipe())
        daemon.kill()
        daemon.wait()
    shutil.rmtree(tmp_path / "root")
    with process(tmp_path):
        assert one.resolve(SomeRecipe(), done.generation).artifacts == ()
        assert wait_until(lambda: gone == [{done.artifacts[0].digest}])  # a beat may be at it
        assert lease(one, "a")
        one.close()
