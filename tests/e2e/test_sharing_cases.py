"""Cases of sharing: deaths, restarts, other cuts of the data, data larger than the cache."""

from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from prepcache.daemon.client import Client
from support import serving
from support.jobs import Jobs


def url_of(jobs: Jobs) -> str:
    return f"unix://{jobs.box.folder}/s.sock"


def client_of(jobs: Jobs) -> Any:
    return closing(Client(url_of(jobs)))


# -- restarts

ONE_LEASE = 150 // 6
"""Of 150 items one lease holds at most so many (fill/share.py)."""

EPOCHS = """
wait = threading.Event()

def make(item):
    called(item)
    wait.wait(0.02)
    return np.full(500, item)

items = list(range(150))
barrier()
ds = prepcache.CachedDataset(items, make, untracked=("wait",), progress=False)
print("filled", flush=True)
epochs = 0
while not os.path.exists("enough"):
    order = np.random.default_rng(epochs).permutation(150)
    assert [int(s[0]) for s in ds.__getitems__(order)] == order.tolist()
    epochs += 1
    if epochs % 50 == 0:
        Path(f"new-{os.getpid()}").write_text(str(epochs))
        os.replace(f"new-{os.getpid()}", f"epochs-{os.getpid()}")
tell(ds, cached=ds.cached(), epochs=epochs)
"""


def test_a_daemon_killed_in_mid_fill_or_epoch_is_not_noticed(jobs):
    script = jobs.write(EPOCHS)
    folder = jobs.box.folder
    with serving.process(folder):
        running = [jobs.begin(script, PREPCACHE_URL=url_of(jobs)) for _ in range(2)]
        assert serving.wait_until(lambda: jobs.calls().total() >= 50)
    under_lease = jobs.calls().total() + 2 * ONE_LEASE
    with serving.process(folder), client_of(jobs) as client:
        for one in running:
            one.says("filled")
        made = jobs.calls()
        assert set(made) == set(range(150))
        assert made.total() <= 150 + under_lease, "more is made twice than was under lease"
        before = {seen.pid: seen.holds for seen in client.sessions()}
        assert set(before) == {one.process.pid for one in running} and all(before.values())
        marks = [folder / f"epochs-{one.process.pid}" for one in running]
        assert serving.wait_until(lambda: all(mark.exists() for mark in marks))
    reached = [int(mark.read_text()) for mark in marks]
    assert serving.wait_until(
        lambda: all(int(m.read_text()) > r for m, r in zip(marks, reached, strict=True))
    ), "epochs go on while there is no daemon"
    with serving.process(folder), client_of(jobs) as client:
        assert serving.wait_until(lambda: {s.pid: s.holds for s in client.sessions()} == before), (
            "sessions and holds come back"
        )
        (folder / "enough").touch()
        facts = [one.facts() for one in running]
        assert [one["cached"] for one in facts] == [150, 150]
        assert jobs.calls() == made, "nothing is made again"
        assert client.stats()["sessions"] == client.stats()["leases"] == client.stats()["held_bytes"] == 0


# -- data larger than the cache

EPOCHS_OVER_BUDGET = """
def make(item):
    called(item)
    return np.random.default_rng(item).integers(0, 256, 65536, np.uint8)

def expand(item):
    yield make(item)

def main():
    how, count, offset = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    items = list(range(offset, offset + count))
    options = {"lazy": how == "lazy", "expand": how == "expand", "progress": False}
    ds = prepcache.CachedDataset(items, expand if how == "expand" else make, **options)
    log = Path(os.environ["CALL_LOG"])
    calls = [len(log.read_text().splitlines()) if log.exists() else 0]
    for epoch in range(3):
        order = np.random.default_rng(epoch).permutation(count).tolist()
        for start in range(0, count, 50):
            batch = order[start : start + 50]
            for at, got in zip(batch, ds.__getitems__(batch)):
                want = np.random.default_rng(items[at]).integers(0, 256, 65536, np.uint8)
                assert np.array_equal(got, want), at
            if (here := ds._samples.on_access) is not None:
                here.run(), here.committer.flush()  # else another epoch may wait for a slow commit
        calls.append(len(log.read_text().splitlines()) if log.exists() else 0)
    evictions = prepcache.Client().stats()["evictions"]
    made = [after - before for before, after in zip(calls, calls[1:])]
    tell(ds, epochs=made, cached=ds.cached(), evictions=evictions)

if __name__ == "__main__":
    main()
"""
BUDGET_BYTES = 16 << 20
COUNT = 512
"""Of 64 KiB each: twice the budget. A file of half a batch is then 256 KiB and has 8 KiB of its own."""


@pytest.mark.parametrize("how", ["prepare", "lazy", "expand"])
def test_data_of_twice_the_budget_keep_a_steady_half(jobs, how):
    script = jobs.write(EPOCHS_OVER_BUDGET)
    options = ("--max-bytes", str(BUDGET_BYTES), "--min-free", "0")
    with serving.process(jobs.box.folder, *options), client_of(jobs) as client:
        facts = jobs.run(script, how, COUNT, 0, PREPCACHE_URL=url_of(jobs))
        for made in facts["epochs"][1:]:
            assert COUNT - made >= 0.9 * COUNT / 2, facts["epochs"]
        assert client.stats()["disk_bytes"] <= BUDGET_BYTES
        assert facts["evictions"] == 0, "no thrash"
        if how == "expand":
            assert facts["epochs"] == [0, 0, 0], "what was declined is kept in the job's own file"
        jobs.forget()
        assert serving.wait_until(lambda: client.stats()["sessions"] == 0), "what it holds is not evicted"
        later = jobs.run(script, how, COUNT // 4, 10_000, PREPCACHE_URL=url_of(jobs))
        assert set(jobs.calls()) == set(range(10_000, 10_000 + COUNT // 4))
        assert serving.wait_until(lambda: client.stats()["staged_bytes"] == 0), "a slow commit is left behind"
        jobs.forget()
        again = jobs.run(script, how, COUNT // 4, 10_000, PREPCACHE_URL=url_of(jobs))
        why = f"{later['epochs']}, {later['cached']} cached, {later['evictions']} evicted: {later['why']}"
        assert again["hit"] == COUNT // 4, f"the first job has ended, but the later one did not get in: {why}"
        assert jobs.calls() == Counter()
        assert client.stats()["disk_bytes"] <= BUDGET_BYTES
