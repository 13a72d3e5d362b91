"""Chaos: jobs over overlapping data, and somebody who kills, stops, purges and restarts at random.

What happens is drawn from a seed; when it happens follows the jobs' own progress (lines in a log), not the
wall clock. Every job has a process group of its own, so that nothing it leaves behind is overlooked.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prepcache.control.client import Client
from prepcache.errors import PrepcacheError
from support import serving
from support.jobs import PREAMBLE
from support.sandbox import Sandbox

KINDS = [("fill", 0), ("workers", 1), ("lazy", 2), ("loader", 0), ("expand", 1), ("expand", 2)]
"""The six jobs: how each works, and on which of the three data sets."""
JOB = (
    PREAMBLE
    + """
import random

wait = threading.Event()
DIED = 75

def step():
    fd = os.open(os.environ["CALL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"x")
    os.close(fd)

def sample(item):
    return np.random.default_rng(item).integers(0, 256, (3, 32, 32), np.uint8), item

def make(item):
    wait.wait(0.002 + item % 5 / 500)
    step()
    return sample(item)

def parts(item):
    for number in range(item % 4):
        yield sample(1000 * item + number)

def expand(item):
    wait.wait(0.005)
    step()
    yield from parts(item)

def same(got, want):
    assert got[0].dtype == want[0].dtype and np.array_equal(got[0], want[0]), want[1]
    assert got[1] == want[1], (got[1], want[1])

def epoch(ds, want, order):
    for start in range(0, len(order), 32):
        for at, got in zip(order[start : start + 32], ds.__getitems__(order[start : start + 32])):
            same(got, want[at])
        step()

def loaded(ds, want):
    from torch.utils.data import DataLoader

    seen = []
    for values, items in DataLoader(ds, batch_size=32, shuffle=True, num_workers=2):
        step()
        for value, item in zip(values.numpy(), items.tolist()):
            same((value, item), sample(item))
            seen.append(item)
    assert sorted(seen) == sorted(item for _, item in want)

def main():
    kind, items, seed, rounds = sys.argv[1], range(*map(int, sys.argv[2].split(","))), *map(int, sys.argv[3:])
    draw = random.Random(seed)
    for _ in range(rounds):
        mine = draw.sample(items, len(items))
        if kind == "expand":
            want = [row for item in mine for row in parts(item)]
            ds = prepcache.CachedDataset(mine, expand, expand=True, untracked=("wait",), progress=False)
        else:
            want = [sample(item) for item in mine]
            options = {"num_workers": 2 * (kind == "workers"), "lazy": kind == "lazy", "progress": False}
            ds = prepcache.CachedDataset(mine, make, untracked=("wait",), **options)
        assert len(ds) == len(want)
        for _ in range(2):
            if kind in ("lazy", "loader"):
                loaded(ds, want)
            else:
                epoch(ds, want, draw.sample(range(len(want)), len(want)))

if __name__ == "__main__":
    try:
        main()
    except (prepcache.PrepcacheError, RuntimeError, ConnectionError, EOFError) as error:
        if "died" in str(error) or "killed" in str(error) or "exited unexpectedly" in str(error):
            print(error, file=sys.stderr)
            sys.exit(DIED)  # a worker of this job was killed: the job says so and ends
        raise
"""
)
DIED = 75
STEP_LIMIT_S = 0.5
"""The next event comes after so long even if no job makes progress."""
END_LIMIT_S = 120.0


@dataclass
class Job:
    """One of the six: started again until it has ended well."""

    kind: str
    items: tuple[int, int]
    process: subprocess.Popen[bytes] | None = None
    groups: list[int] = field(default_factory=list)
    is_killed: bool = False
    ended: int = 0


def members(groups: set[int]) -> list[int]:
    """The living processes of some process groups."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, _, group = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) in groups and state != "Z":
                found.append(int(name))
    return found


class Chaos:
    """The six jobs, their daemon, and what befalls them.

    Args:
        seed: of everything that is drawn.
        span: items of one data set; the next begins half a span later.
        rounds: how often a job opens its data set anew.
        budget_bytes: of the cache.
    """

    def __init__(self, box: Sandbox, seed: int, *, span: int, rounds: int, budget_bytes: int) -> None:
        self.box = box
        self.events: list[str] = []
        self._draw = random.Random(seed)
        self._rounds = rounds
        self._options = ("--max-bytes", str(budget_bytes), "--min-free", "0")
        self._script = box.folder / "job.py"
        self._script.write_text(JOB)
        self._steps = box.folder / "steps"
        self._steps.touch()
        self.temporary = box.folder / "tmp"
        self.temporary.mkdir()
        self.url = f"unix://{box.folder}/s.sock"
        self._daemon = contextlib.ExitStack()
        self.jobs = [Job(kind, (at * span // 2, at * span // 2 + span)) for kind, at in KINDS]
        self.start_daemon()

    # -- the daemon

    def start_daemon(self) -> None:
        self.daemon = self._daemon.enter_context(serving.process(self.box.folder, *self._options))

    def kill_daemon(self) -> None:
        self._daemon.close()

    def stop_daemon(self) -> None:
        self.daemon.terminate()
        assert self.daemon.wait(serving.READY_S) == 0
        self._daemon.close()

    # -- the jobs

    def start(self, job: Job) -> None:
        environ = self.box.environ | {
            "CALL_LOG": str(self._steps), "PREPCACHE_URL": self.url, "TMPDIR": str(self.temporary)
        }  # fmt: skip
        seed = self._draw.randrange(1 << 30)
        command = [sys.executable, str(self._script), job.kind, "{},{}".format(*job.items)]
        with open(self._error_log(job), "ab") as log:
            job.process = subprocess.Popen(
                [*command, str(seed), str(self._rounds)], env=environ, cwd=self.box.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        job.groups.append(job.process.pid)
        job.is_killed = False

    def look_after(self) -> None:
        """Starts ended jobs again; one that ended in a way that nothing here explains fails the test."""
        for job in self.jobs:
            if job.process is None or job.process.poll() is None:
                continue
            code = job.process.returncode
            is_explained = code == 0 or (code == -signal.SIGKILL and job.is_killed) or code == DIED
            assert is_explained, f"{job.kind} {job.items} ended with {code}\n{self.told(job)}"
            job.ended += code == 0
            self.start(job)

    def _error_log(self, job: Job) -> Path:
        return self.box.folder / f"job{self.jobs.index(job)}.log"

    def told(self, job: Job) -> str:
        """What a failure needs: the last events, and the last lines of job and daemon."""
        logs = [self._error_log(job).read_text()[-3000:], (self.box.folder / "log").read_text()[-3000:]]
        return "\n".join([f"after {self.events[-12:]}", *logs])

    # -- what befalls them

    def run(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Chaos for so long; then all is let go on, and every job is run until it ends well."""
        for job in self.jobs:
            self.start(job)
        until = clock() + seconds
        while clock() < until:
            self._await_progress(self._draw.randint(5, 120))
            events = [self._kill_job, self._kill_worker, self._stop, self._stop, self._go_on, self._go_on]
            event = self._draw.choice([*events, self._purge, self._restart_daemon])
            event()
            self.look_after()
        self.events.append("the end")
        self._go_on()
        for job in self.jobs:
            self._finish(job)

    def _await_progress(self, steps: int) -> None:
        before = self._steps.stat().st_size
        serving.wait_until(lambda: self._steps.stat().st_size >= before + steps, STEP_LIMIT_S)

    def _alive(self) -> list[int]:
        return sorted(members({group for job in self.jobs for group in job.groups}))

    def _kill_job(self) -> None:
        job = self._draw.choice(self.jobs)
        assert job.process is not None
        self.events.append(f"kill {job.kind} {job.items}")
        job.is_killed = True
        job.process.kill()
        job.process.wait()

    def _kill_worker(self) -> None:
        self._signal(
            "kill a worker of", signal.SIGKILL, [job.process.pid for job in self.jobs if job.process]
        )

    def _stop(self) -> None:
        self._signal("stop", signal.SIGSTOP, [])

    def _signal(self, what: str, number: signal.Signals, spared: list[int]) -> None:
        alive = [pid for pid in self._alive() if pid not in spared]
        if alive:
            pid = self._draw.choice(alive)
            self.events.append(f"{what} {pid}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _go_on(self) -> None:
        self.events.append("continue")
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _purge(self) -> None:
        """One entry, or now and then everything; half of what is purged is looked through before."""
        client = Client(self.url)
        with contextlib.closing(client):
            try:
                if self._draw.random() < 0.5:
                    assert not client.verify().bad, self.events[-12:]
                keys = [entry.key for entry in client.entries()]
                if keys and self._draw.random() < 0.8:
                    client.purge([self._draw.choice(keys)])
                    self.events.append("purge one")
                else:
                    client.purge(everything=True)
                    self.events.append("purge all")
            except PrepcacheError as error:
                self.events.append(f"purge: {error}")

    def _restart_daemon(self) -> None:
        is_killed = self._draw.random() < 0.7
        self.events.append("kill the daemon" if is_killed else "stop the daemon")
        if is_killed:
            self.kill_daemon()
        else:
            self.stop_daemon()
        self._await_progress(self._draw.randint(1, 30))
        self.start_daemon()

    # -- the end

    def _finish(self, job: Job) -> None:
        assert job.process is not None
        while True:
            code = job.process.wait(END_LIMIT_S)
            if code == 0:
                job.ended += 1
                return
            was_hit = (code == -signal.SIGKILL and job.is_killed) or code == DIED
            assert was_hit, f"{job.kind} {job.items} ended with {code}\n{self.told(job)}"
            self.start(job)

    def close(self) -> None:
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for job in self.jobs:
            if job.process is not None:
                job.process.wait()
        self._daemon.close()

    def is_quiet(self) -> bool:
        """Whether no process of any job is left."""
        return not self._alive()
