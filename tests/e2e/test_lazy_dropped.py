"""Lazy data sets that are dropped: freed, and what was made of them is committed."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from support.jobs import Jobs

DROPPED = """
import gc
import weakref
from multiprocessing.util import _finalizer_registry
from prepcache.daemon.session import Session

def make(item):
    called(item)
    return np.full(8, item)

def opened(items):
    return prepcache.CachedDataset(items, make, lazy=True, progress=False)

def maps():
    return sum("objects" in line for line in open("/proc/self/maps"))

if sys.argv[1] == "read":
    tell(opened(list(range(12))))
else:
    supplies = []
    registered = len(_finalizer_registry)
    for first in range(0, 10, 2):
        ds = opened([first, first + 1])
        ds[0], ds[1]
        ds._samples.on_access.flush()
        supplies.append(weakref.ref(ds._samples.by.artifacts))
        del ds
    gc.collect()
    assert [ref() for ref in supplies] == [None] * 5
    assert maps() == 0 and len(_finalizer_registry) <= registered
    ds = opened([10, 11, 12])
    ds[0], ds[1]
    (session,) = Session._all.values()
    assert len(session._at_close) == 1
    waiting = weakref.ref(ds._samples.by.artifacts)
    del ds, session
    gc.collect()
    assert waiting() is not None
"""


def test_a_dropped_lazy_data_set_commits_what_waits(jobs: Jobs) -> None:
    script = jobs.write(DROPPED)
    jobs.run(script, "dropped")
    assert jobs.run(script, "read")["hit"] == 12


DROPPED_IN_WORKERS = """
import torch
from torch.utils.data import DataLoader

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
    del batches, loader

if __name__ == "__main__":
    if sys.argv[1] == "read":
        tell(prepcache.CachedDataset(list(range(20)), make, lazy=True, progress=False))
    else:
        main()
        tell()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_commit_what_waits_at_their_end(jobs: Jobs, method: str) -> None:
    script = jobs.write(DROPPED_IN_WORKERS)
    jobs.run(script, method)
    made = jobs.calls()
    assert made.total() >= 10
    assert jobs.run(script, "read")["hit"] == made.total()


TERMINATED = """
import signal
import torch
from prepcache.fill import on_access
from prepcache.fill.on_access import OnAccess
from torch.utils.data import DataLoader

def make(item):
    called(item)
    return torch.full((8,), item)

def opened():
    return prepcache.CachedDataset(list(range(20)), make, lazy=True, progress=False)

true = OnAccess._commit_made

def terminated(self, indices, until):
    os.kill(os.getpid(), signal.SIGTERM)
    true(self, indices, until)

if sys.argv[1] == "read":
    tell(opened())
else:
    OnAccess._commit_made = terminated
    on_access.COMMIT_S = 1000.0
    batches = iter(DataLoader(opened(), batch_size=2, num_workers=2))
    for _ in range(10):
        next(batches)  # all: an interrupt that met a worker at a sample would cost what it has collected
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises in here when a worker has ended
    for worker in batches._workers:
        os.kill(worker.pid, signal.SIGINT)
    for worker in batches._workers:
        worker.join()
    tell(codes=[worker.exitcode for worker in batches._workers])
    os._exit(0)
"""


def test_workers_finish_their_last_commits_before_they_end(jobs: Jobs) -> None:
    """As those of an interrupted job are: it was interrupted with them, and ends them at once."""
    script = jobs.write(TERMINATED)
    assert jobs.run(script, "interrupted")["codes"] == [-signal.SIGTERM] * 2
    assert jobs.calls().total() == 20
    assert jobs.run(script, "read")["hit"] == 20


ASKED_AGAIN = """
from prepcache.fill import on_access

on_access.COMMIT_S = 1000.0

def make(item):
    called(item)
    return {"item": np.full(8, item)}

ds = prepcache.CachedDataset(list(range(20)), make, lazy=True, progress=False)
for epoch in range(3):
    for item in range(10):
        sample = ds[item]["item"]
        assert (sample == item).all()
        sample[:] = 0  # it is the caller's
tell(ds)
"""


def test_what_waits_and_is_asked_for_again_is_not_made_again(jobs: Jobs) -> None:
    script = jobs.write(ASKED_AGAIN)
    jobs.run(script)
    assert jobs.calls() == Counter(range(10))
    assert jobs.run(script)["hit"] == 10
