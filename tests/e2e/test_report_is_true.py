"""What a job says of itself is what happened: its report, and why it goes on without the cache."""

from typing import Any

import pytest

from support import serving

WORKERS = """
import torch
from torch.utils.data import DataLoader

def make(item):
    return torch.full((4096,), float(item))

def main():
    ds = prepcache.CachedDataset(list(range(40)), make, version="1", code=None, lazy=True, progress=False)
    for batch in DataLoader(ds, 8, num_workers=2, multiprocessing_context=sys.argv[1]):
        pass
    ragged = [{"x": torch.arange(n)} for n in (3, 1)]
    for collate in (prepcache.pad_collate, prepcache.pack_collate):
        (plain,) = DataLoader(ragged, 2, collate_fn=collate)
        (made,) = DataLoader(ragged, 2, collate_fn=collate())
        assert str(plain) == str(made) and "tensor" in str(plain), plain
    tell(ds)

if __name__ == "__main__":
    main()
"""

FULL = """
waits.BEAT_SHORTEST_S = waits.BEAT_LONGEST_S = 60  # none comes while it runs, but the one that it asks for
def make(item):
    return np.full(200_000, item)

ds = prepcache.CachedDataset(list(range(8)), make, version="1", code=None, progress=False)
assert [int(sample[0]) for sample in ds] == list(range(8))
if ds._samples.on_access is not None:  # lazy: what one lease covers is declined with its commit
    ds._samples.on_access.run()
    ds._samples.on_access.committer.flush()
client, until = prepcache.Client(), time.monotonic() + 10
while client.stats()["leases"]:
    assert time.monotonic() < until, "others would wait for what it gave back"
tell(ds)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_workers_stored_is_in_the_report(jobs, method):
    told = jobs.run(jobs.write(WORKERS), method)
    assert (
        told["seconds"] > 0
        and told["computed"] == 40
        and told["bytes"] >= 40 * 4096 * 4
        and len(told["why"]) == 1
    )


@pytest.mark.parametrize("lazy", [False, True])
def test_declined_items_that_were_made_count_as_computed(jobs, lazy):
    options = ("--max-bytes", "1MiB", "--min-free", "0")
    with serving.process(jobs.box.folder, *options):
        script = jobs.write(FULL.replace("progress", f"lazy={lazy}, progress"))
        told = jobs.run(script, PREPCACHE_URL=f"unix://{jobs.box.folder}/s.sock")
    assert (told["computed"], told["declined"], told["not_stored"], told["bytes"]) == (8, 8, 8, 0)
    said = "the samples of 8 computed items are not stored: ", "1.5 MiB exceed the cache's limit"
    assert all(text in told["why"][-1] for text in said), "of a lease or of a commit"


STOPPED = """
import os, signal
def make(item):
    if item == 3 and os.getpid() == JOB:
        os.kill(prepcache.Client().info().pid, signal.SIGSTOP)
    return np.full(8, item)

JOB = os.getpid()
ds = prepcache.CachedDataset(list(range(8)), make, version="1", code=None, progress=False, lazy=LAZY)
assert [int(sample[0]) for sample in ds] == list(range(8))
tell(ds)
"""


@pytest.mark.parametrize("lazy", [False, True])
def test_samples_that_a_stopped_daemon_did_not_take_are_said(jobs, lazy):
    with serving.process(jobs.box.folder):
        script = jobs.write(STOPPED.replace("LAZY", str(lazy)))
        told, said = jobs.said(script, PREPCACHE_URL=f"unix://{jobs.box.folder}/s.sock", BUDGET_S="1")
    assert (told["computed"], told["not_stored"], told["bytes"]) == (8, 8, 0)
    assert "the samples of 8 computed items are not stored: the daemon at" in told["why"][-1]
    assert "8 samples that this job made could not be stored: the daemon does not answer" in said


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
def test_only_items_that_were_asked_for_count_as_found(jobs, kind):
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
