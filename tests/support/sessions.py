"""A session on a daemon that says what the test wants."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepcache.daemon.client import Client
from prepcache.daemon.session import Session
from prepcache.daemon.waits import WaitBudget
from support import serving
from support.fake_daemon import FakeDaemon, Request, reply

RECIPE = "ab" * 32


@dataclass
class SomeRecipe:
    digest: str = RECIPE
    name: str = "tokens"
    parts: dict[str, Any] = field(default_factory=lambda: {"format": 1})


def ref(n: int, **members: Any) -> dict[str, Any]:
    digest = f"{n:064x}"
    return {"key": digest, "digest": digest, "size_bytes": 4, "items": 1, "rows": 1, "cost_s": 0.5, **members}


class World:
    """A daemon's answers: defaults that a test overrides by (method, path with ids left out)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened = 0
        self.artifacts: list[int] = []
        self.said: dict[str, Callable[[Request], Any]] = {}

    def __call__(self, request: Request) -> Any:
        parts = request.path.split("/")[2:]
        what = f"{request.method} {'/'.join(parts[:1] + parts[2:])}"
        if what in self.said:
            return self.said[what](request)
        return getattr(self, "on_" + what.lower().replace(" ", "_").replace("/", "_"))(request)

    def on_get_(self, request: Request) -> Any:
        return reply({})  # of /healthz

    def on_post_sessions(self, request: Request) -> Any:
        self.opened += 1
        return reply(
            {
                "session": f"s{self.opened}",
                "token": "t",
                "instance": "i1",
                "root": str(self.root),
                "staging": str(self.root / "v1" / "staging"),
                "beat_s": 0.05,
            }
        )

    def on_delete_sessions(self, request: Request) -> Any:
        return reply({})

    def on_post_sessions_beat(self, request: Request) -> Any:
        return reply({"removed": []})

    def resolved(self) -> dict[str, Any]:
        return {
            "generation": len(self.artifacts),
            "is_complete": True,
            "objects": str(self.root / "v1" / "objects"),
            "artifacts": [ref(n) for n in self.artifacts],
        }

    def on_post_resolve(self, request: Request) -> Any:
        return reply(self.resolved())

    def on_post_leases(self, request: Request) -> Any:
        count = min(len(request.json["items"]) // 64, request.json["want"])
        return reply(
            {
                "look_again": None,
                "lease": {"id": "l1", "token": "lt", "deadline_s": 15},
                "granted": list(range(count)),
                "held": [],
                "is_declined": False,
                "reason": "",
                "is_waited_for": False,
            }
        )

    def on_post_leases_commit(self, request: Request) -> Any:
        return reply({"generation": 1, "artifact": ref(1)})


class Listener:
    """Something that a session calls by these names."""

    def __init__(self, **methods: Any) -> None:
        vars(self).update(methods)


@dataclass
class Bench:
    session: Session
    world: World
    daemon: FakeDaemon

    def sent(self, method: str, path: str) -> list[Request]:
        return [r for r in self.daemon.requests if r.method == method and r.path.endswith(path)]


@pytest.fixture(name="bench")
def bench_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name in ("PREPCACHE", "PREPCACHE_URL", "PREPCACHE_TOKEN", "PREPCACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "root"
    (root / "v1" / "staging").mkdir(parents=True)
    (root / "instance").write_text("i1")
    path = str(tmp_path / "d.sock")
    world = World(root)
    daemon = FakeDaemon(path, world)
    client = Client(f"unix://{path}", budget=WaitBudget(1.0))
    session = Session.current(client)
    yield Bench(session, world, daemon)
    session.close()
    daemon.close()


def items(count: int) -> Any:
    return np.arange(count * 32, dtype=np.uint8).reshape(count, 32)


def wait_until(condition: Callable[[], Any]) -> None:
    assert serving.wait_until(condition), "it did not come"
