"""A fill, and samples made on access, when one step goes wrong: nothing is lost, nothing is made twice."""

import gc
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from prepcache import CachedDataset, Client
from prepcache.daemon import waits
from prepcache.daemon.session import Session
from prepcache.daemon.waits import WaitBudget
from prepcache.errors import (
    ArtifactError,
    DaemonUnreachable,
    Declined,
    LeaseLapsed,
    PreprocessError,
    SampleError,
    StagedFileRefused,
    StoreError,
    VerifyError,
)
from prepcache.fill import call, commit, filler, on_access, share
from prepcache.fill.commit import Committer
from prepcache.forks import Living
from prepcache.protocol import wire
from prepcached.leases import MIN_SPAN_S
from support.serving import READY_S, serving, wait_until

OPTIONS: dict[str, Any] = {"code": None, "version": "1", "progress": False}


@pytest.fixture(autouse=True)
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits are made when a test says so, or because somebody waits; what failed is soon offered again."""
    monkeypatch.setattr(on_access, "SOON_S", 1e6)
    monkeypatch.setattr(commit, "RETRY_S", 0.05)
    monkeypatch.setattr(waits, "SPARE_S", READY_S)  # a busy machine is no slow daemon


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Callable[[], Client]]:
    """Clients whose sessions are their own, as those of other processes."""
    clients: list[Client] = []

    def give() -> Client:
        name = tmp_path / f"{len(clients)}.sock"
        name.symlink_to("s.sock")
        clients.append(Client(f"unix://{name}", budget=WaitBudget(60.0)))
        return clients[-1]

    yield give
    for client in clients:
        Session.current(client).close()


class Job:
    """A data set over numbers, and what its function was called with."""

    def __init__(self, client: Client, items: Any, function: Any = None, **options: Any) -> None:
        self.called: list[int] = []
        self.session = Session.current(client)

        def make(item: int) -> Any:
            self.called.append(item)
            return np.full(1000, item) if function is None else function(item)

        self.ds = CachedDataset(items, make, client=client, **OPTIONS, **options)

    def values(self, *positions: int) -> list[int]:
        return [int(sample[0]) for sample in self.ds.__getitems__(positions or range(len(self.ds)))]

    def flush(self) -> None:
        if (here := self.ds._samples.on_access) is not None:
            here.run(), here.committer.flush()


def stored(client: Client) -> int:
    return sum(entry.items for entry in client.entries())


def fail(patch: pytest.MonkeyPatch, client: Client, name: str, error: Exception, times: int = 1) -> None:
    """So many calls of a session's method fail."""
    session, left = Session.current(client), itertools.repeat(error, times)
    method = getattr(session, name)

    def failing(*given: Any, **named: Any) -> Any:
        if (refusal := next(left, None)) is not None:
            raise refusal
        return method(*given, **named)

    patch.setattr(session, name, failing)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("error", "is_stored"),
    [
        (StagedFileRefused("a killed daemon had moved it"), True),
        (LeaseLapsed("it lapsed"), True),
        (StoreError("Input/output error"), True),
        (DaemonUnreachable("it was killed"), True),
        (Declined("there is no room"), False),
        (ValueError("a bug"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_commit_that_failed_is_offered_again(client, monkeypatch, caplog, error, is_stored, lazy):
    """Not what was refused, which is said; the job has its samples either way."""
    fail(monkeypatch, client, "commit", error)
    job = Job(client, range(10), lazy=lazy)
    assert job.values() == list(range(10))
    job.flush()
    assert job.values() == job.called == list(range(10))
    assert wait_until(lambda: stored(client) == 10 * is_stored)
    assert is_stored or str(error) in str(job.ds.report().why) + caplog.text


def test_a_lease_that_keeps_lapsing_is_given_up(client, monkeypatch):
    fail(monkeypatch, client, "commit", LeaseLapsed("it lapsed"), times=100)
    job = Job(client, range(10))
    assert "took this job" in str(job.ds.report().why) and job.values() == list(range(10))


def test_a_daemon_that_always_says_look_again_is_given_up(client, monkeypatch):
    again = (wire.LeaseAnswer(look_again=wire.Resolved(n, True, ())) for n in itertools.count(1))
    monkeypatch.setattr(Session.current(client), "lease", Mock(side_effect=again))
    job = Job(client, range(10))
    assert "daemon keeps announcing" in str(job.ds.report().why) and job.values() == list(range(10))


def test_items_taken_by_others_do_not_cost_the_rest(tmp_path, monkeypatch, another):
    ahead_s = [0.0]  # by which the daemon's clock is put forward
    with serving(tmp_path, lambda: time.monotonic() + ahead_s[0]):
        client, others = another(), another()
        session, lapses = Session.current(client), iter([True])
        true, other = session.commit, Job(others, [3], lazy=True)

        def lapsed(*given: Any, **named: Any) -> Any:
            if next(lapses, False):
                ahead_s[0] = 2 * MIN_SPAN_S
                assert other.values() == other.called == [3]
                other.flush()
            return true(*given, **named)

        monkeypatch.setattr(session, "commit", lapsed)
        job = Job(client, range(10))
        assert job.values() == job.called == list(range(10))
        assert stored(client) == 10


def test_while_a_commit_hangs_no_other_is_waited_for(client, monkeypatch):
    """And all of them are stored when it goes on."""
    monkeypatch.setattr(waits, "SPARE_S", 0.05)
    monkeypatch.setattr(waits, "COMMIT_BYTES_PER_S", 1e18)
    monkeypatch.setattr(filler, "COMMIT_ITEMS", 4)
    session, may_end, begun = Session.current(client), threading.Event(), list[int]()
    true = session.commit

    def hang(*given: Any, **named: Any) -> Any:
        begun.append(1)
        assert may_end.wait(READY_S)
        return true(*given, **named)

    monkeypatch.setattr(session, "commit", hang)
    try:
        job = Job(client, range(40))
        assert job.values() == list(range(40))
        assert len(begun) == 1 and stored(client) == 0
    finally:
        may_end.set()
    assert wait_until(lambda: stored(client) == 40)
    assert sorted(job.called) == list(range(40))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ArtifactError("too many inputs")])
def test_without_a_file_pending_samples_are_recomputed(client, monkeypatch, error):
    monkeypatch.setattr("prepcache.fill.pending.LocalFile", Mock(side_effect=error))
    job = Job(client, range(10))
    assert f"could not be written to a temporary file: {error}" in str(job.ds.report().why)
    assert job.values() == list(range(10)) and stored(client) == 0


def test_expanded_items_that_are_not_stored_share_a_file(tmp_path, another):
    """Each file has a descriptor, and there may be any number of such items."""
    with serving(tmp_path, min_free=1 << 60):
        client, before = another(), len(os.listdir("/proc/self/fd"))
        ds = CachedDataset(range(200), lambda item: [item], expand=True, client=client, **OPTIONS)
        assert list(ds) == list(range(200))
        assert len(os.listdir("/proc/self/fd")) < before + 100


@pytest.mark.parametrize(
    "held", [(n for n in ()), threading.Lock(), lambda: 0], ids=["yield", "lock", "lambda"]
)
@pytest.mark.parametrize("expand", [False, True])
def test_an_unpicklable_sample_is_refused_alike_with_workers(client, monkeypatch, held, expand):
    """It never comes to the column that does not hold it; and no worker dies of it."""
    monkeypatch.setattr(call, "PART_BYTES", 100)

    def one(item: int) -> Any:
        return {"x": [held]} if item == 3 else np.full(20, item)

    def several(item: int) -> Iterator[Any]:
        yield from (np.full(20, item), one(item))

    said = []
    for workers in (0, 1):
        with pytest.raises(SampleError, match=r"item 2 \(3\): sample\['x'\]\[0\]: a value of type") as caught:
            function = several if expand else one
            CachedDataset([1, 2, 3], function, expand=expand, num_workers=workers, client=client, **OPTIONS)
        said.append((caught.value.message, caught.value.data))
    assert said[0] == said[1]


def test_a_second_interrupt_keeps_what_is_being_committed(client, monkeypatch):
    may_commit, true = threading.Event(), Committer._commit

    def commit_then(*given: Any) -> Any:
        assert may_commit.wait(READY_S)
        return true(*given)

    interrupt = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(Committer, "_commit", commit_then)
    monkeypatch.setattr(Committer, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Job(client, range(10), lambda item: interrupt() if item == 5 else np.full(8, item))
    may_commit.set()
    assert wait_until(lambda: stored(client) == 5)


def test_a_fill_ends_where_no_thread_can_commit(client, monkeypatch):
    """What it made is committed at the end of the process."""

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(waits, "SPARE_S", 0.05)
    monkeypatch.setattr(commit, "threading", SimpleNamespace(**{**vars(threading), "Thread": Refused}))
    monkeypatch.setattr(commit, "THREAD", commit._Thread())  # one of an earlier test may still run
    job = Job(client, range(10))
    assert job.values() == job.called == list(range(10)) and stored(client) == 0
    job.session.close()
    assert stored(client) == 10


def test_uncommitted_work_stays_below_5_s_or_2_percent(monkeypatch):
    clock = SimpleNamespace(now=100.0)  # beside a cheap function, most of the time goes into keeping samples
    monkeypatch.setattr(share, "time", SimpleNamespace(monotonic=lambda: clock.now))
    measured = share.Pace(slots=2)
    for clock.now, is_due in (100.0, False), (103.9, False), (104.1, True):
        measured.note(1e-6, 10)
        assert measured.is_commit_due(0) == is_due
    measured.uncommitted_since, clock.now = 9_900.0, 10_098.0
    assert not measured.is_commit_due(share.COMMIT_BYTES - 1)
    assert measured.is_commit_due(share.COMMIT_BYTES)


def test_small_samples_beside_large_ones_keep_their_clock(client, monkeypatch):
    measured, since = share.Pace(), list[float]()
    monkeypatch.setattr(filler, "Pace", lambda slots: measured)
    monkeypatch.setattr(call, "PART_BYTES", 4000)  # so that the second item has a file of its own

    def parts(item: int) -> Iterator[Any]:
        since.append(measured.uncommitted_since)
        yield from np.zeros((1, 100, 1)[item], "(100,)f8")

    CachedDataset(range(3), parts, expand=True, client=client, **OPTIONS)
    assert since[1] == since[2] < math.inf


def test_leases_grow_to_seconds_and_shrink_near_the_end():
    measured = share.Pace()
    assert measured.want(1000, 0) == 1
    measured.note(0.1, 10)
    assert 10 <= measured.want(1000, 0) <= 20
    assert measured.want(60, 0) == 10
    assert measured.want(10, 4) == 1


# -- on access


def test_who_waits_for_others_commits_what_it_made(client, another):
    """Else two jobs that each have what the other wants would wait for ever."""
    one, two = Job(client, [1, 2], lazy=True), Job(another(), [2, 1], lazy=True)
    assert (one.values(0), two.values(0)) == ([1], [2])
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(Job.values, (one, two))] == [[1, 2], [2, 1]]
    assert (one.called, two.called) == ([1], [2])


def test_threads_of_one_job_make_an_item_once(client):
    begun, may_end = threading.Event(), threading.Event()

    def slow(item: int) -> Any:
        begun.set()
        assert may_end.wait(READY_S)
        return np.full(8, item)

    job = Job(client, [5], slow, lazy=True)
    with ThreadPoolExecutor(3) as pool:
        got = [pool.submit(job.values) for _ in range(3)]
        assert begun.wait(READY_S)
        may_end.set()
    assert [one.result() for one in got] == [[5]] * 3 and job.called == [5]


def test_samples_have_memory_of_their_own(client):
    """A function may use its own again at its next call."""
    buffer = np.zeros(3)

    def reusing(item: int) -> Any:
        buffer[:] = item
        return buffer

    job = Job(client, [1, 2, 3], reusing, lazy=True)
    assert job.values() == [1, 2, 3]
    buffer[:] = 0
    assert job.values() == [1, 2, 3], "what waits for its commit, too"


def test_cheap_items_asked_for_one_by_one_cost_no_request_each(client, monkeypatch):
    monkeypatch.setattr(on_access, "LEASE_FROM_S", math.inf)  # on a busy machine no item is cheap
    job, leases = Job(client, range(10), lazy=True), list[Any]()
    true = job.session.lease
    monkeypatch.setattr(job.session, "lease", lambda *a, **n: leases.append(n) or true(*a, **n))
    assert [int(job.ds[at][0]) for at in range(8)] == list(range(8))
    assert len(leases) == 1
    job.flush()
    assert stored(client) == 8


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_could_not_be_made_is_given_back(client, another, monkeypatch, error):
    """And what the batch had made before is committed."""
    monkeypatch.setattr(waits, "BEAT_LONGEST_S", waits.BEAT_SHORTEST_S)

    def fails(item: int) -> Any:
        if item == 2:
            raise error("no")
        return np.full(8, item)

    job = Job(client, [1, 2, 3], fails, lazy=True)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else PreprocessError):
        job.values()
    other = Job(another(), [2, 3, 1], lazy=True)
    assert other.values() == [2, 3, 1]
    assert (job.called, other.called) == ([1, 2], [2, 3])


