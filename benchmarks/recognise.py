"""What it costs to recognise unchanged files, and to hash new ones, as ratios measured in the same run.

    python -m benchmarks.recognise [--files 100000] [--megabytes 1024] [--repeat 5]

Recognising is compared with a bare loop of `os.stat` over the same paths, in fresh processes that load the
memo from the disk; hashing with `b3sum --num-threads` over the same files, from the page cache. Rounds are
interleaved; medians are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RECOGNISE = """
import os, sys, time
from pathlib import Path
from prepcache.keys.items import ItemHasher
from prepcache.keys.files.stat_cache import StatCache
import numpy

folder, count, memo, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
names = [f"{folder}/{i // 1000:04d}/{i:07d}.txt" for i in range(count)]
items = {"str": lambda: names, "Path": lambda: [Path(n) for n in names],
         "(Path, int)": lambda: [(Path(n), i) for i, n in enumerate(names)],
         "dict": lambda: [{"image": n, "label": i} for i, n in enumerate(names)]}[kind]()
bare = [Path(n) for n in names] if "Path" in kind else names
start = time.perf_counter()
for path in bare:
    os.stat(path)
stat_s = time.perf_counter() - start
hasher = ItemHasher(stat_cache=StatCache(memo, window_ns=lambda device: -(10**20)))
hasher.says_text_files = False
start = time.perf_counter()
_, stamps = hasher.digest_many(items)
print(stat_s, time.perf_counter() - start, stamps.files_read, stamps.nbytes / count)
"""

TIMED = """
import resource, subprocess, sys, time
from prepcache import CachedDataset
from prepcache.keys.files.digest import read_files

def own(threads, *names):
    read_files(names, None, int(threads))

def b3sum(*arguments):
    subprocess.run(["b3sum", "--num-threads", *arguments], stdout=subprocess.DEVNULL, check=True)

def on_cores():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)

start, cpu = time.perf_counter(), on_cores()
globals()[sys.argv[1]](*sys.argv[2:])
print(time.perf_counter() - start, on_cores() - cpu)
"""
"""`CachedDataset`, for what a job has imported anyway. Its time on the clock and, with children, on cores."""


def numbers(script: str, *arguments: str) -> list[float]:
    """What a script prints, run in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, check=True, text=True
    )
    return [float(word) for word in run.stdout.split()]


def recognise(folder: Path, count: int, repeat: int) -> None:
    for i in range(count):
        path = folder / f"{i // 1000:04d}" / f"{i:07d}.txt"
        if i % 1000 == 0:
            path.parent.mkdir()
        path.write_text(f"file {i}\n")
    memo = str(folder / "memo")
    kinds = ("str", "Path", "(Path, int)", "dict")
    numbers(RECOGNISE, str(folder), str(count), memo, "str")
    rounds = [
        [numbers(RECOGNISE, str(folder), str(count), memo, kind) for kind in kinds] for _ in range(repeat)
    ]
    for kind, rows in zip(kinds, zip(*rounds, strict=True), strict=True):
        assert all(row[2] == 0 for row in rows), "a file was read again"
        stat_s, own_s = (statistics.median(row[i] for row in rows) for i in (0, 1))
        ratio = statistics.median(row[1] / row[0] for row in rows)
        print(
            f"{count:,} items, {kind:12} os.stat {stat_s:.3f} s   recognised {own_s:.3f} s"
            f"   {ratio:.2f} times   {rows[0][3]:.0f} bytes an item"
        )


def hash_files(folder: Path, megabytes: int, repeat: int) -> None:
    sizes = {"16 files": [megabytes // 16] * 16, "1 file": [megabytes]}
    for label, parts in sizes.items():
        names = [str(folder / f"{label} {i}") for i in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            with open(name, "wb") as file:
                for _ in range(part):
                    file.write(os.urandom(1 << 20))
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            ratios = []
            for _ in range(repeat):
                own, b3sum = (numbers(TIMED, who, str(threads), *names) for who in ("own", "b3sum"))
                ratios.append([theirs / ours for theirs, ours in zip(b3sum, own, strict=True)])
            speed, cpu = map(statistics.median, zip(*ratios, strict=True))
            print(
                f"{label} of {megabytes} MB in all, {threads} threads: {speed:.2f} of the speed of b3sum,"
                f" {cpu:.2f} by time on cores"
            )
        for name in names:
            Path(name).unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        recognise(Path(name), given.files, given.repeat)
        if shutil.which("b3sum"):
            hash_files(Path(name), given.megabytes, given.repeat)
        else:
            print("b3sum is not installed: hashing is not compared")


if __name__ == "__main__":
    main()
