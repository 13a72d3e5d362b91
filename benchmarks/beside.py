"""What a job's own Python loses to hashing and writing beside it: python -m benchmarks.beside [--rounds 9]

A thread counts in plain Python for a quarter of a second, alone; beside a thread that hashes a file of 256 MB
over and over, one that writes an artifact of 256 MB and fsyncs it, one that merges it with another; and, to
show what holding the GIL looks like, one that counts too. Shown is the speed of counting, of that alone:
medians of ratios within a round. Two cores are needed for the ratios to mean something.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import compile_sources
from prepcache import artifact
from prepcache.digests import RecipeDigest
from prepcache.keys.files.digest import digest_file

SPAN_S = 0.25
FILE_BYTES, ROW_BYTES = 256 << 20, 1 << 20


def count(span_s: float) -> int:
    done, end = 0, time.perf_counter() + span_s
    while time.perf_counter() < end:
        done += 1
    return done


def writer(first: int) -> artifact.Writer:
    made = artifact.Writer(RecipeDigest("0" * 64))
    for number in range(first, first + FILE_BYTES // ROW_BYTES):
        made.add(number.to_bytes(32, "big"), [np.full(ROW_BYTES, number % 251, np.uint8)], 1.0)
    return made


def contenders(folder: Path) -> dict[str, Callable[[], object]]:
    """What goes on beside the counting; each call is one piece of work."""
    data, parts = folder / "data", [folder / "a", folder / "b"]
    data.write_bytes(os.urandom(FILE_BYTES))
    writers = [writer(0), writer(FILE_BYTES // ROW_BYTES)]

    def write(number: int, path: Path) -> None:
        with open(path, "wb") as file:
            writers[number].write(file.fileno(), producer={})
            os.fsync(file.fileno())

    for number, path in enumerate(parts):
        write(number, path)

    def merge() -> None:
        with open(folder / "merged", "wb") as to, open(parts[0], "rb") as a, open(parts[1], "rb") as b:
            artifact.merge([a.fileno(), b.fileno()], to.fileno())

    return {
        "hashing": lambda: digest_file(str(data), None, "content"),
        "writing": lambda: write(0, folder / "again"),
        "merging": merge,
        "counting": lambda: count(0.01),
    }


def beside(work: Callable[[], object]) -> int:
    """What is counted while a thread works."""
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            work()

    thread = threading.Thread(target=go_on)
    thread.start()
    done = count(SPAN_S)
    is_over.set()
    thread.join()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    compile_sources()
    with tempfile.TemporaryDirectory(prefix="prepcache-benchmarks-", dir="/var/tmp") as folder:
        works = contenders(Path(folder))
        ratios: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds):
            alone = count(SPAN_S)
            for name, work in works.items():
                ratios[name].append(beside(work) / alone)
    for name, found in ratios.items():
        around = f"({min(found):.2f}-{max(found):.2f})"
        print(f"beside {name:10} {statistics.median(found):.2f} of counting alone {around}")


if __name__ == "__main__":
    main()
