"""Jobs: scripts in processes of their own, against a daemon of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prepcache.daemon.wait_budget import PROCESS
from support.fork_processes import Daemons
from support.forked import JobServers
from support.jobs import Jobs
from support.sandbox import sandbox


@pytest.fixture(autouse=True)
def patience() -> None:
    """What this process may lose to its daemons, anew for each test: a crowded machine takes 5 s of one, and
    the tests after it would go without."""
    PROCESS.__init__(60.0)  # type: ignore[misc]


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
def jobs(daemons: Daemons, job_servers: JobServers) -> Iterator[Jobs]:
    with sandbox(daemons) as box:
        jobs = Jobs(box, job_servers)
        yield jobs
        jobs.close()
