"""`prepcache top` with a real daemon: in a terminal, which it gives back as it was, and in a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.serving import READY_S, Serving, process, serving
from support.storing import RECIPE
from support.terminals import ALTERNATE, NORMAL, terminal


def environ(folder: Path) -> dict[str, str]:
    return {"PREPCACHE_URL": f"unix://{folder / 's.sock'}", "PREPCACHE_TOKEN": ""}


def fill(served: Serving) -> None:
    """A job that has made some items and makes others, and one that waits for those."""
    first, second = served.job("train.py"), served.job("eval.py")
    first.fill(served.store.staging, "abc")
    generation = first.resolve().json()["generation"]
    first.lease("de", generation)
    first.beat(progress=[{"recipe": RECIPE, "name": "prep.tokenise", "done": 3, "total": 5}])
    second.resolve()
    second.lease("de", generation)


def standing() -> float:
    """A clock by which no wait is over."""
    return 1000.0


def test_it_shows_jobs_follows_a_resize_and_ends_by_a_key(tmp_path: Path) -> None:
    with serving(tmp_path, standing) as served:
        fill(served)
        with terminal("top", "--interval", "3600", environ=environ(tmp_path)) as seen:
            before = seen.attributes
            told = seen.until(r"waits for train.py \(pid \d+\) to make prep.tokenise")
            assert "3/5" in told and "eval.py" in told and "HOST" not in told
            assert seen.attributes != before, "keys are taken as they are typed"
            seen.type(b"x")
            seen.resize(140, 30)
            seen.until("HOST")
            seen.type(b"q")
            assert seen.ended() == 0
            assert seen.is_left_alone and seen.attributes == before and seen.drawn.count(ALTERNATE) == 1


def test_it_looks_again_after_the_interval(tmp_path: Path) -> None:
    shown = terminal("top", "--interval", "0.5", environ=environ(tmp_path))
    with serving(tmp_path, standing) as served, shown as seen:
        seen.until("nobody is connected")
        fill(served)
        seen.until("waits for train.py")


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_whatever_ends_it_the_terminal_is_left_as_it_was(tmp_path: Path, how: str) -> None:
    with process(tmp_path), terminal("top", environ=environ(tmp_path)) as seen:
        before = seen.attributes
        seen.until("nobody is connected")
        if how == "Ctrl-C":
            seen.type(b"\x03")
        else:
            seen.process.terminate()
        assert seen.ended() == (0 if how == "Ctrl-C" else 128 + signal.SIGTERM)
        assert seen.is_left_alone and seen.attributes == before
        assert "Traceback" not in seen.drawn


def test_while_it_is_stopped_the_terminal_is_the_shells(tmp_path: Path) -> None:
    with process(tmp_path), terminal("top", environ=environ(tmp_path)) as seen:
        before = seen.attributes
        seen.until("nobody is connected")
        seen.type(b"\x1a")
        assert os.WIFSTOPPED(os.waitpid(seen.process.pid, os.WUNTRACED)[1])
        assert seen.attributes == before
        seen.process.send_signal(signal.SIGCONT)
        seen.until("nobody is connected")
        assert seen.drawn.count(NORMAL) == 1 and seen.attributes != before
        seen.type(b"q")
        assert seen.ended() == 0 and seen.is_left_alone and seen.attributes == before


def test_a_daemon_that_goes_is_reported_and_the_next_one_shown(tmp_path: Path) -> None:
    with contextlib.ExitStack() as first:
        first.enter_context(process(tmp_path))
        with terminal("top", "--interval", "0.5", environ=environ(tmp_path)) as seen:
            seen.until("nobody is connected")
            first.close()
            seen.until(r"cannot be reached[^\0]*looking again every 0.5 s; what follows is of")
            with process(tmp_path) as second:
                seen.until(rf"pid {second.pid}, up for[^\0]*nobody is connected")
                seen.type(b"q")
                assert seen.ended() == 0 and seen.is_left_alone


@contextlib.contextmanager
def piped(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "from prepcache.command.cli import main; main()", "top", *options]
    top = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environ(folder)
    )
    with top:
        yield top
        top.kill()


def test_in_a_pipe_each_look_is_a_line_until_nobody_reads(tmp_path: Path) -> None:
    with serving(tmp_path, standing) as served, piped(tmp_path, "--json", "--interval", "0.5") as top:
        assert top.stdout is not None and top.stderr is not None
        fill(served)
        first, second = (json.loads(top.stdout.readline()) for _ in range(2))
        assert first["info"]["pid"] == os.getpid() and second["at"] > first["at"]
        assert second["rates"]["now"].keys() == second["rates"]["minute"].keys()
        top.stdout.close()
        assert (top.wait(READY_S), top.stderr.read()) == (1, "")


def test_in_a_pipe_an_interrupt_is_the_usual_end(tmp_path: Path) -> None:
    with serving(tmp_path, standing) as served:
        fill(served)
        with piped(tmp_path) as top:
            assert top.stdout is not None and top.stderr is not None
            line = top.stdout.readline()
            assert "2 jobs; train.py (pid" in line and "\x1b" not in line
            top.send_signal(signal.SIGINT)
            assert (top.wait(READY_S), top.stderr.read()) == (0, "")
