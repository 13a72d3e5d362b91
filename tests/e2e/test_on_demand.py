"""The daemon on demand, with real processes: it starts by itself, once, and is never in the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.programs import python
from support.sandbox import Sandbox

JOB = """
import json, os, sys, time
from prepcache.daemon import waits
from prepcache.daemon.client import Client
from prepcache.errors import DaemonUnreachable
from prepcache.daemon.wait_budget import WaitBudget
from prepcache.daemon.session import Session

class Recipe:
    digest, name, parts = "ab" * 32, "tokens", {"format": 1}

session = Session.current(Client(budget=WaitBudget(float(os.environ.get('BUDGET_S', waits.BUDGET_S)))))

def ask():
    started = time.monotonic()
    try:
        answer = session.resolve(Recipe, register=True).generation
    except DaemonUnreachable as error:
        answer = error.message
    return answer, time.monotonic() - started

for line in sys.stdin:
    print(json.dumps(ask()), flush=True)
"""

BUDGET_S = 60.0
"""On a crowded test machine a daemon may take longer to start than a job would wait for it."""
STUCK_S = 30.0
"""What takes so long has waited for what does not come."""


@pytest.fixture
def box(box: Sandbox) -> Sandbox:
    (box.folder / "job.py").write_text(JOB)
    return box


class Job:
    """A job that asks its daemon whenever it is told to."""

    def __init__(self, box: Sandbox, **environ: str) -> None:
        environ = {"BUDGET_S": str(BUDGET_S), **environ}
        self.process = subprocess.Popen(
            [sys.executable, str(box.folder / "job.py")],
            env=box.environ | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("ask\n")
        self.process.stdin.flush()

    def hear(self) -> tuple[Any, float]:
        assert self.process.stdout is not None
        answer, took_s = json.loads(self.process.stdout.readline())
        return answer, took_s

    def ask(self) -> tuple[Any, float]:
        self.tell()
        return self.hear()

    def end(self) -> str:
        """Lets it end; what it said on stderr."""
        return self.process.communicate(timeout=60)[1]


@pytest.fixture
def jobs(box: Sandbox) -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        if job.process.poll() is None:
            job.process.kill()
        job.process.communicate()


def log(box: Sandbox) -> str:
    return (box.folder / "cache" / "prepcache" / "prepcached.log").read_text()


def daemon_pid(box: Sandbox) -> int:
    return int((box.folder / "cache" / "prepcache" / "start.lock").read_text())


def test_many_first_jobs_share_one_daemon_that_nobody_started(box, jobs):
    jobs += [Job(box) for _ in range(4)]
    for job in jobs:
        job.tell()
    answers = [job.hear()[0] for job in jobs]
    assert answers == [0, 0, 0, 0], log(box)
    assert [job.end() for job in jobs] == ["", "", "", ""]
    assert log(box).count("serving ") == 1


def test_a_job_in_a_pipe_ends_though_its_daemon_goes_on(box):
    environ = box.environ | {"BUDGET_S": "60"}
    command = f"echo ask | {sys.executable} {box.folder}/job.py 2>&1 | tee {box.folder}/out"
    subprocess.run(["sh", "-c", command], env=environ, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert json.loads((box.folder / "out").read_text())[0] == 0
    os.kill(daemon_pid(box), 0)


def test_a_hanging_daemon_costs_five_seconds_and_one_line(box, jobs):
    jobs.append(first := Job(box))
    assert first.ask()[0] == 0
    jobs.append(job := Job(box, BUDGET_S="5"))
    _, started_s = job.ask()
    pid = daemon_pid(box)
    os.kill(pid, signal.SIGSTOP)
    try:
        answers = [job.ask() for _ in range(3)]
        started = time.monotonic()
        said = job.end()
        ended_s = time.monotonic() - started
    finally:
        os.kill(pid, signal.SIGCONT)
    assert all("cannot be reached" in answer for answer, _ in answers)
    assert started_s + sum(took_s for _, took_s in answers) < 3 * 5.0  # 5 in all, not for each
    assert ended_s < STUCK_S
    assert said.count("\n") == 1 and "preprocesses by itself" in said


@pytest.mark.parametrize("mode", ["off", "readonly"])
def test_a_read_only_mode_starts_no_daemon_for_an_empty_cache(box, jobs, mode):
    jobs.append(job := Job(box, PREPCACHE=mode))
    assert isinstance(job.ask()[0], str)
    job.end()
    assert not (box.folder / "cache" / "prepcache" / "v1").exists()


def test_readonly_starts_the_daemon_of_a_cache_that_is_there(box, jobs):
    jobs.append(first := Job(box))
    assert first.ask()[0] == 0
    first.end()
    box.python("-m", "prepcached", "stop")
    jobs.append(second := Job(box, PREPCACHE="readonly"))
    assert second.ask()[0] == 0


def test_status_starts_no_daemon_to_say_that_it_runs(box, jobs):
    jobs.append(job := Job(box))
    assert job.ask()[0] == 0
    job.end()
    box.python("-m", "prepcached", "stop")
    command = "from prepcache.command.cli import main; main()"
    ended = python("-c", command, "status", code=3, env=box.environ)
    assert ended.stdout == "" and "no daemon runs for" in ended.stderr
    assert log(box).count("serving ") == 1
    for told in ("prepcache: starting the daemon of ", ""):
        listed = box.python("-c", command, "ls", "--json")
        assert listed.stdout.strip() == "[]"
        assert listed.stderr.startswith(told) and bool(listed.stderr) == bool(told)
        assert log(box).count("serving ") == 2
