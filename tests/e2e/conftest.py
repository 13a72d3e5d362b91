"""Jobs: scripts in processes of their own, against a daemon of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from prepcache import Client
from prepcache.daemon import waits
from prepcache.daemon.session import Session
from prepcache.daemon.waits import PROCESS, WaitBudget
from support.forked import Daemons, JobServers
from support.jobs import Jobs
from support.sandbox import Sandbox, sandbox
from support.serving import serving


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process may lose to its daemons, anew for each test: a crowded machine takes 5 s of one, or
    of a beat, and the tests after it would go without."""
    PROCESS.__init__(60.0)  # type: ignore[misc]
    monkeypatch.setattr(waits, "BUDGET_S", 60.0)


@pytest.fixture(scope="session")
def daemons() -> Iterator[Daemons]:
    daemons = Daemons()
    yield daemons
    daemons.close()


@pytest.fixture(scope="session")
def job_servers() -> Iterator[JobServers]:
    servers = JobServers()
    yield servers
    servers.close()


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with sandbox() as box:
        yield box


@pytest.fixture
def jobs(daemons: Daemons, job_servers: JobServers) -> Iterator[Jobs]:
    with sandbox(daemons) as box:
        jobs = Jobs(box, job_servers)
        yield jobs
        jobs.close()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Of a daemon in this process. What it may lose is its own: what an earlier test left asks in vain."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(tmp_path):
        client = Client(f"unix://{tmp_path}/s.sock", budget=WaitBudget(60.0))
        yield client
        Session.current(client).close()