@pytest.mark.parametrize(("limit", "value"), [("AWAY_FILES", 4), ("AWAY_BYTES", 1)])
def test_what_is_made_in_an_outage_is_bounded_and_stored(tmp_path, monkeypatch, limit, value):
    """Each file has a descriptor. A data set that was dropped meanwhile loses nothing."""
    monkeypatch.setattr(commit, limit, value)
    monkeypatch.setattr(commit, "_WAITING", Living())  # without those of other tests' jobs
    client = Client(f"unix://{tmp_path}/s.sock", budget=WaitBudget(1.0))
    with serving(tmp_path):
        job = Job(client, range(20), lazy=True)
    for at in range(20):
        assert job.values(at) == [at]
        job.flush()
    client.budget.budget_s = 60.0  # on a busy machine it is slow to answer again
    kept, session = (4 if limit == "AWAY_FILES" else 1), job.session
    del job
    gc.collect()
    with serving(tmp_path):
        assert wait_until(lambda: not session.is_gone)
        assert wait_until(lambda: stored(client) == kept)
        assert Job(client, range(20), lazy=True).ds.cached() == kept
        session.close()


@pytest.mark.parametrize("is_own", [False, True], ids=["of others", "its own item"])
def test_a_function_may_read_its_data_set_in_its_threads(client, monkeypatch, is_own):
    """Its call waits for them, so that they do not wait for it."""
    monkeypatch.setattr(on_access, "PATIENCE_S", 0.01 if is_own else math.inf)
    is_outer = threading.Event()

    def summed(item: int) -> Any:
        if is_outer.is_set() or item == 0:
            return np.full(8, 1)
        if is_own:
            is_outer.set()
        with ThreadPoolExecutor(1) as pool:
            (before,) = pool.submit(job.values, item if is_own else item - 1).result(READY_S)
        return np.full(8, 1 + before)

    job = Job(client, range(4), summed, lazy=True)
    assert job.values(3) == job.values(3) == [2 if is_own else 4]
    assert len(set(job.called)) == len(job.called) - is_own


