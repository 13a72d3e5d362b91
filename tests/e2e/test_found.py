"""What jobs found made is counted by items, in artifacts that hold others too, and in jobs without a beat."""

from __future__ import annotations

from typing import Any

import pytest

from support.jobs import Jobs

FOUND = """
import hashlib
first, count, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def double(item):
    hashlib.blake2b(bytes(1 << 22)).digest()  # what it costs
    return np.full(8, item * 2)

items = range(first, first + count)
if kind == "stream":
    samples = list(prepcache.CachedIterableDataset(lambda: iter(items), double, progress=False))
else:
    ds = prepcache.CachedDataset(items, double, progress=False)
    samples = [ds[i] for i in range(len(ds))]
tell(values=[int(sample[0]) for sample in samples])
"""
STATS = """
stats = prepcache.Client().stats()
tell(items=stats["found_items"], seconds=stats["seconds_saved"])
"""


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_only_items_that_were_asked_for_count_as_found(jobs: Jobs, kind: str) -> None:
    script, look = jobs.write(FOUND), jobs.write(STATS, "look.py")

    def found(first: int, count: int) -> Any:
        told = jobs.run(script, first, count, kind)
        assert told["values"] == [2 * item for item in range(first, first + count)]
        stats = jobs.run(look)
        return stats["items"], stats["seconds"]

    assert found(0, 40) == (0, 0)
    assert found(100, 40) == (0, 0), "the artifact that it looked at has none of its items"
    items, part_s = found(30, 20)
    assert (items, part_s > 0) == (10, True)
    items, all_s = found(0, 40)
    assert items == 50
    assert kind == "stream" or part_s < 0.6 * (all_s - part_s), "10 of 40 items have cost a quarter, or about"
