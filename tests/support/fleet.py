"""Several machines of a fleet: daemons in this process, each with a root of its own, and one bucket."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from prepcached.tier import bucket as bucket_module
from prepcached.tier import tier as tier_module
from prepcached.tier import upstream as upstream_module
from support.serving import Job, Serving, serving

TOKEN = "correct-horse-battery-staple"
ITEMS = ["a", "b", "c"]


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons of this process wait a minute for buckets and leads: on a busy machine slow is not broken."""
    for module, name in (
        (upstream_module, "CALL_S"),
        (tier_module, "ASKED_S"),
        (bucket_module, "STALL_S"),
    ):
        monkeypatch.setattr(module, name, 60.0)
    monkeypatch.setattr(bucket_module, "LOST_S", 1e9)
    monkeypatch.setattr(tier_module, "TICK_S", 0.05)
    monkeypatch.setattr(bucket_module, "TICK_S", 0.05)
    monkeypatch.setattr(upstream_module, "BEAT_S", 0.1)


@pytest.fixture(name="patient")
def patient_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


def tcp_port(served: Serving) -> int:
    """Where a daemon listens that was given port 0."""
    listeners = [one for server in served.server.servers for one in server.sockets]
    [port] = [one.getsockname()[1] for one in listeners if one.family == socket.AF_INET]
    return int(port)


@contextlib.contextmanager
def lead(folder: Path, **members: Any) -> Iterator[tuple[Serving, dict[str, Any]]]:
    """A lead daemon, and the settings by which others lease from it."""
    folder.mkdir()
    with serving(folder, host="127.0.0.1", port=0, token=TOKEN, **members) as served:
        yield served, upstream(folder, tcp_port(served))


def upstream(folder: Path, port: int) -> dict[str, Any]:
    """The settings of a tier whose lead listens at a port of this machine."""
    file = folder / "token"
    file.touch(0o600)
    file.write_text(TOKEN)
    return {"upstream": f"http://127.0.0.1:{port}", "upstream_token_file": str(file)}


@contextlib.contextmanager
def box(
    folder: Path,
    bucket: str | Path,
    *,
    clock: Callable[[], float] = time.monotonic,
    upstream: Mapping[str, Any] | None = None,
    **members: Any,
) -> Iterator[Serving]:
    """A machine.

    Args:
        bucket: a folder or a URL.
        upstream, members: more of the tier's settings, such as those that name a lead, and others.
    """
    folder.mkdir()
    url = f"file://{bucket}" if isinstance(bucket, Path) else bucket
    with serving(folder, clock, tier={"url": url, **(upstream or {})}, **members) as served:
        yield served


def asked(job: Job, names: Sequence[str] = ITEMS) -> tuple[int, int]:
    """Asks for work until some is given or found: items granted, and items found by looking again."""
    generation = job.resolve().json()["generation"]
    for _ in range(30):
        answer = job.lease(names, generation, wait_s=2.0)
        assert answer.status_code == 200, answer.text
        if granted := answer.json()["granted"]:
            return len(granted), 0
        if found := answer.json()["look_again"]:
            return 0, sum(one["items"] for one in found["artifacts"])
    raise AssertionError("nothing was granted or found within a minute")


def status(served: Serving) -> dict[str, Any]:
    """What a machine says of its tier."""
    return dict(served.http().get("/v1/tier").json())
