"""The daemon on demand, with real processes: it starts by itself, once, and is never in the way."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.jobs import Jobs, Running
from support.programs import python
from support.sandbox import Sandbox

JOB = """
from prepcache.daemon.session import Session
from prepcache.errors import DaemonUnreachable

class Recipe:
    digest, name, parts = "ab" * 32, "tokens", {"format": 1}

session = Session.current(prepcache.Client(budget=PROCESS))
for line in sys.stdin:
    started = time.monotonic()
    try:
        answer = session.resolve(Recipe, register=True).generation
    except DaemonUnreachable as error:
        answer = error.message
    print(json.dumps((answer, time.monotonic() - started)), flush=True)
"""
STUCK_S = 30.0
"""What takes so long has waited for what does not come."""


@pytest.fixture
def jobs(box: Sandbox) -> Iterator[Jobs]:
    """Jobs that start their daemon themselves."""
    jobs = Jobs(box)
    jobs.write(JOB)
    yield jobs
    jobs.close()


def begun(jobs: Jobs, **environ: str) -> Running:
    return jobs.start(jobs.box.folder / "job.py", **environ)


def asked(job: Running) -> tuple[Any, float]:
    """What a job is answered by its daemon, and how long it takes."""
    job.go()
    assert job.process.stdout is not None
    answer, took_s = json.loads(job.process.stdout.readline())
    return answer, took_s


def ended(job: Running) -> str:
    """Lets it end; what it said on stderr."""
    return job.process.communicate(timeout=60)[1]


def log(box: Sandbox) -> str:
    return (box.folder / "cache" / "prepcache" / "prepcached.log").read_text()


def daemon_pid(box: Sandbox) -> int:
    return int((box.folder / "cache" / "prepcache" / "start.lock").read_text())


def stopped(box: Sandbox, jobs: Jobs) -> None:
    """A daemon that a job has started, and that was stopped."""
    job = begun(jobs)
    assert asked(job)[0] == 0
    ended(job)
    box.python("-m", "prepcached", "stop")


def test_many_first_jobs_share_one_daemon_that_nobody_started(box, jobs):
    many = [begun(jobs) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = [answer for answer, _ in pool.map(asked, many)]
    assert answers == [0, 0, 0, 0], log(box)
    assert [ended(job) for job in many] == ["", "", "", ""]
    assert log(box).count("serving ") == 1


def test_a_hanging_daemon_costs_five_seconds_and_one_line(box, jobs):
    assert asked(begun(jobs))[0] == 0
    job = begun(jobs, BUDGET_S="5")
    _, started_s = asked(job)
    pid = daemon_pid(box)
    os.kill(pid, signal.SIGSTOP)
    try:
        answers = [asked(job) for _ in range(3)]
        started = time.monotonic()
        said = ended(job)
        ended_s = time.monotonic() - started
    finally:
        os.kill(pid, signal.SIGCONT)
    assert all("cannot be reached" in answer for answer, _ in answers)
    assert started_s + sum(took_s for _, took_s in answers) < 3 * 5.0  # 5 in all, not for each
    assert ended_s < STUCK_S
    assert said.count("\n") == 1 and "preprocesses by itself" in said


@pytest.mark.parametrize("mode", ["off", "readonly"])
def test_a_read_only_mode_starts_no_daemon_for_an_empty_cache(box, jobs, mode):
    job = begun(jobs, PREPCACHE=mode)
    assert isinstance(asked(job)[0], str)
    ended(job)
    assert not (box.folder / "cache" / "prepcache" / "v1").exists()


def test_readonly_starts_the_daemon_of_a_cache_that_is_there(box, jobs):
    stopped(box, jobs)
    assert asked(begun(jobs, PREPCACHE="readonly"))[0] == 0


def test_status_starts_no_daemon_to_say_that_it_runs(box, jobs):
    stopped(box, jobs)
    command = "from prepcache.command.cli import main; main()"
    status = python("-c", command, "status", code=3, env=box.environ)
    assert status.stdout == "" and "no daemon runs for" in status.stderr
    assert log(box).count("serving ") == 1
    for told in ("prepcache: starting the daemon of ", ""):
        listed = box.python("-c", command, "ls", "--json")
        assert listed.stdout.strip() == "[]"
        assert listed.stderr.startswith(told) and bool(listed.stderr) == bool(told)
        assert log(box).count("serving ") == 2
