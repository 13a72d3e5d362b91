"""Lazy data sets beside each other: jobs at once, and DataLoader workers that are killed."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from prepcache import CachedDataset
from prepcache.daemon.client import Client
from prepcache.fill import workers
from support import serving
from support.crashing import check_tidy

LAZY = """
import signal

AT_FORK = set()

def await_sessions(holds):
    # Until the pids that have a session are as they should be.
    with prepcache.Client() as client:
        while not holds({session.pid for session in client.sessions()}):
            threading.Event().wait(0.01)

def make(item):
    called(item)
    assert AT_FORK in (set(), {*sys.modules}), "each worker would load it"
    if item == 21 and os.path.exists("deadly"):
        os.rename("deadly", "dead")
        await_sessions(lambda pids: os.getpid() in pids)
        Path("dead").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return np.full(8, item)

def epoch(ds, sampler=None):
    from torch.utils.data import DataLoader

    note = lambda _: AT_FORK.update(sys.modules)
    loader = DataLoader(ds, batch_size=4, num_workers=2, sampler=sampler, worker_init_fn=note)
    return [int(sample[0]) for batch in loader for sample in batch]

def main():
    barrier()
    how = sys.argv[1]
    ds = prepcache.CachedDataset(list(range(60)), make, version="1", code=None, lazy=True, progress=False)
    if how == "without workers":
        assert [int(ds[i][0]) for i in range(60)] == list(range(60))
        return
    died = ""
    try:
        try:
            made = epoch(ds, prepcache.CachedFirstSampler(ds) if how == "at once" else None)
            assert sorted(made) == list(range(60)), "each sample comes once"
        except (OSError, EOFError) as error:  # read from the dead worker
            died = repr(error)
            threading.Event().wait(5)  # torch's handler of SIGCHLD raises here then, and not further down
    except Exception as error:  # torch's own, of many kinds
        died = repr(error)
    assert bool(died) == (how == "killed"), died
    if died:
        dead = int(Path("dead").read_text())
        await_sessions(lambda pids: dead not in pids)
    assert epoch(ds) == list(range(60))


if __name__ == "__main__":
    main()
    tell()
"""


def check_each_item_is_stored_once(folder: Path, client: Client) -> None:
    """And nothing that a lazy job or its workers had is left."""
    check_tidy(folder)
    assert sum(entry.items for entry in client.entries()) == 60


def test_lazy_jobs_and_workers_make_each_item_once(jobs):
    script, url = jobs.write(LAZY), f"unix://{jobs.box.folder}/s.sock"
    with serving.process(jobs.box.folder), closing(Client(url)) as client:
        jobs.together(script, [("at once",)] * 2, PREPCACHE_URL=url)
        assert jobs.calls() == Counter(range(60))
        check_each_item_is_stored_once(jobs.box.folder, client)
        jobs.forget()
        jobs.begin(script, "without workers", PREPCACHE_URL=url).facts()
        assert jobs.calls() == Counter()


def test_a_killed_lazy_workers_items_are_made_by_others(jobs):
    script, url = jobs.write(LAZY), f"unix://{jobs.box.folder}/s.sock"
    with serving.process(jobs.box.folder), closing(Client(url)) as client:
        (jobs.box.folder / "deadly").touch()
        jobs.begin(script, "killed", PREPCACHE_URL=url).facts()
        assert (jobs.box.folder / "dead").read_text()
        check_each_item_is_stored_once(jobs.box.folder, client)
        assert jobs.calls()[21] == 2, "the deadly call, and the one after it"


HANDED_ON = """
import math, pickle
from prepcache.fill import commit, on_access

on_access.LEASE_FROM_S = math.inf  # on a busy machine no item is cheap
commit.THREAD.schedule = lambda *_: None  # nothing is in files just because time has passed

def seen(ds):
    assert [int(ds[i][0]) for i in range(20)] == list(range(20))

ds = prepcache.CachedDataset(list(range(20)), make, lazy=True, progress=False)
seen(ds)
how = sys.argv[1]
if how == "prepared":
    ds.prepare()
elif how == "pickled":
    seen(pickle.loads(pickle.dumps(ds)))
elif (pid := os.fork()) == 0:
    seen(ds)
    os._exit(0)
else:
    assert os.waitpid(pid, 0)[1] == 0
tell()
"""


@pytest.mark.parametrize("how", ["prepared", "pickled", "forked"])
def test_what_was_made_is_not_made_where_a_set_is_handed_on(jobs, how):
    jobs.run(jobs.write(HANDED_ON), how)
    assert jobs.calls() == Counter(range(20))


AT_ONCE = """
import contextlib
from prepcache.fill import commit, on_access

commit.THREAD.schedule = lambda *_: None  # all is committed at the end
both, begun = threading.Barrier(2), on_access.OnAccess.__init__

def slowly(*arguments):
    with contextlib.suppress(threading.BrokenBarrierError):
        both.wait(1)  # would let both threads in
    begun(*arguments)

ds = prepcache.CachedDataset(list(range(2)), make, lazy=True, progress=False)
on_access.OnAccess.__init__ = slowly
ds._samples._here = None  # as in a process that it was sent to
threads = [threading.Thread(target=ds.__getitem__, args=(item,)) for item in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
tell()
"""


def test_what_threads_make_first_is_stored(jobs):
    script = jobs.write(AT_ONCE)
    jobs.run(script)
    jobs.run(script)
    assert jobs.calls() == Counter(range(2))


def test_a_thread_of_the_pool_may_read_what_waits_for_the_pool(client, monkeypatch):
    """It makes it itself: what is handed in waits for it."""
    handed_in, submit, called = threading.Event(), workers.InExecutor.submit, list[int]()

    def noted(*given: Any) -> None:
        submit(*given)
        handed_in.set()

    def read() -> int:
        handed_in.wait()
        return int(ds[0])

    monkeypatch.setattr(workers.InExecutor, "submit", noted)
    with ThreadPoolExecutor(1) as pool:
        options: Any = {"code": None, "version": "1", "lazy": True, "progress": False, "client": client}
        ds = CachedDataset(range(4), lambda item: called.append(item) or item, executor=pool, **options)
        reading, preparing = pool.submit(read), pool.submit(ds.prepare)
        ds.prepare()
        assert reading.result() == 0
        assert "it would wait for itself forever" in str(preparing.exception())
    assert list(ds) == [0, 1, 2, 3] and sorted(called) == [0, 0, 1, 2, 3]


DROPPED = """
import gc

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


def test_a_dropped_lazy_data_set_commits_what_waits(jobs):
    script = jobs.write(DROPPED)
    jobs.run(script, "dropped")
    assert jobs.run(script, "read")["hit"] == 12


DROPPED_IN_WORKERS = """
from torch.utils.data import DataLoader

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


@pytest.mark.nightly(daily=["fork"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_commit_what_waits_at_their_end(jobs, method):
    script = jobs.write(DROPPED_IN_WORKERS)
    jobs.run(script, method)
    made = jobs.calls()
    assert made.total() >= 10
    assert jobs.run(script, "read")["hit"] == made.total()
