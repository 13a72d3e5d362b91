"""What jobs and commands write where little is possible: eight ranks on one terminal, ASCII, a log file."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import python
from support.serving import READY_S, Serving, serving
from support.stores import RECIPE
from support.terminals import terminal

JOB = """
import logging

def make(item):
    called(item)
    return np.array([item])

if sys.argv[1:]:
    logging.basicConfig(filename=sys.argv[1], level=logging.INFO)
ds = prepcache.CachedDataset(list(range(40)), make, name="t\\u00e4glich")
tell(ds, samples=len(list(ds)))
"""
LITTLE = {
    "PYTHONWARNINGS": "error",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "LC_ALL": "C",
    "NO_COLOR": "1",
    "COLUMNS": "60",
}


def test_of_eight_ranks_only_the_first_one_writes(jobs):
    script = jobs.write(JOB)
    ranks = [jobs.start(script, RANK=str(n), LOCAL_RANK=str(n), WORLD_SIZE="8") for n in range(8)]
    said = [rank.process.communicate(timeout=240)[1] for rank in ranks]
    assert 1 <= len(said[0].splitlines()) <= 4, said[0]
    assert said[1:] == [""] * 7
    assert sum(jobs.calls().values()) == 40


@pytest.mark.parametrize("log", [(), ("job.log",)], ids=["stderr", "log file"])
def test_a_job_runs_in_ascii_with_warnings_as_errors(jobs, log):
    told, err = jobs.said(jobs.write(JOB), *log, **LITTLE)
    written = (jobs.box.folder / "job.log").read_text() if log else err
    assert told["samples"] == 40, err
    assert "miss t\\xe4glich: nothing of this name is cached yet; 40 items" in written and written.isascii()
    assert len(written.splitlines()) <= 4 and "\x1b" not in written
    assert not log or err == ""


def test_commands_write_ascii_without_colours(jobs):
    jobs.run(jobs.write(JOB))
    for command in (["status"], ["ls"], ["explain"]):
        shown = python("-m", "prepcache", *command, env=os.environ | jobs.box.environ | LITTLE)
        assert shown.stdout.isascii() and "\x1b" not in shown.stdout and shown.stderr == ""


WATCH = ("status", "--watch")


def environ(folder: Path) -> dict[str, str]:
    return {"PREPCACHE_URL": f"unix://{folder / 's.sock'}", "PREPCACHE_TOKEN": ""}


def fill(served: Serving) -> None:
    """A job that has made some items and makes others."""
    job = served.job("train.py")
    job.fill(served.store.staging, "abc")
    job.heartbeat(progress=[{"recipe": RECIPE, "name": "prep.tokenise", "done": 3, "total": 5}])


def standing() -> float:
    """A clock by which no wait is over."""
    return 1000.0


def test_a_watch_ends_with_its_daemon_and_leaves_the_terminal(tmp_path):
    with contextlib.ExitStack() as running:
        served = running.enter_context(serving(tmp_path, standing))
        with terminal(*WATCH, environ=environ(tmp_path)) as seen:
            before = seen.attributes
            seen.until(r"Who is connected\?[^\0]*no job")
            fill(served)
            seen.until(r"train.py[^\0]*prep.tokenise 3/5")
            running.close()
            assert seen.ended() == 3 and "cannot be reached" in seen.drawn
            assert seen.is_left_alone and seen.attributes == before and "Traceback" not in seen.drawn


def test_in_a_pipe_each_look_is_a_line_until_an_interrupt(tmp_path):
    command = [sys.executable, "-c", "from prepcache.command.cli import main; main()", *WATCH, "--json"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        serving(tmp_path, standing) as served,
        subprocess.Popen(command, env=os.environ | environ(tmp_path), **streams) as watch,  # type: ignore[call-overload]
    ):
        fill(served)
        first, second = (json.loads(watch.stdout.readline()) for _ in range(2))
        assert first["info"]["pid"] == os.getpid() and second["at"] > first["at"]
        assert second["sessions"][0]["name"] == "train.py"
        watch.send_signal(signal.SIGINT)
        assert (watch.wait(READY_S), watch.stderr.read()) == (0, "")
