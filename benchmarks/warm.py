"""What a start costs when everything is cached: python -m benchmarks.warm [--files 100000] [--repeat 9]

A job of its own, from after its imports of torch to its first batch: `import prepcache`,
`CachedDataset(...)`, a `DataLoader`'s first 256 samples. For values and for small files, at a half and at all
of so many items; for files beside the bare `os.stat` of each in the same process. Shown are medians, and how
much private memory grows with an item; and the processor time of `import prepcache`, beside numpy's.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from benchmarks import compile_sources  # noqa: E402
from support.sandbox import Sandbox, sandbox  # noqa: E402

VALUES = 20_000
AIM_S, AIM_TIMES, AIM_IMPORT_S, AIM_BYTES = 0.15, 3.0, 0.04, 200

JOB = """
import json, os, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader

what, count = sys.argv[1], int(sys.argv[2])

def of_value(item):
    return torch.full((8,), float(item)), item

def of_file(item):
    return torch.full((8,), float(item.stat().st_size))

def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024

function, stat_s = of_value, 0.0
items = range(count)
if what == "files":
    function = of_file
    items = [Path(f"files/{i // 1000:04d}/{i:07d}") for i in range(count)]
    start = time.perf_counter()
    for path in items:
        os.stat(path)
    stat_s = time.perf_counter() - start
    before = private()
    start = time.perf_counter()
else:
    before = private()
    start = time.perf_counter()
import prepcache
dataset = prepcache.CachedDataset(items, function, progress=False)
next(iter(DataLoader(dataset, 256, shuffle=True)))
first_s = time.perf_counter() - start
told = {"first_s": first_s, "stat_s": stat_s, "private": private() - before}
print(json.dumps(told | {"computed": dataset.report().computed}))
"""


def start(box: Sandbox, what: str, count: int) -> dict[str, Any]:
    """One start of a job."""
    told: dict[str, Any] = json.loads(box.python("job.py", what, str(count)).stdout)
    return told


def import_s(box: Sandbox, module: str, repeat: int) -> float:
    """The median processor time of an import in a process of its own."""
    job = f"import time; began = time.process_time(); import {module}; print(time.process_time() - began)"
    return statistics.median(float(box.python("-c", job).stdout) for _ in range(repeat))


def measure(box: Sandbox, what: str, count: int, repeat: int) -> dict[str, float]:
    """Medians of starts that computed nothing."""
    start(box, what, count)
    rows = [start(box, what, count) for _ in range(repeat)]
    if any(row["computed"] for row in rows):
        raise SystemExit("something was preprocessed again")
    for row in rows:
        row["times"] = row["first_s"] / row["stat_s"] if row["stat_s"] else 0.0
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm", description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=9)
    asked = parser.parse_args()
    compile_sources()
    with sandbox() as box:
        (box.folder / "job.py").write_text(JOB)
        for i in range(asked.files):
            path = box.folder / "files" / f"{i // 1000:04d}" / f"{i:07d}"
            if i % 1000 == 0:
                path.parent.mkdir(parents=True)
            path.write_text(str(i))
        own_s, numpy_s = (import_s(box, module, asked.repeat) for module in ("prepcache", "numpy"))
        print(
            f"import prepcache: {1e3 * own_s:.0f} ms of processor time (aim {1e3 * AIM_IMPORT_S:.0f}), "
            f"{own_s / numpy_s:.2f} times that of numpy"
        )
        for what, count in (("values", VALUES), ("files", asked.files)):
            half, whole = (measure(box, what, n, asked.repeat) for n in (count // 2, count))
            grown = (whole["private"] - half["private"]) / (count - count // 2)
            first_s, half_s = whole["first_s"], half["first_s"]
            print(f"{count:,} {what}: first batch after {first_s:.3f} s ({half_s:.3f} with half of them)")
            print(f"  {grown:.0f} bytes an item (aim {AIM_BYTES})")
            if whole["stat_s"]:
                print(f"  {whole['times']:.2f} times their os.stat calls (aim {AIM_TIMES})")
            else:
                print(f"  first batch: aim {AIM_S} s")


if __name__ == "__main__":
    main()
