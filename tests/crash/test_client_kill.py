"""SIGKILL before every system call of a job's commit: the daemon tidies up, the next job makes the rest.

No fail points in shipped code: strace kills the job at the Nth call of a kind that one of its threads makes,
for N = 1, 2, ... until the work gets through. The committing thread is killed while it uploads a file,
while it asks the daemon to take it, and while the daemon does; the main thread while it opens its session,
resolves, leases, and writes the file.
"""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support import serving, stores
from support.crashing import Clients, check_tidy, needs
from support.sandbox import Sandbox, sandbox
from support.serving import Serving

pytestmark = [pytest.mark.root, needs("strace"), pytest.mark.timeout(1800)]  # one cut short spoils the next

CALLS = ["openat", "writev", "sendto", "recvfrom"]
MORE_CALLS = [
    "mkdir", "fchmod", "linkat", "pread64", "newfstatat", "getpid", "poll", "ioctl", "fcntl", "mmap", "close"
]  # fmt: skip
"""All that the committing thread calls, with those above."""
HALF, ALL = 6, 12
SALTS = itertools.count(1)


def cases() -> Iterator[Any]:
    for call in (*CALLS, *MORE_CALLS):
        yield pytest.param("its commit", call, True, id=f"staged-{call}")
        yield pytest.param("its commit", call, False, id=f"uploaded-{call}")
        yield pytest.param("its file", call, True, id=f"written-{call}")
    for call in ("socket", "connect", "sendto", "recvfrom"):
        yield pytest.param("the job", call, True, id=f"job-{call}")


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with sandbox() as box:
        yield box


@pytest.fixture(scope="module")
def daemon(box: Sandbox) -> Iterator[Serving]:
    with serving.serving(box.folder) as daemon:
        yield daemon
    command = [sys.executable, "-m", "prepcached", "check", "--root", str(box.folder / "root")]
    subprocess.run(command, env=box.environ, check=True)


@pytest.fixture(scope="module")
def clients(box: Sandbox, daemon: Serving) -> Iterator[Clients]:
    clients = Clients(box.environ | {"PREPCACHE_URL": f"unix://{daemon.uds}"})
    yield clients
    clients.close()


def check(daemon: Serving) -> None:
    """What a dead client leaves is gone, and what is stored is whole."""
    check_tidy(daemon.uds.parent)
    assert daemon.store.check() == []
    assert daemon.store.stats().disk_bytes == stores.disk_use(daemon.store)


@pytest.mark.nightly(daily=["written-openat", "staged-sendto", "uploaded-sendto"])
@pytest.mark.parametrize(("cut", "call", "is_shared"), list(cases()))
def test_a_job_killed_at_any_step_commits_all_or_nothing(box, daemon, clients, cut, call, is_shared):
    for n in itertools.count(1):
        # A job looks at each of its downloads once: were those of all rounds there, no N would get through.
        shutil.rmtree(box.folder / "cache" / "prepcache" / "downloads-v1", ignore_errors=True)
        salt, kill = next(SALTS), f"{call}:signal=SIGKILL:when={n}"
        is_killed = clients.cut_short(salt, HALF, kill, cut=cut, is_shared=is_shared)
        check(daemon)
        next_job = clients.fill(salt, ALL, is_shared=is_shared)
        assert next_job in ({"hit": HALF, "computed": ALL - HALF}, {"hit": 0, "computed": ALL})
        check(daemon)
        if not is_killed:
            assert next_job["hit"] == HALF
            return
