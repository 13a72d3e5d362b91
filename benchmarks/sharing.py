"""What sharing is worth: K jobs that open the same cold data at once, and the memory of K warm jobs.

    python -m benchmarks.sharing [--quick] [--out FOLDER]

Three ways for K jobs to get the same tensors out of a function that waits for I/O, 0.05 to 0.2 s an item:
prepcache's cooperative fill; everyone computes; one computes and the others wait. Walls are from a barrier
after the imports to the last job's last item, as shares of what one job takes. Memory is PSS (a page that n
processes map counts 1/n in each), summed over K jobs that read all samples: mapped, and loaded by each.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from benchmarks import compile_sources  # noqa: E402
from support.sandbox import Sandbox, sandbox  # noqa: E402

COUNTS = (2, 4, 8)
TARGET = 1.15
"""K jobs need at most so many K-th parts of one job's wall."""

JOB = """
import fcntl, json, os, sys, time
import numpy as np
from prepcache import CachedDataset

def read(item):
    time.sleep(0.05 + 0.15 * (item * 7919 % 1000) / 999)
    return np.full((3, 64, 64), item % 251, np.uint8)

def make(item):
    return np.full((3, 128, 128), item % 251, np.uint8)

how, count = sys.argv[1], int(sys.argv[2])
order = np.random.default_rng(os.getpid()).permutation(count).tolist()
print("ready", flush=True)
sys.stdin.readline()
if how in ("map", "load"):
    ds = CachedDataset(range(count), make, progress=False)
    if how == "load":
        held = [ds[at] for at in range(count)]
        del ds
    else:
        for start in range(0, count, 256):
            for sample in ds.__getitems__(order[start : start + 256]):
                assert sample[0, 0, 0] == sample[-1, -1, -1]
elif how == "wait":
    with open("lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ds = CachedDataset(order, read, progress=False)
        fcntl.flock(lock, fcntl.LOCK_UN)
elif how == "alone":
    for item in order:
        read(item)
else:
    ds = CachedDataset(order, read, progress=False)
if how in ("share", "wait"):
    assert [int(s[0, 0, 0]) for s in ds.__getitems__(list(range(count)))] == [item % 251 for item in order]
print("done", flush=True)
sys.stdin.readline()
rollup = open("/proc/self/smaps_rollup").read().splitlines()
print(json.dumps(int(next(line for line in rollup if line.startswith("Pss:")).split()[1]) * 1024), flush=True)
"""


def run(box: Sandbox, how: str, count: int, items: int) -> tuple[float, int]:
    """Seconds from the barrier to the last job's end, and the sum of their PSS while all of them live."""
    script = box.folder / "job.py"
    script.write_text(JOB)
    command = [sys.executable, str(script), how, str(items)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen(command, env=box.environ, cwd=box.folder, **pipes) for _ in range(count)
    ]  # fmt: skip
    _each(running, "ready")
    began = time.perf_counter()
    _tell(running)
    _each(running, "done")
    wall_s = time.perf_counter() - began
    _tell(running)
    pss = [json.loads(one.communicate()[0]) for one in running]
    return wall_s, sum(pss)


def _each(running: list[subprocess.Popen[str]], word: str) -> None:
    for one in running:
        assert one.stdout is not None
        line = one.stdout.readline()
        if line != word + "\n":
            raise SystemExit(f"a job said {line!r} instead of {word!r}")


def _tell(running: list[subprocess.Popen[str]]) -> None:
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()


def walls(items: int, counts: tuple[int, ...]) -> dict[str, dict[int, float]]:
    """Seconds by way and number of jobs; each run has a cold cache of its own."""
    found: dict[str, dict[int, float]] = {"one job": {}, "share": {}, "wait": {}, "alone": {}}
    for how, count in [("one job", 1), *((how, n) for how in ("share", "wait", "alone") for n in counts)]:
        with sandbox() as box:
            box.python("-c", "import prepcache; prepcache.CachedDataset([1], abs, progress=False)")
            found[how][count] = run(box, "share" if how == "one job" else how, count, items)[0]
        print(f"{how}, {count} jobs: {found[how][count]:.1f} s", file=sys.stderr, flush=True)
    return found


def memory(items: int, counts: tuple[int, ...]) -> dict[str, dict[int, int]]:
    """Bytes by way and number of jobs; the data are cached before."""
    found: dict[str, dict[int, int]] = {"map": {}, "load": {}}
    with sandbox() as box:
        run(box, "map", 1, items)
        for how in found:
            for count in (1, *counts):
                found[how][count] = run(box, how, count, items)[1]
                print(f"{how}, {count} jobs: {found[how][count] / 1e6:.0f} MB", file=sys.stderr, flush=True)
    return found


def plot(found: dict[str, Any], path: Path) -> None:
    """Walls on the left, memory on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    one_s = found["walls_s"]["one job"][1]
    names = {"alone": "everyone computes", "wait": "one computes, others wait", "share": "prepcache"}
    for how, name in names.items():
        points = {1: one_s} | found["walls_s"][how]
        left.plot(list(points), [wall / one_s for wall in points.values()], "o-", label=name)
    counts = [1, *found["walls_s"]["share"]]
    left.plot(counts, [TARGET / n if n > 1 else 1 for n in counts], "k:", label=f"{TARGET}/K")
    left.set(xlabel="jobs K", ylabel="wall, of one job's", ylim=(0, None), title=f"cold fill, {one_s:.0f} s")
    for how, name in {"load": "each loads the tensors", "map": "prepcache"}.items():
        points = found["pss_bytes"][how]
        right.plot(list(points), [n / 1e6 for n in points.values()], "o-", label=name)
    size = found["data_bytes"] / 1e6
    right.set(
        xlabel="jobs K", ylabel="PSS of all jobs, MB", ylim=(0, None), title=f"warm, {size:.0f} MB of data"
    )
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.set_xticks(counts)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fill of 8 s instead of 60, and 20 MB of data")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of sharing.json and sharing.png")
    asked = parser.parse_args()
    items, warm_items = (64, 400) if asked.quick else (500, 4000)
    compile_sources()
    found: dict[str, Any] = {
        "items": items,
        "walls_s": walls(items, COUNTS),
        "pss_bytes": memory(warm_items, COUNTS),
        "data_bytes": warm_items * 3 * 128 * 128,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "sharing.json").write_text(json.dumps(found, indent=1) + "\n")
    plot(found, asked.out / "sharing.png")
    one_s = found["walls_s"]["one job"][1]
    for count, wall_s in found["walls_s"]["share"].items():
        share = wall_s / one_s * count
        verdict = "within" if share <= TARGET else "OVER"
        print(f"{count} jobs: {share:.2f}/{count} of one job's {one_s:.1f} s ({verdict} {TARGET}/{count})")


if __name__ == "__main__":
    main()
