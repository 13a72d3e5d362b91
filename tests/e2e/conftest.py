"""Jobs: scripts in processes of their own, against a daemon of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.jobs import Jobs
from support.nurseries import Daemons
from support.sandbox import sandbox


@pytest.fixture(scope="session")
def daemons() -> Iterator[Daemons]:
    daemons = Daemons()
    yield daemons
    daemons.close()


@pytest.fixture
def jobs(daemons: Daemons) -> Iterator[Jobs]:
    with sandbox(daemons) as box:
        jobs = Jobs(box)
        yield jobs
        jobs.close()
