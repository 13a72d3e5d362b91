"""Many epochs with persistent DataLoader workers: nothing grows, in the job, its workers or the daemon."""

from contextlib import closing

import pytest

from prepcache.daemon.client import Client
from support import serving
from support.leaks import descriptors

SETTLED = 3
"""Epochs after which everything that is made once has been made."""

JOB = """
import time
import torch
from torch.utils.data import DataLoader

def make(item):
    called(item)
    return torch.full((3, 16, 16), item, dtype=torch.uint8), item

def used(pid):
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "artifacts mapped": sum("/objects/" in line for line in maps),
        "maps": len(maps),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }

def look(pids, earlier):
    # A batch on its way has some of torch's descriptors, until its sender has closed them: looked at again.
    until = time.monotonic() + 10
    while True:
        found = [used(pid) for pid in pids]
        pairs = list(zip(found, earlier or found, strict=True))
        if all(now[what] <= then[what] for now, then in pairs for what in ("descriptors", "threads")):
            return found
        if time.monotonic() > until:
            return found
        os.sched_yield()

def main():
    method, epochs, settled = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ds = prepcache.CachedDataset(list(range(96)), make, progress=False, lazy=sys.argv[4] == "lazy")
    loader = DataLoader(ds, batch_size=16, num_workers=2, shuffle=True, persistent_workers=True,
                        multiprocessing_context=method)
    client = prepcache.Client()
    seen = []
    for epoch in range(epochs):
        total = 0
        for values, items in loader:
            assert (values[:, 0, 0, 0] == items).all()
            total += int(items.sum())
        assert total == sum(range(96))
        if epoch + 1 in (settled, epochs):
            pids = [os.getpid(), *(worker.pid for worker in loader._iterator._workers)]
            sessions = len(client.sessions())  # it leaves a connection open, for every look
            seen.append([look(pids, seen[0][0] if seen else None), sessions])
    tell(seen=seen)

if __name__ == "__main__":
    main()
"""


def opened(daemon: int) -> int:
    """How much a daemon has open, but for its pool of connections to the index, as many as its threads ever
    needed at a moment."""
    return sum("index.sqlite" not in target for _, target in descriptors(daemon))


@pytest.mark.nightly(daily=["lazy-fork-8"])
@pytest.mark.parametrize("epochs", [8, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("how", ["prepared", "lazy"])
def test_epochs_with_persistent_workers_leave_nothing_behind(jobs, how, method, epochs):
    url = f"unix://{jobs.box.folder}/s.sock"
    with serving.process(jobs.box.folder) as daemon, closing(Client(url)) as client:
        fill = jobs.run(jobs.write(JOB), "fork", 1, 1, "prepared", PREPCACHE_URL=url)
        before = opened(daemon.pid), fill["seen"][0][1]
        facts = jobs.run(jobs.write(JOB), method, epochs, SETTLED, how, PREPCACHE_URL=url)
        (early, sessions), (late, sessions_late) = facts["seen"]
        assert sessions == sessions_late == before[1] == 1
        for first, last in zip(early, late, strict=True):
            assert last["artifacts mapped"] == first["artifacts mapped"]
            for what in ("descriptors", "threads"):  # a batch on its way has some of torch's, and then not
                assert last[what] <= first[what], (what, first, last)
            assert last["maps"] <= first["maps"] + 8, "what malloc maps comes and goes"
        assert serving.wait_until(lambda: client.stats()["sessions"] == 0)
        assert serving.wait_until(lambda: opened(daemon.pid) <= before[0] + 1)
