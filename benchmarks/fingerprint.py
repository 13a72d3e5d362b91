"""What it costs to fingerprint a function of a large project when nothing changed, in fresh processes.

    python -m benchmarks.fingerprint [--modules 200] [--repeat 15]

A project is written whose modules import each other and numpy, with 13 definitions each, of which the
function reaches two and a constant. A first process parses it; in each further one nothing changed. Medians
are printed: of the first call in a process, of the second, and of the first by time on cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODULE = '''\
"""Part {i} of the project."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

import numpy as np

{imports}

SCALE = {i}.5
NAMES = ("alpha{i}", "beta{i}", "gamma{i}")
TABLE = {{"low": {i}, "high": {i} + 10, "steps": [1, 2, {i}]}}
WEIGHTS = np.arange(16, dtype=np.float32)


@dataclass
class Options{i}:
    """What part {i} may do."""

    size: int = {i}
    name: str = "part{i}"
    bounds: tuple[float, float] = (0.0, {i}.0)
    labels: list[str] = field(default_factory=list)

    def scaled(self, factor: float) -> float:
        return self.size * factor * SCALE


class Filter{i}:
    order = 3

    def __init__(self, options: Options{i}) -> None:
        self.options = options
        self.count = 0

    def apply(self, value: float) -> float:
        self.count += 1
        if value < self.options.bounds[0]:
            return clamp{i}(value, TABLE["low"], TABLE["high"])
        for step in TABLE["steps"]:
            value = math.fma(value, step, self.order) if hasattr(math, "fma") else value * step + self.order
        return value


def clamp{i}(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def named{i}(name: str) -> str:
    return os.path.join(NAMES[0], name.strip().lower())


def weighted{i}(values: list[float]) -> float:
    total = 0.0
    for weight, value in zip(WEIGHTS.tolist(), values):
        total += weight * value
    return total / max(1, len(values))


def filtered{i}(value: float) -> float:
    found = Filter{i}(Options{i}()).apply(value)
    if named{i}("x").endswith("y"):
        found += weighted{i}([found, SCALE])
    return found


def part{i}(value: float) -> float:
    found = clamp{i}(value, 0.0, SCALE)
    return found{calls}
'''

TIMED = """
import sys, time
sys.path.insert(0, sys.argv[1])
import numpy
from prepcache import CachedDataset, recipe
from part0 import part0

times = []
for _ in range(2):
    wall, cpu = time.perf_counter(), time.process_time()
    made = recipe(part0, code=sys.argv[2])
    times += [time.perf_counter() - wall, time.process_time() - cpu]
print(*times, len(made.parts["code"]["definitions"]), len(made.parts["code"]["files"]))
"""


def write(folder: Path, count: int) -> None:
    """A project of so many modules, each of which imports up to three further ones."""
    for i in range(count):
        others = [j for j in (3 * i + 1, 3 * i + 2, 3 * i + 3) if j < count]
        imports = "\n".join(f"from part{j} import part{j}" for j in others)
        calls = "".join(f" + part{j}(found)" for j in others)
        (folder / f"part{i}.py").write_text(MODULE.format(i=i, imports=imports, calls=calls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--modules", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), given.modules)
        time.sleep(2.5)  # files as young as that are not believed to be unchanged
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # else each process compiles the project
        for code in ("script", "function"):
            rows = []
            for _ in range(given.repeat + 1):
                run = subprocess.run(
                    [sys.executable, "-c", TIMED, name, code],
                    env=env,
                    capture_output=True,
                    check=True,
                    text=True,
                )
                rows.append([float(word) for word in run.stdout.split()])
            wall, cpu, again, _, definitions, files = map(statistics.median, zip(*rows[1:], strict=True))
            print(
                f'{given.modules} modules, code="{code}": {files:.0f} files, {definitions:.0f} definitions;'
                f" first call {1000 * wall:.0f} ms ({1000 * cpu:.0f} on cores), second {1000 * again:.0f} ms"
            )


if __name__ == "__main__":
    main()