made: list[str] = []


def make(item: str) -> dict[str, Any]:
    made.append(item)
    return {"x": np.array([len(item)]), "y": [item]}


def test_an_item_is_made_once_for_a_batch_and_given_in_copies(monkeypatch, tmp_path):
    monkeypatch.setenv("PREPCACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ds = CachedDataset(["a", "bb", "a"], make, lazy=True, progress=False, untracked=("made",))
    made.clear()
    samples = ds.__getitems__([0, 1, 2, -1, 1])
    assert made == ["a", "bb"]
    assert [sample["y"] for sample in samples] == [["a"], ["bb"], ["a"], ["a"], ["bb"]]
    samples[0]["x"][0] = 9
    samples[0]["y"].append("more")
    assert (samples[2]["x"].tolist(), samples[2]["y"]) == ([1], ["a"])


# -- hits that are made again to compare


def verify(client: Client, function: Any) -> None:
    CachedDataset(range(12), function, client=client, verify_fraction=1.0, **OPTIONS)


def test_items_purged_while_they_are_verified_do_not_differ(client):
    def purge(item: int) -> Any:
        if item == 4:
            client.purge(everything=True)
        return np.full(1000, item)

    Job(client, range(12))
    verify(client, purge)


def test_an_error_while_verifying_keeps_its_cause(client):
    def broken(item: int) -> None:
        raise ValueError("bad") from KeyError(item)

    Job(client, range(12))
    with pytest.raises(PreprocessError, match="again failed: bad") as raised:
        verify(client, broken)
    assert isinstance(cause := raised.value.__cause__, ValueError) and isinstance(cause.__cause__, KeyError)


def test_a_difference_is_found_in_the_last_byte(client):
    def other(item: int) -> Any:
        sample = np.full(1000, item)
        sample[-1] += item == 4
        return sample

    Job(client, range(12))
    with pytest.raises(VerifyError, match=r"item 4 \(4\), preprocessed again"):
        verify(client, other)
