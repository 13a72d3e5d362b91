"""What a job says of itself is what happened: its report, and why it goes on without the cache."""

from __future__ import annotations

from support import serving
from support.jobs import Jobs

WORKERS = """
import torch
from torch.utils.data import DataLoader

def make(item):
    return torch.full((4096,), float(item))

ds = prepcache.CachedDataset(list(range(40)), make, version="1", code=None, lazy=True, progress=False)
for batch in DataLoader(ds, 8, num_workers=2):
    pass
ragged = [{"x": torch.arange(n)} for n in (3, 1)]
for collate in (prepcache.pad_collate, prepcache.pack_collate):
    (plain,) = DataLoader(ragged, 2, collate_fn=collate)
    (made,) = DataLoader(ragged, 2, collate_fn=collate())
    assert str(plain) == str(made) and "tensor" in str(plain), plain
tell(ds)
"""

FULL = """
def make(item):
    return np.full(200_000, item)

ds = prepcache.CachedDataset(list(range(8)), make, version="1", code=None, progress=False)
assert [int(sample[0]) for sample in ds] == list(range(8))
tell(ds)
"""


def test_what_workers_stored_is_in_the_report(jobs: Jobs) -> None:
    told = jobs.run(jobs.write(WORKERS))
    assert told["computed"] == 40 and told["bytes"] >= 40 * 4096 * 4 and len(told["why"]) == 1


def test_declined_items_that_were_made_count_as_computed(jobs: Jobs) -> None:
    options = ("--max-bytes", "1MiB", "--min-free", "0")
    with serving.process(jobs.box.folder, *options):
        told = jobs.run(jobs.write(FULL), PREPCACHE_URL=f"unix://{jobs.box.folder}/s.sock")
    assert (told["computed"], told["declined"]) == (8, 7), "the first stays in a file of this job"
