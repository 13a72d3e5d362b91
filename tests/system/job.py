"""A job: opens a data set of `count` items, each of which takes `seconds`, and says what it found and made.

    python job.py CALLS COUNT [SECONDS [FOLDER]]

Each call of the function adds a line to the file CALLS. With FOLDER, which is the `root=`, items are files.
"""

import sys
import time
from pathlib import Path

import numpy as np

from prepcache import CachedDataset


def read(item: int | Path, calls: str, seconds: float) -> np.ndarray:
    item = item if isinstance(item, int) else int(item.read_text())
    with open(calls, "a") as file:
        file.write(f"{item}\n")
    time.sleep(seconds)
    return np.full((3, 32, 32), item % 251, np.uint8)


if __name__ == "__main__":
    calls, count = sys.argv[1], int(sys.argv[2])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    root = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    items = [root / str(item) for item in range(count)] if root else range(count)
    began = time.monotonic()
    data = CachedDataset(
        items,
        lambda item: read(item, calls, seconds),
        name=f"items-{count}",
        code=None,
        version=count,
        root=root,
    )
    took_s = time.monotonic() - began
    assert [int(sample[0, 0, 0]) for sample in data] == [item % 251 for item in range(count)]
    report = data.report()
    print(f"hit={report.hit} computed={report.computed} opened_s={took_s:.2f}")
