"""Jobs that train from the first second: python -m benchmarks.lazy [--items 400]

K jobs open the same cold data with `lazy=True` and train at once, each in an order of its own, with two
DataLoader workers. An item waits for I/O, 10 to 30 ms, and a step takes as long as a worker needs for its
batch. Shown is when the last job has ended, beside a job that prepares for itself and then trains; how often
the function was called for an item; and the first batch, beside that of a DataLoader without a cache. With
`--full`, four jobs that do nothing but load go through data of twice the cache three times, with
`CachedFirstSampler`, beside a plain DataLoader without a cache. The data is three times as large: an epoch of
a plain loader takes 12 s. (Of 400 items, the jobs' workers have 256 in hand at once, and an epoch takes 4 s.)
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from benchmarks import compile_sources  # noqa: E402
from support.jobs import Jobs  # noqa: E402
from support.sandbox import sandbox  # noqa: E402

AIM_MAKESPAN, AIM_FIRST_S, AIM_FULL = 0.6, 1.0, 0.55
KEPT, SHARED = (0.5 + 3 * 4 * 0.5) / (3 * 4), (1 + 2 * 0.5) / (3 * 4)
"""Of the calls without a cache: half of the items once, and the others by each of four jobs in each epoch; or
all items once, and the half that had to give way once more for all jobs in each later epoch."""
FULL_TIMES_ITEMS = 3
"""How many times the items `--full` takes."""
BATCH = 16
ROW_BYTES = 64 << 10
STEP_S = 0.01
"""Of a sample: what its preprocessing takes, of 20 ms on the mean, by two workers."""

JOB = """
import resource
import torch
from torch.utils.data import DataLoader

how, items, epochs, batch, row_bytes = sys.argv[1], *map(int, sys.argv[2:6])
step_s = float(sys.argv[6])

def cost_s(item):
    return 0.01 + 0.02 * (item * 7919 % 1000) / 999

def make(item):
    called(item)
    time.sleep(cost_s(item))
    return torch.full((row_bytes,), item % 251, dtype=torch.uint8), item

class Plain(torch.utils.data.Dataset):
    def __len__(self):
        return items

    def __getitem__(self, at):
        return make(at)

def spent_s():
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in both)

def main():
    torch.manual_seed(os.getpid())
    barrier()
    spent_before_s = spent_s()
    began, first_s, first_cpu_s = time.perf_counter(), 0.0, 0.0
    if how == "plain":
        ds = Plain()
    else:
        lazy = how != "prepare"
        ds = prepcache.CachedDataset(range(items), make, version="1", code=None, lazy=lazy, progress=False)
    chosen = {"shuffle": True}
    if how == "cached first":
        chosen = {"sampler": prepcache.CachedFirstSampler(ds)}
    for epoch in range(epochs):
        seen = []
        for rows, numbers in DataLoader(ds, batch_size=batch, num_workers=2, **chosen):
            if not first_s:
                first_s = time.perf_counter() - began - sum(map(cost_s, numbers.tolist()))
                first_cpu_s = spent_s() - spent_before_s
            assert (rows[:, 0] == numbers % 251).all()
            seen += numbers.tolist()
            time.sleep(step_s * len(numbers))
        assert sorted(seen) == list(range(items))
    tell(first_s=first_s, first_cpu_s=first_cpu_s, ended=time.time())

if __name__ == "__main__":
    main()
"""


def run(
    how: str, count: int, items: int, epochs: int = 1, step_s: float = STEP_S, **daemon: str
) -> tuple[float, Any, float, float]:
    """The wall until the last job has ended, the calls, and the slowest first batch beyond its cost: seconds,
    and processor time of the job without its workers.

    Args:
        step_s: what training takes a sample.
        daemon: variables that the daemon is started with.
    """
    with sandbox() as box:
        jobs = Jobs(box)
        box.python(
            "-c", "import prepcache; prepcache.CachedDataset([1], abs, progress=False)", environ=daemon
        )
        script = jobs.write(JOB)
        arguments = (how, items, epochs, BATCH, ROW_BYTES, step_s)
        running = [jobs.start(script, *arguments) for _ in range(count)]
        for one in running:
            one.ready()
        began = time.time()
        for one in running:
            one.go()
        facts = [one.facts() for one in running]
        wall_s = max(fact["ended"] for fact in facts) - began
        first_s, first_cpu_s = (max(fact[name] for fact in facts) for name in ("first_s", "first_cpu_s"))
        return wall_s, jobs.calls(), first_s, first_cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--full", action="store_true", help="data of twice the cache, too")
    asked = parser.parse_args()
    compile_sources()
    alone_s, *_ = run("prepare", 1, asked.items)
    *_, plain_first_s, plain_cpu_s = run("plain", asked.jobs, asked.items)
    wall_s, calls, first_s, first_cpu_s = run("lazy", asked.jobs, asked.items)
    _tell(f"{asked.jobs} lazy jobs: {wall_s:.1f} s", wall_s / alone_s, AIM_MAKESPAN, f"of {alone_s:.1f} s")
    most = max(calls.values())
    print(f"calls: {calls.total()} for {asked.items} items, at most {most} for one, {_verdict(most, 1)}")
    beyond_s = first_s - plain_first_s
    more_s = first_cpu_s - plain_cpu_s
    print(f"first batch: {beyond_s:.2f} s later than without a cache, {_verdict(beyond_s, AIM_FIRST_S)}")
    print(f"    for {more_s:.2f} s of processor time in the job, which is what it takes of an idle machine")
    if asked.full:
        items = FULL_TIMES_ITEMS * asked.items
        room = {"PREPCACHED_MAX_BYTES": str(items * ROW_BYTES // 2), "PREPCACHED_MIN_FREE": "0"}
        plain_s, plain_calls, *_ = run("plain", 4, items, 3, step_s=0.0)
        full_s, calls, *_ = run("cached first", 4, items, 3, step_s=0.0, **room)
        _tell(f"4 jobs, twice the cache: {full_s:.1f} s", full_s / plain_s, AIM_FULL, f"of {plain_s:.1f} s")
        share = calls.total() / plain_calls.total()
        print(f"{calls.total()} items made, {share:.2f} of {plain_calls.total()}; in theory {KEPT:.2f} where")
        print(f"    half is kept and each job makes the rest, {SHARED:.2f} where one makes it for all")


def _tell(what: str, share: float, aim: float, of: str) -> None:
    print(f"{what}, {share:.2f} {of}, {_verdict(share, aim)}")


def _verdict(share: float, aim: float) -> str:
    return f"within {aim}" if share <= aim else f"OVER {aim}"


if __name__ == "__main__":
    main()
