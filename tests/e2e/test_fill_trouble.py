"""Fills in trouble: jobs that stall, daemons that hang or lose answers, samples that are purged."""

import json
import os
import signal
import time
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from prepcache.daemon.client import Client
from prepcache.errors import LeaseLapsed
from prepcached.leases import MIN_SPAN_S
from support import serving
from support.fake_daemon import FakeDaemon, Hang, Request, problem
from support.lossy_relay import Loss, Relay

STEPS = """
wait = threading.Event()

def make(item, pause_s):
    called(item)
    wait.wait(pause_s)
    return np.full(1000, item)

items = json.loads(sys.argv[1])
if "away" in sys.argv:
    waits.COMMIT_BYTES_PER_S, waits.COMMIT_LIMIT_S = 100, 600.0
barrier()
options = {"lazy": bool({"lazy", "away"} & {*sys.argv}), "progress": False, "untracked": ("wait",)}
ds = prepcache.CachedDataset(items, make, {"pause_s": float(sys.argv[2])}, **options)
for position, item in enumerate(items):
    assert (ds[position] == item).all()
tell(ds, cached=ds.cached())
"""


STREAM = """
import torch

items = json.loads(sys.argv[1])
barrier()
ds = prepcache.CachedIterableDataset(iter(items), make, progress=False)
got = torch.cat(list(torch.utils.data.DataLoader(ds, batch_size=10)))
assert got[:, 0].tolist() == items
tell(ds)
"""


@pytest.mark.timeout(300)
@pytest.mark.nightly(daily=["filled", "away"])
@pytest.mark.parametrize("how", ["filled", "lazy", "stream", "away"])
def test_a_daemon_that_hangs_from_a_commit_on_holds_no_job(jobs, how):
    """Nor the end of its process. It would wait as long as a commit may take: ten minutes."""
    items, folder, hung = list(range(40)), jobs.box.folder, list[str]()

    def lose(request: Request) -> Loss:
        if request.path.endswith("/commit") or (how == "away" and hung):
            hung.append(request.path)
            raise Hang
        return "nothing"

    relay = Relay(f"{folder}/s.sock", lose)
    with serving.process(folder), FakeDaemon(f"{folder}/relay.sock", relay):
        url = f"unix://{folder}/relay.sock"
        script = jobs.write(STREAM if how == "stream" else STEPS)
        pause_s = 0.05 if how == "away" else 0.0
        one = jobs.begin(script, json.dumps(items), pause_s, how, PREPCACHE_URL=url, BUDGET_S="5")
        facts = one.facts()
        assert one.process.wait(60) == 0
        assert hung
    assert facts["computed"] == 40
    assert jobs.calls() == Counter(dict.fromkeys(items, 1))


GAVE_UP = """
ds = prepcache.CachedDataset(list(range(40)), make, progress=False)
open(sys.argv[1], "w").close()
assert [int(ds[i][0]) for i in range(40)] == list(range(40))
tell(ds)
"""


def test_samples_made_after_sharing_was_given_up_are_stored(jobs):
    """Else each of its epochs makes it again, and the next job, too."""
    script, folder = jobs.write(GAVE_UP), jobs.box.folder
    relay, opened = Relay(f"{folder}/s.sock", lambda _: "nothing"), folder / "opened"

    def answer(request: Request) -> bytes | None:
        if request.path.endswith("/commit") and not opened.exists():
            return problem("lease-lapsed", 409, "it lapsed")
        return relay(request)

    with serving.process(folder), FakeDaemon(f"{folder}/relay.sock", answer):
        url = f"unix://{folder}/relay.sock"
        hits = [jobs.run(script, opened, PREPCACHE_URL=url)["hit"] for _ in range(2)]
    assert hits == [0, 40]


PURGED_UNDER_EPOCHS = """
import torch

ds = prepcache.CachedDataset(list(range(30)), make, progress=False)
prepcache.Client().purge(everything=True)
deadline = time.monotonic() + 30
while not ds._samples.by.artifacts.has_lost and time.monotonic() < deadline:
    threading.Event().wait(0.05)
workers = int(sys.argv[1])
for epoch in range(3):
    loader = torch.utils.data.DataLoader(ds, batch_size=10, num_workers=workers)
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(30))
    if workers:
        ds._samples.by.artifacts.look()
    else:
        ds._samples.on_access.run()
        ds._samples.on_access.committer.flush()
assert ds.cached() == 30
tell(ds)
"""


@pytest.mark.nightly(daily=["2"])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_purged_under_a_job_are_recomputed_and_stored(jobs, workers):
    """Else each epoch from then on would make all of it again."""
    jobs.run(jobs.write(PURGED_UNDER_EPOCHS), workers)
    assert jobs.calls() == Counter(dict.fromkeys(range(30), 2))


STOPPING = """    called(item)
    if item == 5 and not os.path.exists("stopped"):
        Path("stopped").touch()
        os.kill(os.getpid(), 19)
"""


def test_a_stopped_job_is_fenced_and_goes_on(jobs, monkeypatch):
    script = jobs.write(STEPS.replace("    called(item)\n", STOPPING))
    items, url = list(range(20)), f"unix://{jobs.box.folder}/s.sock"
    ahead_s = [0.0]  # by which the daemon's clock is put forward
    with (
        serving.serving(jobs.box.folder, lambda: time.monotonic() + ahead_s[0]) as box,
        closing(Client(url)) as client,
    ):
        table = box.daemon.leases
        begin, refused = table.begin_commit, []

        def noting(*asked: Any) -> Any:
            try:
                return begin(*asked)
            except LeaseLapsed as error:
                refused.append(error)
                raise

        monkeypatch.setattr(table, "begin_commit", noting)
        first = jobs.begin(script, json.dumps(items), 0.01, PREPCACHE_URL=url)
        assert serving.wait_until((jobs.box.folder / "stopped").exists)
        (stopped,) = client.sessions()
        leased = stopped.leased_items
        assert leased > 0
        second = jobs.begin(script, json.dumps(items), 0.01, PREPCACHE_URL=url)
        assert serving.wait_until(lambda: client.stats()["waiting"] == 1), "it waits for the stopped job"
        ahead_s[0] = 2 * MIN_SPAN_S
        assert second.facts()["cached"] == 20
        assert not refused
        os.kill(first.process.pid, signal.SIGCONT)
        assert first.facts()["cached"] == 20
        assert refused, "the commit of the stopped job came too late"
        assert sum(entry.items for entry in client.entries()) == 20, "nothing is stored twice"
        assert jobs.calls().total() <= 20 + leased


ENDED = """
import itertools, signal
from types import SimpleNamespace
from prepcache.fill import call, share

clock = itertools.count(0, 0.05)
call.time = SimpleNamespace(perf_counter=lambda: next(clock))
share.time = SimpleNamespace(monotonic=call.time.perf_counter)

def make(item):
    if item == 399 and "end" in sys.argv:
        until = time.monotonic() + 60
        with prepcache.Client() as client:
            while sum(entry.items for entry in client.entries()) < 300 and time.monotonic() < until:
                threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
    return np.full(100, item)

tell(prepcache.CachedDataset(range(400), make, code=None, version="1", progress=False))
"""


def test_a_job_that_sigterm_ends_loses_5_s_of_work(jobs):
    """After 20 s, at 50 ms an item: Python runs nothing at its end then."""
    script = jobs.write(ENDED)
    jobs.run(script, "end", exit_code=-signal.SIGTERM)
    assert jobs.run(script)["computed"] <= 100
