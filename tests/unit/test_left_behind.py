"""Commits that take too long: the job goes on with what it has made, and they go on without it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from prepcache import artifact
from prepcache.daemon import waits
from prepcache.daemon.transfer import commit_limit_s
from prepcache.errors import ArtifactError, DaemonUnreachable, Declined, StoreError
from prepcache.fill import background_commit, backlog, commit
from prepcache.fill.backlog import Backlog
from prepcache.fill.collect import Collected
from prepcache.fill.commit import Commits
from prepcache.fill.overflow import Spilled
from prepcache.fill.pacing import COMMIT_BYTES
from support.fake_session import FakeDaemon
from support.fills import Bench, daemon_fixture, left_behind  # noqa: F401
from support.serving import wait_until

pytestmark = pytest.mark.timeout(60)
ITEMS = list(range(40))
SPARE_S = waits.SPARE_S


class Hung:
    """The commits of a session hang until `end`; each may fail then."""

    all: ClassVar[list[Hung]] = []

    def __init__(self, bench: Bench, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self.begun = 0
        self._error = error
        bench.session.fail = self._fail
        self.all.append(self)

    def _fail(self, method: str) -> None:
        if method == "commit":
            self.begun += 1
            assert self.may_end.wait(60)
            if self._error is not None:
                raise self._error

    def end(self) -> None:
        """Lets them end, and waits until they have."""
        self.may_end.set()
        assert wait_until(lambda: not committing())


def committing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prepcache-commit"]


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long commits may be waited for while none is left behind: a moment."""
    fresh = Backlog()
    allowed: list[float] = []
    true = fresh.allowed_s

    def moment(nbytes: int, spare_s: float) -> float:
        allowed.append(min(true(nbytes, spare_s), 0.05))
        return allowed[-1]

    monkeypatch.setattr(fresh, "allowed_s", moment)
    for module in (background_commit, backlog):
        monkeypatch.setattr(module, "BACKLOG", fresh)
    yield allowed
    while Hung.all:
        Hung.all.pop().end()
    assert fresh.allowed_s(1, 1.0), "none is counted as left behind for ever"


def rows(item: int) -> Any:
    return np.full(1000, item, "i8")


def test_a_job_goes_on_with_its_samples_while_a_commit_hangs(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)
    filled = bench.fill()
    assert (sorted(filled.computed), sorted(filled.left), filled.reason) == (ITEMS, ITEMS, "")
    assert bench.samples() == [i * i for i in ITEMS]
    assert daemon.vain_s >= 0.05, "so much was lost to the daemon"
    assert daemon.artifacts == {}
    assert "release" not in bench.session.calls, "others would make them, too"
    hung.end()
    assert len(Bench(daemon, ITEMS, "after").task().todo) == 0, "it was stored all the same"
    assert left_behind(daemon) == 0
    assert len(bench.session.dropped) == 1, "nothing here maps it"


