"""Lazy data sets that are dropped: freed, and what was made of them is committed."""

from __future__ import annotations

import pytest

from support.jobs import Jobs

DROPPED = """
import gc

def make(item):
    called(item)
    return np.full(8, item)

def opened(items):
    return prepcache.CachedDataset(items, make, lazy=True, progress=False)

if sys.argv[1] == "read":
    tell(opened(list(range(12))))
else:
    for first in range(0, 12, 2):
        ds = opened([first, first + 1])
        ds[0], ds[1]
        del ds
    gc.collect()
"""


def test_a_dropped_lazy_data_set_commits_what_waits(jobs: Jobs) -> None:
    script = jobs.write(DROPPED)
    jobs.run(script, "dropped")
    assert jobs.run(script, "read")["hit"] == 12


DROPPED_IN_WORKERS = """
import torch
from torch.utils.data import DataLoader
from prepcache.fill import commit

commit.WORKERS_S = 60.0  # a disk may be busy

def make(item):
    called(item)
    return torch.full((8,), item)

def main():
    method = sys.argv[1]
    ds = prepcache.CachedDataset(list(range(20)), make, lazy=True, progress=False)
    loader = DataLoader(ds, batch_size=2, num_workers=2, multiprocessing_context=method)
    del ds
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    if sys.argv[2] == "raised":
        while len(Path(os.environ["CALL_LOG"]).read_text().splitlines()) < 18:  # what it has asked for
            threading.Event().wait(0.01)
        raise ValueError("no more")
    del batches, loader

if __name__ == "__main__":
    if sys.argv[1] == "read":
        tell(prepcache.CachedDataset(list(range(20)), make, lazy=True, progress=False))
    else:
        main()
        tell()
"""


@pytest.mark.parametrize(("method", "how"), [("fork", "dropped"), ("spawn", "dropped"), ("fork", "raised")])
def test_workers_commit_what_waits_at_their_end(jobs: Jobs, method: str, how: str) -> None:
    script = jobs.write(DROPPED_IN_WORKERS)
    jobs.run(script, method, how, exit_code=int(how == "raised"))
    made = jobs.calls()
    assert made.total() >= 10
    assert jobs.run(script, "read")["hit"] == made.total()
