"""Jobs: scripts in processes of their own, against a daemon of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.jobs import Jobs
from support.sandbox import sandbox


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with sandbox() as box:
        jobs = Jobs(box)
        yield jobs
        jobs.close()
