"""What it costs to open a data set of many small values, warm: python -m benchmarks.opening [--items 1000000]

All items are made once. Then fresh processes open a quarter, half and all of them. Shown are processor time
of the opening, and memory of its own that it keeps, without the items: both for each item, so that equal
numbers mean that the cost is linear.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.sandbox import Sandbox, sandbox  # noqa: E402

ITEMS = {
    "texts": 'f"line {i}, as long as short sentences are, or a little more"',
    "(text, label)": '(f"line {i}, as long as short sentences are", i % 10)',
    "dicts": '{"text": f"line {i}, as long as short sentences are", "label": i % 10}',
}
SECONDS, BYTES = 3.0, 200
"""At most of processor time for a million items, and of memory for each."""
MOST_FILLS = 10
"""A daemon on a busy machine does not take all at once."""

JOB = """
import gc, sys, time
import torch
import prepcache

def length(item):
    return len(item)

def own_bytes():
    with open("/proc/self/smaps_rollup") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

count = int(sys.argv[1])
items = [ITEM for i in range(count)]
prepcache.CachedDataset(items[:10], length, progress=False)  # what the first opening imports and starts
gc.collect()
kept, began = own_bytes(), time.process_time()
ds = prepcache.CachedDataset(items, length, progress=False)
spent = time.process_time() - began
print(spent, own_bytes() - kept, ds.report().hit)
"""


def opened(box: Sandbox, item: str, count: int) -> tuple[float, float, int]:
    """The seconds of an opening, the bytes that it keeps, and how many items were there."""
    spent, kept, hit = box.python("-c", JOB.replace("ITEM", item), str(count)).stdout.split()
    return float(spent), float(kept), int(hit)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opening", description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--of", nargs="+", choices=ITEMS, default=list(ITEMS))
    options = parser.parse_args()
    print(f"at most {SECONDS} s for a million, and {BYTES} bytes an item")
    for name in options.of:
        item = ITEMS[name]
        with sandbox() as box:
            box.start_daemon()
            for _ in range(MOST_FILLS):
                if opened(box, item, options.items)[2] == options.items:
                    break
            for count in (options.items // 4, options.items // 2, options.items):
                spent, kept, hit = opened(box, item, count)
                assert hit == count, f"{count - hit} of {count} items were not there"
                print(
                    f"{name:14} {count:>9,} items   {1e6 * spent / count:.2f} us of CPU and "
                    f"{kept / count:.0f} bytes an item   {spent:.2f} s in all",
                    flush=True,
                )


if __name__ == "__main__":
    main()
