"""What 2 MiB folios are worth, and what becomes of them: python -m benchmarks.folios [--rounds 8]

W1 in one artifact. Its rows are gathered at random, for an epoch and five more: fresh; after its pages were
dropped and read again; and so with `MADV_HUGEPAGE`, in turns. Shown are the seconds of the first epoch, the
processor time of later ones, and how much of the file is mapped by entries of 2 MiB.
"""

import argparse
import ctypes
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.contestants import ManyArtifacts
from benchmarks.workloads import WORKLOADS
from prepcache import artifact
from prepcache.artifact.reader import libc

MADV_HUGEPAGE = 14


class OneArtifact(ManyArtifacts):
    """All samples in one file."""

    artifacts = 1


def mapped_mb(address: int) -> float:
    """What of the map around an address is mapped by entries of 2 MiB."""
    is_it, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            begin, end = (int(word, 16) for word in words[0].split("-"))
            is_it = begin <= address < end
        elif is_it and words[0] == "FilePmdMapped:":
            found = int(words[1])
    return found / 1000


def measure(path: Path, *, is_dropped: bool, is_huge: bool) -> tuple[float, float, float]:
    """Seconds of the first epoch, seconds of processor time of later ones, MB."""
    if is_dropped:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    values = artifact.open(path).groups[0].columns[0].values
    if is_huge:
        begin = values.ctypes.data - values.ctypes.data % mmap.PAGESIZE
        size_bytes = values.ctypes.data + values.nbytes - begin
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size_bytes), MADV_HUGEPAGE)
    out = np.empty((256, *values.shape[1:]), values.dtype)

    def epoch() -> tuple[float, float]:
        began, cpu = time.perf_counter(), time.process_time()
        order = np.random.permutation(len(values))
        for at in range(0, len(order), 256):
            rows = order[at : at + 256]
            values.take(rows, 0, out[: len(rows)], "clip")
        return time.perf_counter() - began, time.process_time() - cpu

    first_s = epoch()[0]
    return first_s, statistics.median(epoch()[1] for _ in range(5)), mapped_mb(values.ctypes.data)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folios", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prepcache-benchmarks-") as folder:
        OneArtifact(WORKLOADS["W1"], Path(folder)).prepare()
        path = Path(folder) / "000"
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # else its pages are not dropped
        found = {"fresh": [measure(path, is_dropped=False, is_huge=False)]}
        for _ in range(asked.rounds):
            for name, is_huge in (("read again", False), ("read again, MADV_HUGEPAGE", True)):
                found.setdefault(name, []).append(measure(path, is_dropped=True, is_huge=is_huge))
    for name, runs in found.items():
        firsts, later, mapped = zip(*runs, strict=True)
        first = f"first epoch {statistics.median(firsts):.3f} s ({min(firsts):.3f} to {max(firsts):.3f})"
        rest = f"later {1e3 * statistics.median(later):.1f} ms of processor time"
        print(f"{name}: {first}, {rest}, {statistics.median(mapped):.0f} MB by entries of 2 MiB")


if __name__ == "__main__":
    main()
