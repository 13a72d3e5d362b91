"""Lazy data sets beside each other: jobs at once, and DataLoader workers that are killed."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

from prepcache.control.client import Client
from support import serving
from support.jobs import Jobs

LAZY = """
import signal
from prepcache.data import lazy

lazy.COMMIT_S = 0.01

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
        epoch(ds)
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


def test_lazy_jobs_at_once_store_each_item_once(jobs: Jobs) -> None:
    script, url = jobs.write(LAZY), f"unix://{jobs.box.folder}/s.sock"
    with serving.process(jobs.box.folder), closing(Client(url)) as client:
        running = [jobs.start(script, "at once", PREPCACHE_URL=url) for _ in range(2)]
        for one in running:
            one.ready()
        for one in running:
            one.go()
        for one in running:
            one.facts()
        assert set(jobs.calls()) == set(range(60))
        check_each_item_is_stored_once(client)
        jobs.forget()
        third = jobs.start(script, "without workers", PREPCACHE_URL=url)
        third.ready()
        third.go()
        third.facts()
        assert jobs.calls() == Counter()


def test_a_killed_lazy_workers_session_goes_and_its_items_are_made_by_others(jobs: Jobs) -> None:
    script, url = jobs.write(LAZY), f"unix://{jobs.box.folder}/s.sock"
    with serving.process(jobs.box.folder), closing(Client(url)) as client:
        (jobs.box.folder / "deadly").touch()
        job = jobs.start(script, "killed", PREPCACHE_URL=url)
        job.ready()
        job.go()
        job.facts()
        assert (jobs.box.folder / "dead").read_text()
        check_each_item_is_stored_once(client)
        assert jobs.calls()[21] == 2, "the deadly call, and the one after it"
