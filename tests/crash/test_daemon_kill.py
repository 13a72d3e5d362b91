"""SIGKILL of the daemon before every system call of a commit that a job waits for: the job goes on.

strace kills the daemon at the Nth call of a kind, for N = 1, 2, ... until the commit gets through: while it
takes the staged file, while it writes the row, and when it has done so but not told the job. Then it is
started again, while the job asks again.
"""

import contextlib
import functools
import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support import serving
from support.crashing import Clients, attached, check_tidy, injecting, needs
from support.sandbox import Sandbox, sandbox

pytestmark = [pytest.mark.root, needs("strace")]

CALLS = ["rename", "write"]
MORE_CALLS = ["openat", "fchmod", "fsync", "newfstatat", "pwrite64", "fdatasync", "unlink"]
HALF, ALL = 6, 12


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with sandbox() as box:
        yield box


@pytest.fixture
def clients(box: Sandbox) -> Iterator[Clients]:
    clients = Clients(box.environ | {"PREPCACHE_URL": f"unix://{box.folder}/s.sock"})
    yield clients
    clients.close()


def is_dead(daemon: subprocess.Popen[bytes]) -> bool:
    """Whether it was killed; a death that has just begun is waited for."""
    try:
        daemon.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True


def has_ended(daemon: subprocess.Popen[bytes], clients: Clients) -> bool:
    return daemon.poll() is not None or clients.has_said


@pytest.mark.nightly(daily=CALLS[:1])
@pytest.mark.parametrize("call", CALLS + MORE_CALLS)
def test_a_daemon_killed_at_any_step_leaves_the_job_right(box, clients, call):
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(serving.process(box.folder))
        for salt in itertools.count(1):
            clients.begin(salt, HALF, cut="its commit")
            with attached(daemon.pid, injecting((f"{call}:signal=SIGKILL:when={salt}",))):
                clients.go_on()
                assert serving.wait_until(functools.partial(has_ended, daemon, clients))
            is_killed = is_dead(daemon)
            if is_killed:
                daemon = stack.enter_context(serving.process(box.folder))
            clients.ended()
            check_tidy(box.folder)
            next_job = clients.fill(salt, ALL)
            assert next_job in ({"hit": HALF, "computed": ALL - HALF}, {"hit": 0, "computed": ALL})
            check_tidy(box.folder)
            if not is_killed:
                assert next_job["hit"] == HALF
                break
        daemon.terminate()
        daemon.wait(serving.READY_S)
    command = [sys.executable, "-m", "prepcached", "check", "--root", str(box.folder / "root")]
    subprocess.run(command, env=box.environ, check=True)
