"""A lazy data set that is trained on: what its job says meanwhile, and what `prepare` adds."""

from __future__ import annotations

import signal
from collections import Counter

from support.jobs import Jobs

EPOCH = """
import signal

from prepcache import progress
from torch.utils.data import DataLoader

progress.FIRST_LINE_S = 0.01

def make(item):
    called(item)
    return np.full(8, item)

def telling():
    return [thread for thread in threading.enumerate() if thread.name == "prepcache-progress"]

ds = prepcache.CachedDataset(list(range(60)), make, lazy=True)
for batch in DataLoader(ds, batch_size=5, sampler=range(50), num_workers=2):
    pass
assert telling(), "not all is cached"
ds.prepare()
for thread in telling():
    thread.join()
tell(ds)
progress.FIRST_LINE_S = 1000.0
part = prepcache.CachedDataset(list(range(100, 107)), make, lazy=True, name="part")
samples = [part[i] for i in range(3)]
signal.raise_signal(signal.SIGINT)
"""


def test_what_a_lazy_job_leaves_is_told_and_prepare_completes_it(jobs: Jobs) -> None:
    job = jobs.start(jobs.write(EPOCH))
    out, err = job.process.communicate(timeout=240)
    assert job.process.returncode == -signal.SIGINT, out + err
    assert jobs.calls() == Counter([*range(60), 100, 101, 102]), "each item once, by whichever process"
    assert err.splitlines()[-1] == "prepcache: part: 3 of 7 items are cached"
    lines = [line.partition("make: ")[2] for line in err.splitlines()]
    assert any(" of 60 items are cached" in line for line in lines), err
    assert lines.count("all 60 items are cached") == 1, err
