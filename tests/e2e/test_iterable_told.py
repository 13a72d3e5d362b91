"""What a CachedIterableDataset says of a stream, and what trainers tell it."""

from __future__ import annotations

import pytest

from support.jobs import Jobs
from support.streams import SHARED

SAID = """
import random
from torch.utils.data import DataLoader

def make(item):
    return None if item["n"] > 40 else np.array([random.random()])

Path("named.txt").write_text("")

def numbers():
    yield from ({"n": number, "url": "named.txt"} for number in range(50))

ds = prepcache.CachedIterableDataset(numbers, make)
for _ in range(2):
    prepcache.Client().purge(everything=True)
    for _ in DataLoader(ds, batch_size=None, num_workers=int(sys.argv[1])):
        pass
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_messages_come_once_and_not_for_each_worker_or_epoch(jobs: Jobs, workers: int) -> None:
    err = jobs.told(jobs.write(SAID), workers, RANK="0", WORLD_SIZE="2")
    assert err.count("stream job.make: nothing is cached") == 1
    assert err.count("draws from the global generator") == 1
    assert err.count("is a return missing?") == 1
    assert err.count("split over 2 ranks: this is rank 0") == 1
    assert err.count("str in the items name files") == 1
    assert len(err.splitlines()) == 5, err


ORDERED = (
    SHARED
    + """
class Shuffled(torch.utils.data.IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield from [(number + self.epoch) % N for number in range(N)]

def main():
    ds = prepcache.CachedIterableDataset(Shuffled(), make, progress=False)
    for epoch in range(3):
        ds.set_epoch(epoch)
        seen = values(DataLoader(ds, batch_size=None))
        assert seen == [(number + epoch) % N for number in range(N)], (epoch, seen)
    opened("list").set_epoch(1)
    opened("function").set_epoch(1)
    tell()

if __name__ == "__main__":
    main()
"""
)


def test_set_epoch_reaches_a_shuffled_stream(jobs: Jobs) -> None:
    jobs.run(jobs.write(ORDERED))
