"""A daemon that is away (it starts, is stopped, is killed): jobs go on, and share when it answers."""

import os
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from support.sandbox import NO_TORCH, Sandbox
from support.serving import wait_until

HOLD_BACK = """
import os, sys, time

class HeldBack:
    def find_spec(self, name, path=None, target=None):
        while name == "prepcached.server" and not os.path.exists(os.environ.get("READY", "/")):
            time.sleep(0.01)

sys.meta_path.insert(0, HeldBack())
"""
"""A daemon that loads what it answers with only when the file READY is there."""

JOB = """
import atexit, os, sys, time
import numpy as np
import prepcache
from pathlib import Path
from prepcache.daemon import session, waits

waits.SPARE_S = waits.HANDOVER_S = 60.0
how, count, ready = sys.argv[1], int(sys.argv[2]), Path(os.environ.get("READY", "/"))
if how != "look":
    waits.FIRST_SHARE = 0.01
waits.PROCESS.__init__(240.0)

def made(item):
    with open("calls", "a") as file:
        file.write(f"{item}\\n")
    if how == "middle" and item == 5:
        ready.touch()
        (one,) = session.Session._all.values()
        one.heartbeat.is_back.wait(60)
        assert not one.is_away, "the daemon answers in the middle of the fill"
    if how == "slow":
        time.sleep(0.02)
    return np.full(100, item)

options = {"code": None, "version": 1, "progress": False, "lazy": how == "lazy"}
if how == "stream":
    data = prepcache.CachedIterableDataset(lambda: iter(range(count)), made, **options)
else:
    data = prepcache.CachedDataset(range(count), made, **options)
assert [int(sample[0]) for sample in data] == list(range(count))
if how == "slow":
    for one in session.Session._all.values():
        if one.is_away:
            one.heartbeat.is_back.wait(60)  # else it may end before it has looked for the daemon again
print(len(list(prepcache.Client().entries())) if how == "middle" else data.report().hit)
if how in ("lazy", "stream"):
    atexit.register(ready.touch)
"""


@pytest.fixture
def box(box: Sandbox) -> Sandbox:
    (box.folder / "job.py").write_text(JOB)
    (box.folder / "sitecustomize.py").write_text(HOLD_BACK)
    return box


def start(box: Sandbox, how: str, count: int, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(box.folder / "job.py"), how, str(count)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=box.environ_of("job.py") | environ, cwd=box.folder, **pipes)


def held_back(box: Sandbox) -> dict[str, str]:
    """The environment of a job whose daemon answers when there is a file `ready`."""
    return {"PYTHONPATH": f"{box.folder}:{NO_TORCH}", "READY": str(box.folder / "ready")}


def ended(job: subprocess.Popen[str]) -> tuple[str, str]:
    said, told = job.communicate(timeout=120)
    assert job.returncode == 0, told
    return said.strip(), told


def calls(box: Sandbox) -> Counter[str]:
    path = box.folder / "calls"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def hits_of_the_next_job(box: Sandbox, count: int) -> int:
    return int(ended(start(box, "look", count))[0])


@pytest.mark.nightly(daily=["middle"])
@pytest.mark.parametrize("when", ["middle", "lazy", "stream"])
def test_what_is_made_while_the_daemon_starts_is_stored(box, when):
    said, told = ended(start(box, when, 20, **held_back(box)))
    assert when != "middle" or int(said) > 0, "there are entries as soon as the fill is over"
    assert "cannot be reached" not in told
    assert hits_of_the_next_job(box, 20) == 20
    assert set(calls(box).values()) == {1}


@pytest.mark.nightly(daily=["killed"])
@pytest.mark.parametrize("what", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_jobs_share_again_when_the_daemon_answers_again(box, what):
    ended(start(box, "look", 1))
    pid = int((box.folder / "cache" / "prepcache" / "start.lock").read_text())
    jobs = [start(box, "slow", 150) for _ in range(2)]
    assert wait_until(lambda: calls(box).total() > 5)
    os.kill(pid, what)
    if what == signal.SIGSTOP:
        assert wait_until(lambda: len(calls(box)) == 150), "they go on"
        os.kill(pid, signal.SIGCONT)
    for job in jobs:
        ended(job)
    assert hits_of_the_next_job(box, 150) == 150
    assert max(calls(box).values()) <= 2, "a job makes an item once"


BUCKET = """
import prepcache
from prepcache.daemon import waits
waits.PROCESS.__init__(240.0)

def made(item):
    with open("calls", "a") as file:
        file.write(f"{item}\\n")
    return item

print(prepcache.CachedDataset(range(256), made, progress=False).report().computed)
"""


def test_a_job_that_starts_its_daemon_takes_from_the_bucket(box):
    (box.folder / "bucket.py").write_text(BUCKET)
    (box.folder / "bucket").mkdir()
    tier = {"PREPCACHED_TIER": f"file://{box.folder}/bucket"}
    assert box.python("bucket.py", environ=tier).stdout == "256\n"
    box.python("-m", "prepcached", "stop", environ=tier)
    fresh = {**tier, "XDG_CACHE_HOME": str(box.folder / "fresh")}
    assert box.python("bucket.py", environ=fresh).stdout == "0\n"
    box.python("-m", "prepcached", "stop", environ=fresh)
    assert len(calls(box)) == calls(box).total() == 256


OBSERVED = """
import os, pathlib, prepcache
from prepcache.daemon import waits
waits.FIRST_SHARE, waits.HANDOVER_S = 0.01 if "READY" in os.environ else 1.0, 60.0
waits.PROCESS.__init__(240.0)
words = pathlib.Path("words.txt")
def read(number): return [number, words.read_text()]
for text in ("one", "two"):
    words.write_text(text)
    ds = prepcache.CachedDataset(range(5), read)
    print(ds.report().computed, ds[0])
pathlib.Path("ready").touch()
"""


def test_what_waits_for_a_daemon_keeps_what_it_observed(box):
    """Both are stored when the daemon answers, each for what the file said."""
    (box.folder / "observed.py").write_text(OBSERVED)
    for made, environ in ((5, held_back(box)), (0, {})):
        said = box.python("observed.py", environ=environ).stdout.splitlines()
        assert said == [f"{made} [0, 'one']", f"{made} [0, 'two']"]
