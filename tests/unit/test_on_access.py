"""Samples made on access: who makes what, and what becomes of it."""

import gc
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import prepcache
from prepcache import CachedDataset, Loader
from prepcache.errors import DaemonUnreachable, Declined, LimitExceeded, SampleError, StoreError
from prepcache.fill import call, commit, on_access
from prepcache.fill.pending import Batch, Collected
from prepcache.forks import Living
from support.fills import RECIPE, AccessJob, Bench, daemon_fixture, left_behind  # noqa: F401
from support.serving import wait_until


@pytest.fixture(autouse=True)
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits are made when a test says so, or because somebody waits."""
    monkeypatch.setattr(on_access, "SOON_S", 1e6)


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(call()), daemon=True)
    thread.start()
    return thread, got


def test_who_waits_for_others_commits_what_it_made(daemon):
    """Else two jobs that each have what the other wants would wait for ever."""
    one, two = AccessJob(daemon, [1, 2], "one"), AccessJob(daemon, [2, 1], "two")
    assert (one.samples(0), two.samples(0)) == ([1], [4])

    def whole(job: AccessJob) -> list[Any]:
        samples = job.samples(0, 1)
        job.made.flush()  # as its timer does: where the other's item was there by then, it has not waited
        return samples

    (thread, got), (other, also) = in_thread(lambda: whole(one)), in_thread(lambda: whole(two))
    thread.join(20)
    other.join(20)
    assert (got, also) == ([[1, 4]], [[4, 1]])
    assert one.bench.called == [1] and two.bench.called == [2]
    assert wait_until(lambda: left_behind(daemon) == 0)


def test_threads_of_one_job_make_an_item_once(daemon):
    begun, may_end = threading.Event(), threading.Event()

    def slow(item: int) -> Any:
        begun.set()
        assert may_end.wait(20)
        return np.int64(item)

    job = AccessJob(daemon, [5], function=slow)
    threads = [in_thread(lambda: job.samples(0)) for _ in range(3)]
    assert begun.wait(20)
    may_end.set()
    for thread, got in threads:
        thread.join(20)
        assert got == [[5]]
    assert job.bench.called == [5]
    job.forget()


def test_a_call_that_fails_leaves_others_their_items(daemon):
    """What another thread makes meanwhile is kept, though the call's batch had asked for it, too."""
    is_at = {1: threading.Event(), 2: threading.Event()}
    has_failed = threading.Event()

    def function(item: int) -> Any:
        is_at[item].set()
        assert (has_failed if item == 2 else is_at[2]).wait(20)
        if item == 1:
            raise ValueError("no sample")
        return np.int64(item)

    job = AccessJob(daemon, [1, 2], function=function)

    def failing() -> None:
        with pytest.raises(ValueError, match="no sample"):
            job.samples(0, 1)
        has_failed.set()

    thread, _ = in_thread(failing)
    assert is_at[1].wait(20)
    other, got = in_thread(lambda: job.samples(1))
    thread.join(20)
    other.join(20)
    job.made.flush()
    assert got == [[2]]
    assert Bench(daemon, [1, 2], "after").missing() == [0]


def test_samples_have_memory_of_their_own(daemon, monkeypatch):
    """A function may use its own again at its next call."""
    buffer = np.zeros(3)

    def reusing(item: int) -> Any:
        buffer[:] = item
        return buffer

    job = AccessJob(daemon, [1, 2, 3], function=reusing)
    assert [sample[0] for sample in job.samples(0, 1, 2)] == [1, 2, 3]
    buffer[:] = 0
    assert [sample[0] for sample in job.samples(0, 1, 2)] == [1, 2, 3], "what waits for its commit, too"
    job.made.flush()
    assert left_behind(daemon) == 0
    monkeypatch.setenv("PREPCACHE", "off")
    alone = prepcache.CachedDataset([1, 2, 3], reusing, code=None, version="1", lazy=True, progress=False)
    assert [sample[0] for sample in alone.__getitems__([0, 1, 2])] == [1, 2, 3], "without a daemon, too"


