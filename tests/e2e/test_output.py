"""What jobs and commands write where little is possible: eight ranks on one terminal, ASCII, a log file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.jobs import Jobs

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


def test_of_eight_ranks_only_the_first_one_writes(jobs: Jobs) -> None:
    script = jobs.write(JOB)
    ranks = [jobs.start(script, RANK=str(n), LOCAL_RANK=str(n), WORLD_SIZE="8") for n in range(8)]
    said = [rank.process.communicate(timeout=240)[1] for rank in ranks]
    assert 1 <= len(said[0].splitlines()) <= 4, said[0]
    assert said[1:] == [""] * 7
    assert sum(jobs.calls().values()) == 40


@pytest.mark.parametrize("log", [(), ("job.log",)], ids=["stderr", "log file"])
def test_a_job_runs_in_ascii_with_warnings_as_errors(jobs: Jobs, log: tuple[str, ...]) -> None:
    out, err = jobs.start(jobs.write(JOB), *log, **LITTLE).process.communicate(timeout=240)
    written = (jobs.box.folder / "job.log").read_text() if log else err
    assert '"samples": 40' in out, err
    assert "miss t\\xe4glich: nothing of this name is cached yet; 40 items" in written and written.isascii()
    assert len(written.splitlines()) <= 4 and "\x1b" not in written
    assert not log or err == ""


def test_commands_write_ascii_without_colours(jobs: Jobs) -> None:
    jobs.run(jobs.write(JOB))
    for command in (["status"], ["ls"], ["explain"]):
        shown = subprocess.run(
            [sys.executable, "-m", "prepcache", *command],
            env=os.environ | jobs.box.environ | LITTLE,
            capture_output=True,
            check=True,
            text=True,
        )
        assert shown.stdout.isascii() and "\x1b" not in shown.stdout and shown.stderr == ""