def test_while_one_is_left_behind_no_other_is_waited_for(
    daemon: FakeDaemon, allowed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what waits to be committed fill the memory."""
    writers: list[weakref.ref[artifact.Writer]] = []

    class Noted(artifact.Writer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            writers.append(weakref.ref(self))

    monkeypatch.setattr("prepcache.fill.collect.artifact.Writer", Noted)
    bench = Bench(daemon, ITEMS, function=rows)
    hung = Hung(bench)
    filled = bench.fill(commit_bytes=40_000)
    assert hung.begun == 1
    assert sorted(filled.left) == ITEMS
    assert allowed[0] > 0 and len(allowed) > 5 and not any(allowed[1:])
    filled.left.clear()
    assert len(writers) > 5
    assert sum(writer() is not None for writer in writers) <= 2, "of the commit that hangs, and the last one"
    hung.end()
    assert len(Bench(daemon, ITEMS, "after", rows).task().todo) == 0
    assert left_behind(daemon) == 0


@pytest.mark.parametrize(
    ("error", "is_offered"),
    [
        (DaemonUnreachable("it was killed"), True),
        (StoreError("Input/output error"), True),
        (Declined("there is no room"), False),
        (ValueError("a bug"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_uncommitted_samples_are_offered_later(
    daemon: FakeDaemon, error: Exception, is_offered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """If it is gone, or its store failed once; not if it refused, which is said. Others may make the items,
    either way."""
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench, error)
    adopted: list[Any] = []
    given_by: list[threading.Thread] = []

    def adopter() -> Callable[[list[Any]], None]:
        given_by.append(threading.current_thread())
        return adopted.extend

    filled = bench.fill(adopter=adopter)
    assert sorted(filled.left) == ITEMS and adopted == []
    hung.end()
    assert [sorted(batch.indices) for batch in adopted] == [ITEMS] * is_offered
    said = [message for message in caplog.messages if "samples are not stored" in message]
    assert len(said) == (not is_offered) and all(str(error) in message for message in said)
    assert set(given_by) == {threading.current_thread()}
    assert left_behind(daemon) == 0
    assert bench.samples() == [i * i for i in ITEMS]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ArtifactError("too many inputs")])
def test_without_a_file_pending_samples_are_recomputed(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """To wait for the only samples would hold the job as long as the daemon hangs."""
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)

    class Full(Spilled):
        def __init__(self, *_: Any) -> None:
            raise error

    monkeypatch.setattr("prepcache.fill.commit.Spilled", Full)
    filled = bench.fill()
    assert f"could not be written to a temporary file: {error}" in filled.reason and filled.left == []
    assert bench.samples() == [None] * len(ITEMS)
    hung.end()
    assert len(Bench(daemon, ITEMS, "after").task().todo) == 0, "it was stored all the same"
    assert left_behind(daemon) == 0


def test_an_interrupt_during_a_pending_commit_loses_nothing(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)
    at_close = bench.session.at_close
    calls = iter([True])

    def interrupted(callback: Callable[[], None]) -> None:
        if next(calls, False):
            raise KeyboardInterrupt
        at_close(callback)

    monkeypatch.setattr(bench.session, "at_close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.fill()
    assert bench.samples() == [i * i for i in ITEMS]
    hung.end()
    assert left_behind(daemon) == 0


def test_exit_waits_once_and_briefly_for_pending_commits(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[], None]] = []
    benches = [Bench(daemon, ITEMS, name, rows) for name in ("one", "two")]
    hung = [Hung(bench) for bench in benches]
    for bench in benches:
        bench.catalogue.refresh()  # each makes all, whatever the other has leased
        monkeypatch.setattr(bench.session, "at_close", ends.append)
    benches[0].fill(commit_bytes=40_000)
    assert len(ends) == 1, "for all batches of a fill"
    monkeypatch.setattr(waits, "GOODBYE_S", 0.05)
    ends[0]()
    assert committing(), "it hangs, and is not waited for"
    assert background_commit.BACKLOG.goodbye_s() == 0, "nor is any other"
    hung[0].end()


def test_a_slow_daemon_gets_more_time_than_an_unknown_one() -> None:
    known = Backlog()
    assert known.allowed_s(1, 0.0) == pytest.approx(waits.FREE_S, abs=0.01), "the budget is spent"
    assert known.beyond_s(COMMIT_BYTES, 2.0) == 0 < known.beyond_s(1, 2.0), "the time of its bytes is no loss"
    assert 0 < known.allowed_s(1, SPARE_S) < known.allowed_s(COMMIT_BYTES, SPARE_S) < waits.BUDGET_S
    known.note_speed(COMMIT_BYTES, 6.4)  # 20 MB/s
    assert known.allowed_s(COMMIT_BYTES, SPARE_S) > 3 * 6.4
    known.note_speed(COMMIT_BYTES, 1e6)
    for nbytes in (1, COMMIT_BYTES // 8, COMMIT_BYTES):
        left_s = commit_limit_s(nbytes) - known.allowed_s(nbytes, SPARE_S)
        assert left_s >= waits.FREE_S, "one that hangs is left behind, not given up"
    assert known.allowed_s(1 << 20, SPARE_S) < waits.SPARE_S + 1, "no daemon is that slow"
    known.note_speed(COMMIT_BYTES, 1e-6)
    assert known.allowed_s(COMMIT_BYTES, SPARE_S) == Backlog().allowed_s(COMMIT_BYTES, SPARE_S), (
        "the next may wait for the disk"
    )


def test_a_commit_that_ends_before_its_outcome_is_taken_has_one(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left behind: nothing here holds its artifact, so nothing may map it."""
    bench = Bench(daemon, ITEMS)
    hung = Hung(bench)

    def interrupted(callback: Callable[[], None]) -> None:
        if not bench.session.dropped:
            hung.may_end.set()
            assert wait_until(lambda: bool(bench.session.dropped))
            raise KeyboardInterrupt

    monkeypatch.setattr(bench.session, "at_close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.fill()
    assert bench.samples() == [i * i for i in ITEMS]
    assert not bench.catalogue.refs


def test_a_lease_is_given_back_after_the_last_of_its_commits(daemon: FakeDaemon) -> None:
    """One of its items changed, so that the daemon does not end it by itself."""
    bench = Bench(daemon, ITEMS, function=rows, changed=lambda index: ["x"] if index == 30 else [])
    hung = Hung(bench)
    filled = bench.fill(commit_bytes=40_000)
    assert sorted([*filled.left, 30]) == ITEMS and filled.changed == {30: ["x"]}
    other = Bench(daemon, ITEMS, "other", rows)
    task = other.task()

    def granted() -> list[int]:
        digests = task.catalogue.distinct.digests[task.todo]
        asked = {"want": 40, "cost_s": 0.0, "nbytes": 0, "wait_s": 0.0}
        answer = other.session.lease(task.recipe.digest, task.generation, digests, **asked)
        return [int(task.todo[at]) for at in answer.granted]

    assert granted() == [], "they lie in commits that go on"
    hung.end()
    task = other.task()
    assert task.todo.tolist() == [30] and granted() == [30]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ArtifactError("too many inputs")])
def test_a_declined_batch_without_a_file_has_an_outcome(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    daemon.room = 1
    bench = Bench(daemon, ITEMS)
    task = bench.task()
    collected = Collected(task)
    for index in range(8):
        collected.add(*bench.job.parts(index, bench.item_of(index)), None)

    def full(*_: Any) -> None:
        raise error

    monkeypatch.setattr(commit, "Spilled", type("Full", (Spilled,), {"__init__": full}))
    [outcome] = Commits(bench.session, task.recipe.digest, {}).commit(collected.batch([]), task.generation)
    assert outcome.is_declined and outcome.batch.indices == list(range(8)) and not outcome.kept
    assert left_behind(daemon) == 0