def test_cheap_items_asked_for_one_by_one_cost_no_request_each(daemon, monkeypatch):
    monkeypatch.setattr(on_access, "LEASE_FROM_S", math.inf)  # on a busy machine no item is cheap
    job = AccessJob(daemon, list(range(1, 11)))
    assert [job.samples(index) for index in range(8)] == [[item * item] for item in range(1, 9)]
    assert job.bench.session.calls.count("lease") == 1
    other = AccessJob(daemon, list(range(1, 9)), "other")
    other.samples(5, 6)
    other.made.flush()
    job.made.flush()
    assert job.bench.samples() == [*(item * item for item in range(1, 9)), None, None]
    assert job.samples(5, 6) == [36, 49] and sorted(job.bench.called) == list(range(1, 9))
    asked = job.bench.session.calls.count("lease")
    assert [job.samples(8), job.samples(9)] == [[81], [100]]
    assert job.bench.session.calls.count("lease") == asked, "also where another job makes the same"
    job.made.flush()
    assert wait_until(lambda: left_behind(daemon) == 0)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SampleError])
def test_what_could_not_be_made_is_given_back(daemon, error):
    """And what the batch had made before is committed."""

    def fails(item: int) -> Any:
        if item == 2:
            raise error("no")
        return np.int64(item)

    job, other = AccessJob(daemon, [1, 2, 3], function=fails), AccessJob(daemon, [2, 3, 1], "other")
    with pytest.raises(error):
        job.samples(0, 1, 2)
    assert job.bench.called == [1, 2]
    assert other.samples(0, 1, 2) == [4, 9, 1]
    assert other.bench.called == [2, 3]
    other.made.flush()
    assert wait_until(lambda: left_behind(daemon) == 0)


def test_what_waits_for_commits_is_not_declined_as_a_whole(daemon):
    """A cache that has room for some of it takes that."""
    daemon.room = 100_000
    job = AccessJob(daemon, list(range(20)), function=lambda item: np.full(1000, item, "i8"))
    job.artifacts.budget = 32 * 20_000
    job.made._share.suit_cache()
    job.samples(*range(20))
    job.made.flush()
    stored = sum(ref.items for refs in daemon.artifacts.values() for _, ref in refs)
    assert 6 <= stored <= 12 and bool(job.committer.reason) and left_behind(daemon) == 0


def test_a_fork_before_anything_is_made_asks_the_daemon_nothing(daemon, monkeypatch):
    job, asked = AccessJob(daemon, [1, 2]), list[str]()
    monkeypatch.setattr(job.artifacts, "budget_bytes", lambda: asked.append("how large is the cache?") or 0)
    job.made.before_fork()
    assert not asked
    job.samples(0)
    job.made.before_fork()
    assert asked


def test_an_end_waits_for_what_is_on_its_way_into_files(daemon):
    job = AccessJob(daemon, [1, 2])
    job.samples(0, 1)
    begun, has_ended, was_awaited = threading.Event(), threading.Event(), list[bool]()

    def observed() -> list[Any]:
        begun.set()
        was_awaited.append(not has_ended.wait(1))
        return []

    job.made._observed = observed
    thread, _ = in_thread(job.committer.run)
    assert begun.wait(20)
    job.committer.end()
    has_ended.set()
    thread.join(20)
    assert was_awaited == [True] and job.committer.is_idle
    assert job.bench.samples() == [1, 4] and left_behind(daemon) == 0


def aside(bench: Bench, index: int) -> Batch:
    """What a fill could not give to the daemon: in a file of this job."""
    collected = Collected(bench.task())
    collected.add(*bench.job.parts(index, bench.item_of(index)), None)
    batch = collected.batch([])
    bench.catalogue.add_local(batch.file)
    batch.has_failed = True
    return batch


@pytest.mark.parametrize("error", [LimitExceeded("one lease"), StoreError("an error"), Declined("no room")])
def test_a_refused_batch_does_not_stop_the_next(daemon, caplog, error):
    job = AccessJob(daemon, [1, 2, 3])
    job.samples(1)
    refusals = iter([error])

    def fail(method: str) -> None:
        if method == "lease" and (refusal := next(refusals, None)) is not None:
            raise refusal

    job.bench.session.fail = fail
    job.committer._add(aside(job.bench, 0))
    job.made.flush()
    assert job.committer.is_idle and bool(job.committer.reason)
    assert [text.partition("no longer stored: ")[2] for text in caplog.messages] == [str(error)]
    assert Bench(daemon, [1, 2, 3], "after").missing() == [0, 2]
    assert left_behind(daemon) == 0


