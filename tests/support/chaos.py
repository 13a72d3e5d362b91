"""Chaos: jobs over overlapping data, and somebody who kills, stops, purges and restarts at random.

What happens is drawn from a seed; when it happens follows the jobs' own progress (lines in a log), not the
wall clock. Every job has a process group of its own, so that nothing it leaves behind is overlooked.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prepcache.daemon.client import Client
from prepcache.errors import PrepcacheError
from support import serving
from support.chaos_jobs import DIED, JOB, KINDS
from support.sandbox import Sandbox

STEP_LIMIT_S = 0.5
"""The next event comes after so long even if no job makes progress."""
END_LIMIT_S = 120.0
STALL_S = 17.0
"""Longer than a lease lives without a beat."""
DAEMON_COUNTS = ("commits", "declined", "evictions", "merges")
"""What a daemon counts from its start, as its statistics name it."""


@dataclass
class Job:
    """One of the six: started again until it has ended well."""

    kind: str
    items: tuple[int, int]
    process: subprocess.Popen[bytes] | None = None
    groups: list[int] = field(default_factory=list)
    is_killed: bool = False
    ended: int = 0

    @property
    def pid(self) -> int:
        return 0 if self.process is None else self.process.pid


def members(groups: set[int]) -> dict[int, int]:
    """The living processes of some process groups, and the group of each."""
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, _, group = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) in groups and state != "Z":
                found[int(name)] = int(group)
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
        self.tally: Counter[str] = Counter()
        self._stalled: dict[int, float] = {}
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
        self._deck: list[Callable[[], None]] = []
        self.start_daemon()

    # -- the daemon

    def start_daemon(self) -> None:
        self.daemon = self._daemon.enter_context(serving.process(self.box.folder, *self._options))

    def kill_daemon(self) -> None:
        self._note_counts()
        self._daemon.close()

    def stop_daemon(self) -> None:
        self._note_counts()
        self.daemon.terminate()
        assert self.daemon.wait(serving.READY_S) == 0
        self._daemon.close()

    def _note_counts(self) -> None:
        with contextlib.closing(Client(self.url)) as client:
            stats = client.stats()
        self.tally.update({name: stats[name] for name in DAEMON_COUNTS})

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
            self._note_end(job)
            self.start(job)

    def _note_end(self, job: Job) -> None:
        assert job.process is not None
        code = job.process.returncode
        job.ended += code == 0
        self.tally[{0: "jobs ended well", DIED: "jobs whose worker was killed"}.get(code, "jobs killed")] += 1

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
            self._next_event()()
            self.look_after()
        self.events.append("the end")
        self._stalled.clear()
        self._go_on()
        for job in self.jobs:
            self._finish(job)

    def _next_event(self) -> Callable[[], None]:
        """Drawn like cards, so that even a short run sees the rare ones."""
        if not self._deck:
            self._deck = (
                4 * [self._kill_job, self._kill_worker, self._purge_one]
                + 6 * [self._stop]
                + 10 * [self._go_on]
                + 2 * [self._verify, self._stall]
                + [self._purge_all, self._restart_daemon]
            )
            self._draw.shuffle(self._deck)
        return self._deck.pop()

    def _await_progress(self, steps: int) -> None:
        before = self._steps.stat().st_size
        serving.wait_until(lambda: self._steps.stat().st_size >= before + steps, STEP_LIMIT_S)

    def _alive(self) -> list[int]:
        """Every process of a job; a group that is empty is forgotten, for its number is soon another's."""
        found = members({group for job in self.jobs for group in job.groups})
        for job in self.jobs:
            job.groups = [group for group in job.groups if group == job.pid or group in found.values()]
        return sorted(found)

    def _tell(self, event: str) -> None:
        self.events.append(event)
        self.tally[event.partition(":")[0]] += 1

    def _kill_job(self) -> None:
        jobs = [job for job in self.jobs if job.pid not in self._stalled]
        if not jobs:
            return
        job = self._draw.choice(jobs)
        assert job.process is not None
        self._tell(f"kill a job: {job.kind} {job.items}")
        job.is_killed = True
        job.process.kill()
        job.process.wait()

    def _kill_worker(self) -> None:
        jobs = [job.pid for job in self.jobs]
        self._signal("kill a worker", signal.SIGKILL, [pid for pid in self._alive() if pid not in jobs])

    def _stop(self) -> None:
        self._signal("stop", signal.SIGSTOP, self._alive())

    def _stall(self) -> None:
        """Stops a job until its leases have lapsed."""
        jobs = [job.pid for job in self.jobs if job.pid not in self._stalled]
        pid = self._signal("stop for long", signal.SIGSTOP, jobs)
        self._stalled[pid] = time.monotonic() + STALL_S

    def _signal(self, what: str, number: signal.Signals, pids: list[int]) -> int:
        if not pids:
            return 0
        pid = self._draw.choice(pids)
        self._tell(f"{what}: {pid}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    def _go_on(self) -> None:
        self._tell("continue")
        now = time.monotonic()
        for pid in self._alive():
            if self._stalled.get(pid, now) <= now:
                self._stalled.pop(pid, None)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _purge_one(self) -> None:
        with self._asking("purge one") as client:
            keys = [entry.key for entry in client.entries()]
            if keys:
                client.purge([self._draw.choice(keys)])

    def _purge_all(self) -> None:
        with self._asking("purge all") as client:
            client.purge(everything=True)

    def _verify(self) -> None:
        with self._asking("verify") as client:
            assert not client.verify().bad, self.events[-12:]

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[Client]:
        """A client; counts what was done with it, or that the daemon did not answer."""
        with contextlib.closing(Client(self.url)) as client:
            try:
                yield client
                self._tell(what)
            except PrepcacheError as error:
                self._tell(f"no answer: {what}: {error}")

    def _restart_daemon(self) -> None:
        is_killed = self._draw.random() < 0.7
        self._tell("kill the daemon" if is_killed else "stop the daemon")
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
            is_hit = (code == -signal.SIGKILL and job.is_killed) or code == DIED
            assert code == 0 or is_hit, f"{job.kind} {job.items} ended with {code}\n{self.told(job)}"
            self._note_end(job)
            if code == 0:
                return
            self.start(job)

    def close(self) -> None:
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for job in self.jobs:
            if job.process is not None:
                job.process.wait()
        self._daemon.close()

    def stacks(self) -> str:
        """What the processes that are left are at: their threads write it into their jobs' logs."""
        left = self._alive()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
        serving.wait_until(self.is_quiet, 1)  # they write, and stay
        states = [Path(f"/proc/{pid}/status").read_text() for pid in left if Path(f"/proc/{pid}").exists()]
        return "\n".join([*states, *map(self.told, self.jobs)])

    def is_quiet(self) -> bool:
        """Whether no process of any job is left."""
        return not self._alive()
