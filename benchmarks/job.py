"""One contestant in a process of its own, driven by lines of JSON: python -m benchmarks.job NAME LOAD FOLDER

    prepare -> {"seconds", "disk_bytes"}       epoch LIMIT_S READ -> {"samples", "seconds", "cpu_s"}
    open WORKERS IS_TRANSFORMED -> {"seconds"}, start to first batch
    check -> {"checked"}      memory -> {"pss_bytes", "private_bytes", "torch_bytes"}, torch's alone

Whatever goes wrong is answered as {"error": ...}; the process goes on.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

CHECKED_SAMPLES = 512
"""Whose bytes are compared, at least."""
CHECK_S = 2.0
"""Then an epoch that has not ended is left: the slowest would take minutes."""
SPAN_S = 0.5
"""Epochs are repeated for so long: the limit's last 5 ms on the smallest workload."""


class Job:
    """A contestant and what it has open."""

    def __init__(self, name: str, workload: str, folder: str) -> None:
        import torch

        self._torch_bytes = _memory()["Anonymous"]
        from benchmarks import CONTESTANTS
        from benchmarks.workloads import WORKLOADS

        torch.set_num_threads(1)
        self.workload = WORKLOADS[workload]
        self.contestant = CONTESTANTS[name](self.workload, Path(folder))
        self.epochs: Any = None
        self.shared_bytes = 0

    def prepare(self) -> dict[str, Any]:
        started = time.perf_counter()
        done = self.contestant.folder / "PREPARED"
        if not done.exists():
            self.contestant.prepare()
            done.touch()
        seconds = time.perf_counter() - started
        files = [path for path in self.contestant.folder.rglob("*") if path.is_file()]
        return {"seconds": seconds, "disk_bytes": sum(path.stat().st_blocks * 512 for path in files)}

    def open(self, workers: int, is_transformed: bool = False) -> dict[str, Any]:
        started = time.perf_counter()
        if is_transformed:
            self.contestant.transform = self.workload.cropped
        self.epochs = self.contestant.open(workers)
        next(iter(self.epochs()))
        return {"seconds": time.perf_counter() - started}

    def epoch(self, limit_s: float, is_read: bool = False) -> dict[str, Any]:
        """Epochs for `SPAN_S`, one at least, or as much of it as fits into `limit_s`; after the same untimed.

        This process has been idle while the others had their turn, and its memory was nobody's: the first
        epoch after that says more about the machine than about the contestant.
        """
        self._epochs(min(SPAN_S, limit_s), is_read)
        started, cpu = time.perf_counter(), time.process_time()
        self.shared_bytes = 0
        samples = self._epochs(limit_s, is_read)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        return {"samples": samples, "seconds": seconds, "cpu_s": cpu, "shared_bytes": self.shared_bytes}

    def _epochs(self, limit_s: float, is_read: bool) -> int:
        import torch

        samples, started = 0, time.perf_counter()
        while time.perf_counter() - started < min(SPAN_S, limit_s):
            for values, numbers in self.epochs():
                samples += len(numbers)
                self.shared_bytes += _shared_bytes(values)
                if is_read:
                    torch.as_tensor(values).reshape(-1).view(torch.int64).sum()
                if time.perf_counter() - started > limit_s:
                    break
        return samples

    def check(self) -> dict[str, Any]:
        """Compares the bytes of some batches, and that an epoch has each number once if it ends in time."""
        started = time.perf_counter()
        seen: set[int] = set()
        for values, numbers in self.epochs():
            for row, number in zip(_rows(values), map(int, numbers), strict=True):
                if number in seen:
                    raise AssertionError(f"sample {number} comes twice in an epoch")
                if len(seen) < CHECKED_SAMPLES and self.contestant.transform is None:
                    self._compare(row, number)
                seen.add(number)
            if len(seen) >= CHECKED_SAMPLES and time.perf_counter() - started > CHECK_S:
                break
        else:
            if seen != set(range(self.workload.count)):
                raise AssertionError(f"an epoch has {len(seen)} of {self.workload.count} samples")
        return {"checked": len(seen)}

    def _compare(self, row: Any, number: int) -> None:
        import numpy as np
        import torch

        expected = self.contestant.expected(number)
        row = np.asarray(torch.as_tensor(row))
        if self.workload.is_ragged:
            row = row[: len(expected)]
        if row.dtype != expected.dtype or row.tobytes() != expected.tobytes():
            raise AssertionError(f"sample {number} has other bytes")

    def memory(self) -> dict[str, Any]:
        held = _memory()
        private = {"private_bytes": held["Anonymous"], "torch_bytes": self._torch_bytes}
        return {"pss_bytes": held["Pss"], **private}


def _memory() -> dict[str, int]:
    """What this process has resident, in bytes, by the kernel's names."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def _shared_bytes(values: Any) -> int:
    """How much of a batch came through a file in /dev/shm."""
    import torch

    if not isinstance(values, torch.Tensor):
        return sum(_shared_bytes(part) for part in values) if isinstance(values, tuple | list) else 0
    return values.nbytes if values.is_shared() else 0


def _rows(values: Any) -> Any:
    """The rows of a batch, packed or not."""
    if hasattr(values, "offsets"):
        return [values.values[a:b] for a, b in zip(values.offsets[:-1], values.offsets[1:], strict=True)]
    return values


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a contestant prints does not mix with the answers
    job = Job(*sys.argv[1:4])
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = getattr(job, command)(*arguments)
        except Exception as error:  # noqa: BLE001 - the suite goes on without this contestant
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