def test_a_commit_that_hangs_is_left_to_the_daemon(daemon, monkeypatch):
    """Its lease lives as long as the daemon is at it: what is leased is not offered a second time."""
    job = AccessJob(daemon, [1, 2, 3])
    job.samples(0, 1)
    hung: list[Any] = []

    def hang(leases: Any, staged: Any, *, limit_s: float | None = None) -> Any:
        hung.append(daemon.table.begin_commit("job", [(lease.id, lease.token) for lease in leases]))
        raise DaemonUnreachable("it did not store the samples", why="broken")

    monkeypatch.setattr(job.bench.session, "commit", hang)
    job.made.flush()
    assert not job.committer.is_idle
    job.committer.flush()
    assert job.committer.is_idle and job.made.wants_more and len(hung) == 1
    assert job.bench.samples() == [1, 4, None], "the job still has them"
    daemon.table.abort_commit(hung[0])
    assert left_behind(daemon) == 0


def away(job: AccessJob) -> None:
    """The daemon of a job does not answer, and may come back."""

    def fail(method: str) -> None:
        raise DaemonUnreachable("it is away")

    job.bench.session.fail = fail
    job.bench.session.is_gone = job.bench.session.is_away = True


def back(job: AccessJob) -> None:
    job.bench.session.fail = lambda method: None
    job.bench.session.is_gone = job.bench.session.is_away = False


@pytest.mark.parametrize(("limit", "value"), [("AWAY_FILES", 4), ("AWAY_BYTES", 1)])
def test_an_outage_takes_few_files(daemon, monkeypatch, limit, value):
    """Each has a descriptor: a job that trains on through a long outage would run out of them."""
    monkeypatch.setattr(commit, limit, value)
    monkeypatch.setattr(commit, "_WAITING", Living())  # without those of other tests' jobs
    job = AccessJob(daemon, list(range(20)))
    away(job)
    for index in range(3):
        job.samples(index)
        job.committer.run()  # as the thread does every few seconds
    assert job.committer.is_idle, "nothing is in a file yet"
    job.artifacts.budget = 32
    job.made._share.suit_cache()
    for index in range(3, 20):
        if job.made.wants_more:
            job.samples(index)
    assert len(job.committer._todo) == 4
    back(job)
    job.committer.flush()
    assert job.committer.is_idle and job.made.wants_more
    assert Bench(daemon, list(range(20)), "after").missing() == list(range(4, 20))
    assert left_behind(daemon) == 0


def test_a_data_set_dropped_in_an_outage_loses_nothing(daemon, monkeypatch):
    """And one that is opened before the daemon answers finds what it made."""
    monkeypatch.setattr(commit, "RETRY_S", 0.05)
    job = AccessJob(daemon, [1, 2])
    away(job)
    job.samples(0)
    session, catalogue = job.bench.session, job.bench.catalogue
    del job
    gc.collect()
    for batch in commit.waiting_of(RECIPE.digest):
        catalogue.add_local(batch.file)
    assert 0 not in catalogue.missing
    session.fail, session.is_gone, session.is_away = (lambda method: None), False, False
    assert wait_until(lambda: Bench(daemon, [1, 2], "after").missing() == [1])
    assert left_behind(daemon) == 0


def test_what_two_jobs_made_in_part_in_an_outage_is_stored_whole(daemon):
    first, second = AccessJob(daemon, [1, 2, 3], "first"), AccessJob(daemon, [1, 2, 3], "second")
    for job, indices in ((first, (0, 1)), (second, (1, 2))):
        away(job)
        job.samples(*indices)
        job.made.run()
        job.committer.flush()
        assert not job.committer.is_idle
    for job in (first, second):
        back(job)
        job.committer.flush()
        assert job.committer.is_idle
    assert Bench(daemon, [1, 2, 3], "after").missing() == [] and left_behind(daemon) == 0


