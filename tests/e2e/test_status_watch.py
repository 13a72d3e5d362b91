"""`prepcache status --watch` with a real daemon, in a terminal and in a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from support.serving import READY_S, Serving, process, serving
from support.stores import RECIPE
from support.terminals import terminal

WATCH = ("status", "--watch", "--interval", "0.5")


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


def test_it_follows_daemons_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with contextlib.ExitStack() as first:
        served = first.enter_context(serving(tmp_path, standing))
        with terminal(*WATCH, environ=environ(tmp_path)) as seen:
            before = seen.attributes
            seen.until(r"Who is connected\?[^\0]*nobody")
            fill(served)
            seen.until(r"train.py[^\0]*prep.tokenise 3/5")
            first.close()
            seen.until(r"the daemon does not answer[^\0]*cannot be reached[^\0]*last known state")
            with process(tmp_path) as second:
                seen.until(rf"pid {second.pid}, up [^\0]*nobody")
                seen.type(b"\x03")
                assert seen.ended() == 0
            assert seen.is_left_alone and seen.attributes == before and "Traceback" not in seen.drawn


def test_in_a_pipe_each_look_is_a_line_until_an_interrupt(tmp_path: Path) -> None:
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
