"""What is collected of samples made on access: where an interrupt meets it, and at the end."""

from __future__ import annotations

import dataclasses
import threading
import types
from typing import Any

import numpy as np
import pytest

from prepcache.daemon import waits
from prepcache.daemon.wait_budget import own_time
from prepcache.errors import ArtifactError, DaemonUnreachable, Declined, LimitExceeded, StoreError
from prepcache.fill import on_access
from prepcache.fill.backlog import Backlog
from prepcache.fill.collect import Collected
from prepcache.fill.commit import Batch
from prepcache.fill.on_access import Keeper
from prepcache.fill.overflow import Spilled
from support.fake_session import FakeDaemon
from support.fills import RECIPE, Bench, daemon_fixture, left_behind  # noqa: F401
from support.serving import wait_until


def test_an_interrupt_drops_only_a_half_collected_sample(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(daemon, [1, 2, 3], function=str)
    task = bench.task()
    keeper = bench.keeper(task)
    monkeypatch.setattr(keeper, "_set_timer", lambda after_s: None)
    one, two, three = (next(iter(bench.job.parts(index, bench.item_of(index)))) for index in range(3))

    keeper.add(one)
    (group,) = keeper._collected._writer._groups.values()
    (column,) = group.columns

    def interrupted(value: str) -> None:
        column._values += value.encode()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(group, "_appends", [interrupted])
        keeper.add(two)
    keeper.add(three)
    keeper.pid = 0  # it commits nothing at the end of this process
    (spilled,) = keeper._collected.batch([]).spill(task.producer)
    assert [spilled.artifact.sample(row) for row in range(spilled.artifact.rows)] == ["1", "3"]
    assert set(keeper._pending) == {0, 2}


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("is_committing", [True, False])
def test_exit_awaits_a_commit_only_while_the_daemon_answers(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, is_committing: bool, is_there: bool
) -> None:
    """It waits on its own time: the job would lose that, and what it waits itself besides."""
    bench = Bench(daemon, [1])
    keeper = bench.keeper(bench.task())
    done = []

    def limits() -> dict[str, Any]:
        if not is_there:
            raise DaemonUnreachable("it hangs")
        return {}

    monkeypatch.setattr(keeper._artifacts.session, "limits", limits, raising=False)
    monkeypatch.setattr(keeper, "flush", lambda until: done.append("flushed"))
    if is_committing:
        keeper._committing.acquire()
    keeper.end()
    keeper.pid = 0  # it commits nothing at the end of this process
    assert bool(done) == (is_there or not is_committing)


def test_to_make_one_asks_the_daemon_nothing(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made where the daemon hangs, by who has just waited for it."""
    bench = Bench(daemon, [1, 2])
    asked = []
    keeper = bench.keeper(bench.task())
    monkeypatch.setattr(keeper._artifacts, "commit_bytes", lambda: asked.append("how much") or 1 << 20)
    Keeper(keeper._artifacts, bench.task(), list).pid = 0
    assert asked == []
    monkeypatch.setattr(keeper, "_set_timer", lambda after_s: None)
    keeper.add(*bench.job.parts(0, 1))
    keeper.pid = 0
    assert asked == ["how much"]


@pytest.mark.parametrize("is_passing", [True, False])
def test_what_a_store_had_an_error_for_is_offered_once_more(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_passing: bool
) -> None:
    bench = Bench(daemon, [1, 2, 3, 4])  # one more than are made: else a thread commits
    keeper = keeper_of(bench, monkeypatch)
    commits: list[str] = []

    def fail(method: str) -> None:
        if method == "commit":
            commits.append(method)
            if len(commits) == 1 or not is_passing:
                raise StoreError("a commit failed: Input/output error")

    bench.session.fail = fail
    for index in range(3):
        keeper.add(*bench.job.parts(index, bench.item_of(index)))
    keeper.flush()
    assert bench.samples() == [1, 4, 9, None], "from files of its own"
    for _ in range(3):
        keeper.flush()
    assert len(commits) == 2 and keeper.is_declined == (not is_passing)
    assert bool(daemon.artifacts) == is_passing
    assert ("no longer kept: a commit failed" in caplog.text) == (not is_passing)
    assert left_behind(daemon) == 0


def test_data_sets_that_end_together_wait_together(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Backlog()
    monkeypatch.setattr(on_access, "BACKLOG", known)
    now, given = [100.0], []
    monkeypatch.setattr(on_access, "time", types.SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0))
    for _ in range(8):
        keeper = keeper_of(Bench(daemon, [1]), monkeypatch)

        def flush(until: float) -> None:
            given.append((until - now[0], own_time()))
            now[0] = until

        monkeypatch.setattr(keeper, "flush", flush)
        keeper.end()
        keeper.pid = 0
    assert sum(span_s for span_s, _ in given) < waits.SPARE_S + 8 * waits.FREE_S
    assert all(span_s == pytest.approx(own_s) and own_s > 0 for span_s, own_s in given)


@pytest.mark.parametrize("is_in_hand", [False, True])
def test_what_waits_to_be_committed_is_read_and_not_made_again(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, is_in_hand: bool
) -> None:
    """Also while it is being committed; then the shared artifact takes the place of the file."""
    monkeypatch.setattr(on_access, "VAIN_S", 0.0)
    bench = Bench(daemon, [1, 2, 3, 4])
    keeper = keeper_of(bench, monkeypatch)
    for index in range(3):
        keeper.add(*bench.job.parts(index, bench.item_of(index)))
    begun, may_end = threading.Event(), threading.Event()

    def fail(method: str) -> None:
        if method == "commit":
            begun.set()
            assert may_end.wait(20)

    bench.session.fail = fail
    if is_in_hand:
        keeper._flush_soon()
        assert begun.wait(20)
    assert keeper.bring(1) and not keeper.bring(3), "which nobody has made"
    assert bench.samples() == [1, 4, 9, None]
    if is_in_hand:
        keeper.add(*bench.job.parts(3, 4))
        assert keeper.bring(3) and bench.samples() == [1, 4, 9, 16]
    may_end.set()
    assert wait_until(lambda: keeper.is_idle)
    assert len(Bench(daemon, [1, 2, 3, 4], "after").task().todo) == (not is_in_hand)
    assert bench.catalogue._own == [] and bench.samples() == [1, 4, 9, 16 if is_in_hand else None]
    assert left_behind(daemon) == 0


def test_another_threads_samples_carry_their_observed_inputs(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its samples would be given whatever becomes of that."""
    monkeypatch.setattr(on_access, "VAIN_S", 0.0)
    bench = Bench(daemon, [1, 2, 3])
    keeper = keeper_of(bench, monkeypatch)
    monkeypatch.setattr(keeper, "_flush_soon", lambda: None)
    read: list[str] = []

    def observed() -> list[dict[str, Any]]:
        seen = [{"kind": "file", "name": name, "digest": "ab" * 32} for name in read]
        if not read:
            read.append("labels.txt")
            keeper.add(*bench.job.parts(1, 2))
        return seen

    monkeypatch.setattr(keeper, "_observed", observed)
    keeper.add(*bench.job.parts(0, 1))
    assert not keeper.bring(0) and bench.samples() == [None, None, None]
    assert keeper.bring(0) and bench.samples() == [1, 4, None]
    (batch,) = keeper._brought
    assert [one["name"] for one in batch.observed] == read
    keeper.pid = 0  # it commits nothing at the end of this process


def test_samples_committed_by_others_are_not_stored_twice(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_access, "VAIN_S", 0.0)
    bench = Bench(daemon, [1, 2, 3, 4])
    keeper = keeper_of(bench, monkeypatch)
    monkeypatch.setattr(keeper, "_flush_soon", lambda: None)
    for index in range(3):
        keeper.add(*bench.job.parts(index, bench.item_of(index)))
    assert keeper.bring(1)
    Bench(daemon, [1, 2, 3, 4], "other").fill()
    keeper.flush()
    (refs,) = daemon.artifacts.values()
    assert [ref.items for _, ref in refs] == [4]
    assert bench.catalogue.refs == [ref for _, ref in refs] and bench.catalogue._own == []
    assert keeper.is_idle and bench.samples() == [1, 4, 9, 16]
    assert left_behind(daemon) == 0


def test_what_costs_less_than_a_file_is_made_again_for_a_while(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(daemon, [1, 2, 3])
    keeper = keeper_of(bench, monkeypatch)
    (part,) = bench.job.parts(0, 1)
    keeper.add(dataclasses.replace(part, cost_s=on_access.VAIN_S / 4))
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "_flush_soon", lambda: None)
        assert [keeper.bring(0) for _ in range(4)] == [False, False, False, True]
    assert bench.samples() == [1, None, None]
    keeper.flush()
    assert keeper.is_idle and daemon.artifacts


def no_file(error: Exception) -> type[Spilled]:
    """In place of files of this job: none takes anything."""

    class Refused(Spilled):
        tries = 0

        def __init__(self, *_: Any) -> None:
            type(self).tries += 1
            raise error

    return Refused


REFUSALS = [OSError(28, "No space left on device"), ArtifactError("300000 observed inputs")]


@pytest.mark.parametrize("error", REFUSALS, ids=["a full folder", "too many inputs"])
def test_pending_samples_without_a_file_are_recomputed(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Nor is the next file tried at once: each try writes until the folder is full."""
    bench, refused = Bench(daemon, [1, 2]), no_file(error)
    keeper = keeper_of(bench, monkeypatch)
    (part,) = bench.job.parts(0, 1)
    keeper.add(dataclasses.replace(part, cost_s=on_access.VAIN_S))
    monkeypatch.setattr("prepcache.fill.commit.Spilled", refused)
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "_flush_soon", lambda: None)
        assert [keeper.bring(0) for _ in range(50)] == [False] * 50
        assert refused.tries == 1
        keeper._vain_s = 0.0  # so much work later
        assert not keeper.bring(0) and refused.tries == 2
    keeper._vain_s = 0.0
    assert not keeper.bring(0)
    assert wait_until(lambda: keeper.is_idle) and daemon.artifacts, "it is shared all the same"


@pytest.mark.parametrize("is_taken", [True, False])
def test_pending_samples_count_in_files_and_in_memory(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """While a commit hangs, no more is kept than one batch; the end gives all of it its time."""
    monkeypatch.setattr(on_access, "COMMIT_BYTES", 16_000)
    if not is_taken:
        monkeypatch.setattr("prepcache.fill.commit.Spilled", no_file(REFUSALS[0]))
    bench = Bench(daemon, list(range(9)), function=lambda item: np.zeros(1000, "i8"))
    keeper = keeper_of(bench, monkeypatch)
    monkeypatch.setattr(keeper, "_flush_soon", lambda: setattr(keeper, "_is_due", True))
    kept = 0
    for index in range(9):
        if keeper.wants_more:
            keeper.add(*bench.job.parts(index, bench.item_of(index)))
            keeper._vain_s = on_access.VAIN_S
            assert keeper.bring(index) == is_taken
            kept += 1
    assert kept == 2
    asked: list[int] = []
    true = on_access.BACKLOG.allowed_s
    monkeypatch.setattr(on_access.BACKLOG, "allowed_s", lambda nbytes: asked.append(nbytes) or true(nbytes))
    keeper.end()
    assert asked[0] >= 16_000
    assert keeper.wants_more and keeper.is_idle and left_behind(daemon) == 0
    assert len(daemon.artifacts[RECIPE.digest]) == 2


def aside(bench: Bench, index: int) -> Batch:
    """What a fill could not give to the daemon: in a file of this job."""
    collected = Collected(bench.task())
    collected.add(*bench.job.parts(index, bench.item_of(index)), None)
    batch = collected.batch([])
    bench.catalogue.add_local(batch.spill({}))
    return batch


@pytest.mark.parametrize("error", [LimitExceeded("one lease"), StoreError("an error"), Declined("no room")])
def test_a_refused_batch_does_not_stop_the_next(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Nor does the keeper count as busy for ever: a stream has few of them."""
    bench = Bench(daemon, [1, 2, 3])
    keeper = keeper_of(bench, monkeypatch)
    keeper.adopt([aside(bench, 0)])
    keeper.add(*bench.job.parts(1, 2))
    refusals = iter([error])

    def fail(method: str) -> None:
        if method == "lease" and (refusal := next(refusals, None)) is not None:
            raise refusal

    bench.session.fail = fail
    keeper.flush()
    assert keeper.is_idle and keeper.is_declined
    assert [text.partition("no longer kept: ")[2] for text in caplog.messages] == [str(error)]
    assert Bench(daemon, [1, 2, 3], "after").task().todo.tolist() == [0, 2]
    assert left_behind(daemon) == 0


def test_what_the_store_fails_at_once_more_is_said_once(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(daemon, [1, 2, 3])
    keeper = keeper_of(bench, monkeypatch)
    keeper.adopt([aside(bench, 0)])
    keeper.add(*bench.job.parts(1, 2))

    def fail(method: str) -> None:
        if method == "lease":
            raise StoreError("an error")

    bench.session.fail = fail
    keeper.flush()
    assert keeper.is_idle and len(caplog.messages) == 1


@pytest.mark.parametrize("is_made", [True, False], ids=["made by then", "lost with its daemon"])
def test_samples_of_a_hanging_commit_are_offered_until_stored(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    """Its lease is given back, and lives as long as the daemon is at it."""
    bench = Bench(daemon, [1, 2, 3])
    keeper = keeper_of(bench, monkeypatch)
    for index in range(2):
        keeper.add(*bench.job.parts(index, bench.item_of(index)))
    hung: list[Any] = []

    def hang(leases: Any, staged: Any) -> Any:
        hung.append(daemon.table.begin_commit("job", [(lease.id, lease.token) for lease in leases]))
        raise DaemonUnreachable("it has not stored what it was given", why="broken")

    with monkeypatch.context() as patch:
        patch.setattr(bench.session, "commit", hang)
        for _ in range(3):
            keeper.flush()
            assert not keeper.is_idle and not keeper.wants_more
    assert len(hung) == 1, "it is leased once"
    daemon.table.abort_commit(hung[0])
    if is_made:
        Bench(daemon, [1, 2], "other").fill()
    keeper.flush()
    assert keeper.is_idle and keeper.wants_more
    (refs,) = daemon.artifacts.values()
    assert [ref.items for _, ref in refs] == [2] and bench.catalogue._own == []
    assert bench.samples() == [1, 4, None] and left_behind(daemon) == 0


def test_collected_samples_are_readable_during_a_commit(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_access, "VAIN_S", 0.0)
    bench = Bench(daemon, [1, 2, 3])
    keeper = keeper_of(bench, monkeypatch)
    keeper.adopt([aside(bench, 0)])
    keeper.add(*bench.job.parts(1, 2))
    begun, may_end = threading.Event(), threading.Event()

    def fail(method: str) -> None:
        if method == "commit":
            begun.set()
            assert may_end.wait(20)

    bench.session.fail = fail
    keeper._flush_soon()
    assert begun.wait(20)
    assert keeper.bring(1) and bench.samples() == [1, 4, None]
    may_end.set()
    assert wait_until(lambda: keeper.is_idle)
    assert bench.catalogue._own == [] and bench.samples() == [1, 4, None]
    assert left_behind(daemon) == 0


def keeper_of(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Keeper:
    """One that commits when it is told to, to the bench's daemon."""
    task, session = bench.task(), bench.session

    def lease(*given: Any, want: int) -> Any:
        return session.lease(*given, want=want, cost_s=0.0, nbytes=0, wait_s=0.0)

    def absorb(resolved: Any) -> None:
        bench.catalogue.absorb(resolved.artifacts)
        supply.generation = resolved.generation

    supply: Any = types.SimpleNamespace(
        session=session, recipe=RECIPE, catalogue=bench.catalogue, generation=task.generation, reason="",
        commit_bytes=lambda: 1 << 20, lease=lease, absorb=absorb,
    )  # fmt: skip
    keeper = Keeper(supply, task, list)
    monkeypatch.setattr(keeper, "_set_timer", lambda after_s: None)
    return keeper