def test_a_job_that_ends_stores_what_others_do_not_make(daemon):
    """After an outage in which both made an item."""
    job, other = AccessJob(daemon, [1, 2]), AccessJob(daemon, [2], "other")
    away(job)
    job.samples(0, 1)
    job.made.run()
    job.committer.flush()
    other.samples(0)
    back(job)
    job.committer.end()
    assert job.committer.is_idle and Bench(daemon, [1, 2], "after").missing() == [1]
    other.committer.end()
    assert Bench(daemon, [1, 2], "after").missing() == [] and left_behind(daemon) == 0


def test_a_daemon_that_hangs_at_the_end_is_given_up(daemon, monkeypatch):
    """Else each of a job's data sets would wait for it."""

    def fail(method: str) -> None:
        if method == "commit":
            raise DaemonUnreachable("it hangs")

    given_up: list[str] = []
    monkeypatch.setattr(commit.THREAD, "schedule", lambda *_: None)
    job = AccessJob(daemon, [1, 2])
    monkeypatch.setattr(job.bench.session, "give_up_for_now", given_up.append)
    job.bench.session.fail = fail
    job.samples(0)
    job.committer.end()
    assert given_up == ["it hangs"]
    job.forget()


@pytest.mark.parametrize("is_own", [False, True], ids=["of others", "its own item"])
def test_a_function_may_read_its_data_set_in_its_threads(daemon, monkeypatch, is_own):
    """Its call waits for them, so that they do not wait for it."""
    monkeypatch.setattr(call, "PATIENCE_S", 0.01 if is_own else math.inf)
    is_outer = threading.Event()

    def summed(item: int) -> Any:
        if is_outer.is_set() or item == 0:
            return np.int64(1)
        if is_own:
            is_outer.set()
        with ThreadPoolExecutor(1) as pool:
            (before,) = pool.submit(job.samples, item if is_own else item - 1).result(60)
        return 1 + before

    job = AccessJob(daemon, list(range(4)), function=summed)
    assert job.samples(3) == [2 if is_own else 4]
    assert job.samples(3) == [2 if is_own else 4]
    assert len(set(job.bench.called)) == len(job.bench.called) - is_own
    job.made.flush()
    assert left_behind(daemon) == 0


@pytest.mark.parametrize("is_over", [False, True])
def test_a_worker_that_ends_in_an_outage_looks_once_more(daemon, monkeypatch, caplog, *, is_over):
    """What it made is stored if the daemon is there by then; else it is made again, and this is said once."""
    monkeypatch.setattr(commit, "parent_process", lambda: "a process")
    monkeypatch.setattr(commit.THREAD, "schedule", lambda *_: None)
    job = AccessJob(daemon, [1, 2, 3])
    away(job)
    job.samples(0, 2)
    monkeypatch.setattr(job.bench.session, "look_at_end", lambda: back(job) if is_over else None)
    job.committer.end()
    job.committer.end()
    assert ("commit" in job.bench.session.calls) == is_over
    said = ["2 samples that a worker made" in message for message in caplog.messages]
    assert said == ([] if is_over else [True])
    job.forget()


called: list[str] = []


def make(item: str) -> dict[str, Any]:
    called.append(item)
    return {"x": np.array([len(item)]), "y": [item]}


@pytest.mark.parametrize("by", ["batch", "loader"])
def test_an_item_is_made_once_for_a_batch_and_given_in_copies(monkeypatch, tmp_path, by):
    monkeypatch.setenv("PREPCACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ds = CachedDataset(["a", "bb", "a", "a"], make, lazy=True, progress=False, untracked=("called",))
    called.clear()
    if by == "loader":
        (samples,) = Loader(ds, 4, collate_fn=list)
    else:
        samples = ds.__getitems__([0, 1, 2, -1, 1])
    assert called == ["a", "bb"]
    assert [sample["y"] for sample in samples[:4]] == [["a"], ["bb"], ["a"], ["a"]]
    samples[0]["x"][0] = 9
    samples[0]["y"].append("more")
    assert [(sample["x"].tolist(), len(sample["y"])) for sample in samples[1:4]] == [
        ([2], 1),
        ([1], 1),
        ([1], 1),
    ]
