"""What a start and an outage of the daemon cost jobs on a busy machine.

    python -m benchmarks.busy [--quick] [--out FILE]

Two processes spin on the machine's cores while four jobs that nobody has started a daemon for open the same
cold data at once. The function waits for I/O, 0.05 to 0.2 s an item. Told are: how often a job said that the
daemon cannot be reached, the calls beyond one an item, what the next job makes again, and the wall of four
jobs as a share of one job's on the same busy machine.

Then four jobs fill twice as many items while the daemon is stopped for seven seconds (SIGSTOP), and while
it is killed and has to be started again. Told are: seconds from the daemon's first answer until the last
job shares again, and the calls beyond one an item: what was under lease, and what two jobs made meanwhile.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from prepcache.protocol.places import own_root, own_socket  # noqa: E402
from support.sandbox import Sandbox, sandbox  # noqa: E402

JOBS = 4
SPINNERS = 2
STOPPED_S = 7.0
"""Longer than an outage may cost a job: it goes on without the daemon for some seconds."""

JOB = """
import os, sys, time
import numpy as np
from prepcache import CachedDataset
from prepcache.daemon.session import Session

def read(item):
    with open("calls", "a") as file:
        file.write(f"{item}\\n")
    time.sleep(0.05 + 0.15 * (item * 7919 % 1000) / 999)
    return np.full((3, 64, 64), item % 251, np.uint8)

class Noting:
    def on_return(self):
        with open("returns", "a") as file:
            file.write(f"{time.monotonic()}\\n")

noting, true = Noting(), Session.current.__func__

def current(kind, client):
    session = true(kind, client)
    session.listen(noting)
    return session

Session.current = classmethod(current)
began = time.monotonic()
data = CachedDataset(range(int(sys.argv[1])), read, code=None, version=1, untracked=())
print(time.monotonic() - began)
"""


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """A machine whose cores others use."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(SPINNERS)]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def start(box: Sandbox, items: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", JOB, str(items)]
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read when the job has ended
    job = subprocess.Popen(
        command, env=box.environ, cwd=box.folder, stdout=subprocess.PIPE, stderr=said, text=True
    )
    job.said = said  # type: ignore[attr-defined]
    return job


def ended(job: Any) -> tuple[float, str]:
    """The seconds that its opening took, and what it said."""
    out, _ = job.communicate()
    job.said.seek(0)
    said = job.said.read()
    job.said.close()
    if job.returncode or not out:
        raise SystemExit(f"a job ended with exit code {job.returncode}, and printed {out!r}:\n{said}")
    return float(out), said


def calls(box: Sandbox) -> Counter[str]:
    path = box.folder / "calls"
    made = Counter(path.read_text().split()) if path.exists() else Counter()
    path.unlink(missing_ok=True)
    return made


def cold(items: int) -> dict[str, Any]:
    """Jobs without a daemon, on a busy machine."""
    with busy(), sandbox() as box:
        one_s, _ = ended(start(box, items))
    with busy(), sandbox() as box:
        told = [ended(job) for job in [start(box, items) for _ in range(JOBS)]]
        made = calls(box)
        ended(start(box, items))
        again = calls(box)
    wall_s = max(took_s for took_s, _ in told)
    return {
        "one job s": one_s,
        "four jobs s": wall_s,
        "share of one job": wall_s / one_s,
        "said that it cannot be reached": sum("cannot be reached" in said for _, said in told),
        "calls beyond one an item": made.total() - items,
        "made again by the next job": again.total(),
    }


def outage(items: int, what: signal.Signals) -> dict[str, Any]:
    """The daemon is stopped for a while, or killed, while jobs fill on a busy machine."""
    with sandbox() as box:
        box.start_daemon()
        pid = int((own_root(box.environ) / "start.lock").read_text())
        with busy():
            jobs = [start(box, items) for _ in range(JOBS)]
            while not (box.folder / "calls").exists() or len(_lines(box.folder / "calls")) < items // 5:
                time.sleep(0.05)
            os.kill(pid, what)
            if what == signal.SIGSTOP:
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
            answered_at = first_answer(own_socket(box.environ), jobs)
            said = [ended(job)[1] for job in jobs]
        returns = [float(line) for line in _lines(box.folder / "returns")]
        made = calls(box)
        ended(start(box, items))
        again = calls(box)
    return {
        "s from its answer until all share": max(0.0, max(returns, default=answered_at) - answered_at),
        "calls beyond one an item": made.total() - items,
        "made again by the next job": again.total(),
        "said that it cannot be reached": sum("cannot be reached" in one for one in said),
    }


def first_answer(path: Path, jobs: list[Any]) -> float:
    """When the daemon answers."""
    while any(job.poll() is None for job in jobs):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            if probe.recv(1 << 10).startswith(b"HTTP/1.1 200"):
                return time.monotonic()
        time.sleep(0.02)
    said = "".join(ended(job)[1] for job in jobs)
    raise SystemExit(f"the daemon did not answer again before all jobs had ended:\n{said}")


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="80 items instead of 200")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    options = parser.parse_args()
    items = 80 if options.quick else 200
    found = {
        "four cold jobs": cold(items),
        "stopped for 7 s": outage(2 * items, signal.SIGSTOP),
        "killed": outage(2 * items, signal.SIGKILL),
    }
    for what, numbers in found.items():
        print(what)
        for name, number in numbers.items():
            print(f"    {name}: {number:.3f}" if isinstance(number, float) else f"    {name}: {number}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
