"""Chaos: jobs and daemon killed at random, too small a budget, a purger: every job ends with right samples.

Bounded and seeded. `make soak` plays longer, with more seeds.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import ExitStack

import pytest

from support import serving
from support.jobs import Jobs, Running

JOB = """
wait = threading.Event()

def make(item):
    called(item)
    wait.wait(0.004)
    return np.full(1000, item), str(item) * (item % 5)

def check(ds, items):
    for start in range(0, len(items), 32):
        batch = ds.__getitems__(list(range(start, min(start + 32, len(items)))))
        for (row, text), item in zip(batch, items[start:]):
            assert (row == item).all() and text == str(item) * (item % 5), item

def main():
    items = json.loads(sys.argv[1])
    kind = sys.argv[2]
    barrier()
    workers = 2 if kind == "workers" else 0
    ds = prepcache.CachedDataset(items, make, untracked=("wait",), num_workers=workers, lazy=kind == "lazy",
                                 code=None, version="1", progress=False)
    for epoch in range(2):
        check(ds, items)
    if kind == "purger":
        try:
            prepcache.Client().purge(everything=True)
        except prepcache.PrepcacheError:
            pass
        check(ds, items)
    tell(ds)

if __name__ == "__main__":
    main()
"""

SETS = [list(range(300)), list(range(399, 99, -1)), list(range(200, 500))]
KINDS = ["plain", "workers", "lazy", "purger"]


class Chaos:
    """Jobs and a daemon, and what may befall them."""

    def __init__(self, jobs: Jobs, seed: int) -> None:
        self.jobs = jobs
        self.random = random.Random(seed)
        self.script = jobs.write(JOB)
        self.url = f"unix://{jobs.box.folder}/s.sock"
        self.running: list[Running] = []
        self.daemon = ExitStack()
        self.start_daemon()

    def start_daemon(self) -> None:
        options = ("--max-bytes", "2500000", "--min-free", "0")
        self.daemon.enter_context(serving.process(self.jobs.box.folder, *options))

    def kill_daemon(self) -> None:
        self.daemon.close()
        self.start_daemon()

    def start_job(self) -> None:
        items, kind = self.random.choice(SETS), self.random.choice(KINDS)
        job = self.jobs.start(self.script, json.dumps(items), kind, PREPCACHE_URL=self.url)
        job.ready()
        job.go()
        self.running.append(job)

    def kill_job(self) -> None:
        alive = [job for job in self.running if job.process.poll() is None]
        if alive:
            victim = self.random.choice(alive)
            victim.process.kill()
            victim.process.communicate()
            self.running.remove(victim)
        self.start_job()

    def some_work(self) -> None:
        """Waits until some more items were made, or nobody makes any."""
        enough = self.jobs.calls().total() + self.random.randrange(20, 150)

        def is_enough() -> bool:
            is_idle = all(job.process.poll() is not None for job in self.running)
            return is_idle or self.jobs.calls().total() >= enough

        serving.wait_until(is_enough, 5.0)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 8), *(pytest.param(seed, 60, marks=pytest.mark.soak) for seed in range(2, 12))],
)
def test_random_kills_leave_right_samples_and_nothing_behind(jobs: Jobs, seed: int, steps: int) -> None:
    chaos = Chaos(jobs, seed)
    with chaos.daemon:
        for _ in range(4):
            chaos.start_job()
        for _ in range(steps):
            chaos.some_work()
            chaos.random.choice([chaos.kill_job, chaos.kill_job, chaos.kill_daemon])()
        for job in chaos.running:
            job.facts()
        staging = jobs.box.folder / "root" / "v1" / "staging"
        assert serving.wait_until(lambda: not list(staging.iterdir()), 40), "no staged file is left"
    check = subprocess.run(
        [sys.executable, "-m", "prepcached", "check", "--root", str(jobs.box.folder / "root")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert check.returncode == 0, check.stdout + check.stderr
