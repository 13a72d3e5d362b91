"""Lazy data sets beside each other: jobs at once, and DataLoader workers that are killed."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from prepcache.daemon.client import Client
from support import serving
from support.jobs import Jobs

LAZY = """
import signal

def await_sessions(holds):
    # Until the pids that have a session are as they should be.
    with prepcache.Client() as client:
        while not holds({session.pid for session in client.sessions()}):
            threading.Event().wait(0.01)

def make(item):
    called(item)
    if item == 21 and os.path.exists("deadly"):
        os.rename("deadly", "dead")
        await_sessions(lambda pids: os.getpid() in pids)
        Path("dead").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return np.full(8, item)

def epoch(ds):
    from torch.utils.data import DataLoader

    return [int(sample[0]) for batch in DataLoader(ds, batch_size=4, num_workers=2) for sample in batch]

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
            epoch(ds)
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


def check_each_item_is_stored_once(client: Client) -> None:
    """And nothing that a lazy job or its workers had is left."""

    def is_left() -> bool:
        stats = client.stats()
        return any(stats[name] for name in ("sessions", "leases", "waiting", "held_bytes", "staged_bytes"))

    assert serving.wait_until(lambda: not is_left(), 10), (client.stats(), client.sessions())
    assert sum(entry.items for entry in client.entries()) == 60
    assert client.verify().bad == ()


def test_lazy_jobs_and_workers_make_each_item_once(jobs: Jobs) -> None:
    script, url = jobs.write(LAZY), f"unix://{jobs.box.folder}/s.sock"
    with serving.process(jobs.box.folder), closing(Client(url)) as client:
        jobs.together(script, [("at once",)] * 2, PREPCACHE_URL=url)
        assert jobs.calls() == Counter(range(60))
        check_each_item_is_stored_once(client)
        jobs.forget()
        jobs.begin(script, "without workers", PREPCACHE_URL=url).facts()
        assert jobs.calls() == Counter()


def test_a_killed_lazy_workers_items_are_made_by_others(jobs: Jobs) -> None:
    script, url = jobs.write(LAZY), f"unix://{jobs.box.folder}/s.sock"
    with serving.process(jobs.box.folder), closing(Client(url)) as client:
        (jobs.box.folder / "deadly").touch()
        jobs.begin(script, "killed", PREPCACHE_URL=url).facts()
        assert (jobs.box.folder / "dead").read_text()
        check_each_item_is_stored_once(client)
        assert jobs.calls()[21] == 2, "the deadly call, and the one after it"


HANDED_ON = """
import math, pickle
from prepcache.fill import commit, on_access

on_access.LEASE_FROM_S = math.inf  # on a busy machine no item is cheap
commit.THREAD.schedule = lambda *_: None  # nothing is in files just because time has passed

def make(item):
    called(item)
    return np.full(3, item)

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
def test_what_was_made_is_not_made_where_a_set_is_handed_on(jobs: Jobs, how: str) -> None:
    jobs.run(jobs.write(HANDED_ON), how)
    assert jobs.calls() == Counter(range(20))


AT_ONCE = """
import prepcache.making
from prepcache.fill import commit, on_access

commit.THREAD.schedule = lambda *_: None  # all is committed at the end
both, begun = threading.Barrier(2), on_access.OnAccess.__init__

def slowly(*arguments):
    try:
        both.wait(1)  # would let both threads in
    except threading.BrokenBarrierError:
        pass
    begun(*arguments)

on_access.OnAccess.__init__ = slowly

def make(item):
    called(item)
    return np.full(3, item)

ds = prepcache.CachedDataset(list(range(2)), make, lazy=True, progress=False)
threads = [threading.Thread(target=ds.__getitem__, args=(item,)) for item in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
tell()
"""


def test_what_threads_make_first_is_stored(jobs: Jobs) -> None:
    script = jobs.write(AT_ONCE)
    jobs.run(script)
    jobs.run(script)
    assert jobs.calls() == Counter(range(2))


POOL = """
from concurrent.futures import ThreadPoolExecutor
from prepcache.fill import workers

handed_in, submit = threading.Event(), workers.InExecutor.submit

def noted(*given):
    submit(*given)
    handed_in.set()

workers.InExecutor.submit = noted

def make(item):
    called(item)
    return np.full(3, item)

def read():
    handed_in.wait()
    return int(ds[0][0])

with ThreadPoolExecutor(1) as pool:
    ds = prepcache.CachedDataset(list(range(4)), make, lazy=True, executor=pool, progress=False)
    reading = pool.submit(read)
    ds.prepare()
    assert reading.result() == 0
assert [int(sample[0]) for sample in ds] == [0, 1, 2, 3]
tell()
"""


def test_a_thread_of_the_pool_may_read_what_waits_for_the_pool(jobs: Jobs) -> None:
    """It makes it itself: what is handed in waits for it."""
    jobs.run(jobs.write(POOL))
    assert jobs.calls() == Counter([0, *range(4)])
