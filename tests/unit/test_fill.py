"""The fill, with a daemon that misbehaves at one exact step: nothing is lost, nothing is done twice."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from prepcache.data import pace
from prepcache.data.calls import Job
from prepcache.data.catalogue import Catalogue, open_or_miss
from prepcache.data.collect import Task
from prepcache.data.commits import Committer
from prepcache.data.fill import Fill, Filled
from prepcache.data.plan import Distinct, rows_of
from prepcache.data.steady import Steady
from prepcache.data.workers import Alone, Crew, Forked
from prepcache.errors import DaemonUnreachable, PreprocessError, SampleError, StagedFileRefused
from support.fake_session import FakeDaemon, FakeSession
from support.serving import wait_until

RECIPE = types.SimpleNamespace(digest=blake3(b"recipe").hexdigest(), name="test")


class Quiet:
    def __init__(self) -> None:
        self.waits: list[tuple[Any, int]] = []
        self.counts: list[int] = []

    def advance(self, computed: int, waited: int, pace: Any) -> None:
        self.counts.append(computed)

    def waiting(self, holders: Any, left: int) -> None:
        self.waits.append((holders, left))


class Bench:
    """One job over the numbers `items`, whose sample is the number squared unless told otherwise."""

    def __init__(
        self,
        daemon: FakeDaemon,
        items: list[int],
        name: str = "job",
        function: Callable[[int], Any] | None = None,
        *,
        is_expanded: bool = False,
        changed: Callable[[int], list[str]] = lambda index: [],
    ) -> None:
        self.items = items
        self.session = FakeSession(daemon, name)
        self.called: list[int] = []
        self.watcher = Quiet()
        digests = np.frombuffer(b"".join(blake3(b"%d" % item).digest() for item in items), "u1").reshape(
            -1, 32
        )
        self.catalogue = Catalogue(
            Distinct(digests.reshape(-1, 32)),
            lambda ref, *_: open_or_miss(ref, self.session.path_of),
            is_expanded=is_expanded,
        )
        made = function or (lambda item: np.int64(item * item))

        def watched(item: int) -> Any:
            self.called.append(item)
            return made(item)

        self.job = Job(watched, {}, is_expanded)
        first = self.catalogue.distinct.first
        self.item_of = lambda index: items[first[index]]
        self.is_expanded = is_expanded
        self.changed = changed

    def task(self) -> Task:
        resolved = self.session.resolve(RECIPE)
        self.catalogue.absorb(resolved.artifacts, is_complete=True)
        first = self.catalogue.distinct.first
        return Task(
            RECIPE, self.catalogue, self.catalogue.missing, resolved.generation, self.item_of,
            lambda index: int(first[index]), self.changed, {"script": "test"}, Steady(None), self.is_expanded,
        )  # fmt: skip

    def fill(self, crew: Crew | None = None, **more: Any) -> Filled:
        crew = crew or Alone(self.job, self.item_of)
        return Fill(self.task(), self.session, crew, self.watcher, **more).run()

    def samples(self) -> list[Any]:
        slots, rows = rows_of(self.catalogue.distinct.inverse, self.catalogue.places)
        return [
            None if slot < 0 else self.catalogue.slots[slot].artifact.sample(row)  # type: ignore[union-attr]
            for slot, row in zip(slots.tolist(), rows.tolist(), strict=True)
        ]


@pytest.fixture
def daemon(tmp_path: Path) -> FakeDaemon:
    return FakeDaemon(tmp_path)


def left_behind(daemon: FakeDaemon) -> int:
    return len(daemon.table)


def test_a_fill_makes_every_distinct_item_once_and_leaves_no_lease(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, [3, 1, 3, 2])
    filled = bench.fill()
    assert bench.called == [3, 1, 2]
    assert bench.samples() == [9, 1, 9, 4]
    assert sorted(filled.computed) == [0, 1, 2]
    assert left_behind(daemon) == 0


def test_what_is_being_committed_counts_as_done(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(200)), function=lambda item: np.full(1000, item))
    bench.fill(commit_bytes=50_000)
    assert bench.watcher.counts == sorted(bench.watcher.counts)
    assert bench.watcher.counts[-1] == 200


def test_a_second_job_finds_everything_in_any_order(daemon: FakeDaemon) -> None:
    Bench(daemon, list(range(100))).fill()
    again = Bench(daemon, list(range(99, -1, -3)), "other")
    again.fill()
    assert again.called == []
    assert again.samples() == [i * i for i in range(99, -1, -3)]


def test_jobs_at_once_share_the_items_and_none_is_made_twice(daemon: FakeDaemon) -> None:
    pause = threading.Event()
    jobs = [
        Bench(daemon, items, f"job{n}", lambda item: (pause.wait(0.002), np.int64(item * item))[1])
        for n, items in enumerate(
            [list(range(120)), list(range(119, -1, -1)), list(range(0, 120, 2)), list(range(60, 180))]
        )
    ]
    threads = [threading.Thread(target=job.fill) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    called = sorted(item for job in jobs for item in job.called)
    assert called == list(range(180))
    for job in jobs:
        assert job.samples() == [i * i for i in job.items]
    assert left_behind(daemon) == 0


def test_a_function_that_raises_names_the_item_and_what_was_done_stays(daemon: FakeDaemon) -> None:
    def bad(item: int) -> Any:
        if item == 7:
            raise ValueError("no seven")
        return np.int64(item)

    bench = Bench(daemon, list(range(10)), function=bad)
    with pytest.raises(PreprocessError, match=r"item 7 \(7\) failed: ValueError: no seven") as caught:
        bench.fill()
    assert isinstance(caught.value.__cause__, ValueError)
    assert left_behind(daemon) == 0
    after = Bench(daemon, list(range(10)), "after")
    after.fill()
    assert after.called == [7, 8, 9]


def test_a_sample_that_no_column_holds_names_the_item(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, [1, 2, 3], function=lambda item: np.int64(1) if item < 3 else {"x": object()})
    with pytest.raises(SampleError, match=r"item 2 \(3\).*x"):
        bench.fill()
    assert Bench(daemon, [1, 2, 3], "after").task().todo.tolist() == [2]
    assert left_behind(daemon) == 0


def test_an_interrupt_keeps_what_was_done_and_gives_leases_back(daemon: FakeDaemon) -> None:
    def interrupted(item: int) -> Any:
        if item == 5:
            raise KeyboardInterrupt
        return np.int64(item)

    with pytest.raises(KeyboardInterrupt):
        Bench(daemon, list(range(10)), function=interrupted).fill()
    assert left_behind(daemon) == 0
    assert Bench(daemon, list(range(10)), "after").task().todo.tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("where", ["a commit", "a release"])
def test_a_second_interrupt_leaves_no_lease(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupted(item: int) -> Any:
        if item == 5:
            raise KeyboardInterrupt
        return np.int64(item)

    def outcomes(committer: Committer, *, is_waiting: bool) -> list[Any]:
        if is_waiting and committer.in_flight:
            raise KeyboardInterrupt
        return []

    def settle(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    bench = Bench(daemon, list(range(10)), function=interrupted)
    crew = Alone(bench.job, bench.item_of)
    fill = Fill(bench.task(), bench.session, crew, bench.watcher)
    if where == "a commit":
        monkeypatch.setattr(Committer, "outcomes", outcomes)
    else:
        monkeypatch.setattr(fill._share, "settle", settle)
    with pytest.raises(KeyboardInterrupt):
        fill.run()
    assert wait_until(lambda: left_behind(daemon) == 0)
    assert wait_until(lambda: len(Bench(daemon, list(range(10)), "after").task().todo) == 5)


def test_a_full_cache_is_filled_to_the_last_item_that_fits_and_then_left_alone(daemon: FakeDaemon) -> None:
    daemon.room = 200_000
    bench = Bench(daemon, list(range(100)), function=lambda item: np.full(1000, item, "i8"))
    filled = bench.fill()
    assert filled.is_declined
    there = 100 - len(bench.catalogue.missing)
    assert 20 <= there <= 26
    assert len(bench.called) <= there + 1
    assert left_behind(daemon) == 0


def test_a_declined_commit_keeps_its_samples_in_the_job(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(10)))

    def shrink(method: str) -> None:
        if method == "commit":
            daemon.room = 0

    bench.session.fail = shrink
    filled = bench.fill()
    assert filled.is_declined
    assert bench.samples() == [i * i for i in range(10)]
    assert daemon.artifacts == {}


def test_a_batch_that_does_not_fit_whole_is_committed_by_halves(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(40)), function=lambda item: np.full(1000, item, "i8"))

    def shrink(method: str) -> None:
        if method == "commit":
            daemon.room = min(daemon.room, 250_000)

    bench.session.fail = shrink
    bench.fill()
    after = Bench(daemon, list(range(40)), "after").task()
    assert len(after.todo) < 20
    assert len(bench.catalogue.missing) == 0
    assert left_behind(daemon) == 0


@pytest.mark.parametrize("method", ["lease", "stage", "commit"])
def test_a_daemon_that_dies_costs_no_sample_and_raises_nothing(daemon: FakeDaemon, method: str) -> None:
    bench = Bench(daemon, list(range(10)))

    def dies(called: str) -> None:
        if called == method or dead:
            dead.append(called)
            raise DaemonUnreachable("killed")

    dead: list[str] = []
    bench.session.fail = lambda called: None if called == "resolve" else dies(called)
    filled = bench.fill()
    assert filled.reason == "killed"
    assert len(bench.called) == len(set(bench.called))
    assert [bench.samples()[i] for i in bench.called] == [i * i for i in bench.called]


def test_a_lapsed_lease_that_nobody_took_up_is_leased_anew_and_no_work_is_lost(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(10)))
    lapses = iter([True])

    def lapse(method: str) -> None:
        if method == "commit" and next(lapses, False):
            daemon.table.end_session("job")

    bench.session.fail = lapse
    bench.fill()
    assert bench.called == list(range(10))
    assert Bench(daemon, list(range(10)), "after").task().todo.tolist() == []
    assert left_behind(daemon) == 0


def test_a_lapsed_lease_that_another_job_took_up_makes_this_one_look_again(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(10)))
    other = Bench(daemon, list(range(10)), "other")
    lapses = iter([True])

    def lapse(method: str) -> None:
        if method == "commit" and next(lapses, False):
            daemon.table.end_session("job")
            other.fill()

    bench.session.fail = lapse
    filled = bench.fill()
    assert bench.samples() == [i * i for i in range(10)]
    assert sorted(filled.waited) == list(range(10))
    assert filled.computed == []
    assert left_behind(daemon) == 0


def test_what_others_took_up_of_a_lapsed_lease_does_not_cost_the_rest_of_the_work(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(10)))
    maker, holder = Bench(daemon, [3], "maker"), FakeSession(daemon, "holder")
    lapses, held = iter([True]), []

    def lapse(method: str) -> None:
        if method == "commit" and next(lapses, False):
            daemon.table.end_session("job")
            seven = bench.catalogue.distinct.digests[7:8]
            answer = holder.lease(RECIPE.digest, 0, seven, want=1, cost_s=0, nbytes=0, wait_s=0)
            held.append(answer.lease)
            maker.fill()
        elif method == "lease" and held and bench.watcher.waits:
            holder.release(held.pop())

    bench.session.fail = lapse
    filled = bench.fill()
    assert bench.called == [*range(10), 7]
    assert filled.waited == [3] and sorted(filled.computed) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert bench.samples() == [i * i for i in range(10)]
    (refs,) = daemon.artifacts.values()
    assert sum(ref.items for _, ref in refs) == 10
    assert left_behind(daemon) == 0


def test_a_staged_file_that_is_gone_is_written_once_more(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(10)))
    losses = iter([True])

    def lose(method: str) -> None:
        if method == "commit" and next(losses, False):
            raise StagedFileRefused("the staged file is not there")

    bench.session.fail = lose
    filled = bench.fill()
    assert not filled.reason and bench.called == list(range(10))
    assert Bench(daemon, list(range(10)), "after").task().todo.tolist() == []
    assert left_behind(daemon) == 0


def test_a_staged_file_that_is_refused_again_stays_with_the_job(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(10)))

    def refuse(method: str) -> None:
        if method == "commit":
            raise StagedFileRefused("no")

    bench.session.fail = refuse
    filled = bench.fill()
    assert filled.reason == "no" and bench.samples() == [i * i for i in range(10)]
    assert bench.session.calls.count("commit") == 2
    assert left_behind(daemon) == 0


def test_what_others_made_under_a_lapsed_lease_is_not_stored_twice(daemon: FakeDaemon) -> None:
    def meanwhile(item: int) -> Any:
        if item == 0:  # as if the job were stopped here: another takes all up, and then it leases more
            daemon.table.end_session("job")
            other.fill()
        return item * item

    other = Bench(daemon, list(range(10)), "other")
    bench = Bench(daemon, list(range(10)), function=meanwhile)
    filled = bench.fill()
    assert bench.samples() == [i * i for i in range(10)]
    assert filled.computed == [] and sorted(filled.waited) == list(range(10))
    (refs,) = daemon.artifacts.values()
    assert sum(ref.items for _, ref in refs) == 10
    assert left_behind(daemon) == 0


def test_holders_that_stand_still_are_not_waited_for_for_ever(daemon: FakeDaemon) -> None:
    other = FakeSession(daemon, "hung")
    bench = Bench(daemon, [1, 2])
    first = bench.task()
    other.lease(RECIPE.digest, 0, first.catalogue.distinct.digests, want=1, cost_s=0, nbytes=0, wait_s=0)
    now = iter(range(0, 10_000, 10))
    filled = bench.fill(clock=lambda: float(next(now)), stalled_s=60)
    assert bench.called == [2]
    assert "hung: no progress" in filled.reason
    assert bench.watcher.waits[0][0][0].who == "hung"


def test_what_a_beat_has_looked_up_in_mid_fill_is_not_made_again(daemon: FakeDaemon) -> None:
    other = Bench(daemon, list(range(5, 10)), "other")
    bench = Bench(daemon, list(range(10)))

    def meanwhile(item: int) -> Any:
        if item == 0:
            other.fill()
            bench.catalogue.absorb(daemon.resolved(RECIPE.digest, 0).artifacts)
        return np.int64(item * item)

    bench.job = Job(lambda item: (bench.called.append(item), meanwhile(item))[1], {})
    filled = bench.fill()
    assert bench.called == [0, 1, 2, 3, 4]
    assert sorted(filled.waited) == [5, 6, 7, 8, 9]


def test_an_item_that_changed_is_named_once_and_not_stored(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, [4, 5, 6], changed=lambda index: ["b.png"] if index == 1 else [])
    filled = bench.fill()
    assert filled.changed == {1: ["b.png"]}
    assert Bench(daemon, [4, 5, 6], "after").task().todo.tolist() == [1]
    assert left_behind(daemon) == 0


def squares(item: int) -> Iterator[Any]:
    for n in range(item):
        yield np.int64(item * 100 + n)


def test_items_that_expand_keep_their_rows_in_order(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, [3, 0, 2, 3], function=squares, is_expanded=True)
    bench.fill()
    assert bench.samples() == [300, 301, 302, 200, 201, 300, 301, 302]
    again = Bench(daemon, [2, 3], "again", squares, is_expanded=True)
    again.fill()
    assert again.called == []
    assert again.samples() == [200, 201, 300, 301, 302]


def test_an_item_larger_than_an_artifact_spans_several_and_is_found_whole(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prepcache.data.calls.PART_BYTES", 4_000)
    monkeypatch.setattr("prepcache.data.collect.COMMIT_BYTES", 8_000)

    def many(item: int) -> Iterator[Any]:
        for n in range(item):
            yield np.full(100, n)

    bench = Bench(daemon, [50, 2], function=many, is_expanded=True)
    bench.fill()
    assert len(daemon.artifacts[RECIPE.digest]) > 4
    assert [int(sample[0]) for sample in bench.samples()] == [*range(50), 0, 1]
    again = Bench(daemon, [2, 50], "again", many, is_expanded=True)
    again.fill()
    assert again.called == []
    assert [int(sample[0]) for sample in again.samples()] == [0, 1, *range(50)]
    assert left_behind(daemon) == 0
    generation, _ = daemon.artifacts[RECIPE.digest].pop(2)
    broken = Bench(daemon, [50], "broken", many, is_expanded=True)
    assert broken.task().todo.tolist() == [0], "an item of which a piece is gone is missing as a whole"
    assert generation


def test_declined_items_that_expand_are_kept_by_the_job_with_all_their_rows(daemon: FakeDaemon) -> None:
    daemon.room = 0
    bench = Bench(daemon, [3, 2], function=squares, is_expanded=True)
    filled = bench.fill()
    assert filled.is_declined
    assert bench.called == [3, 2]
    assert bench.samples() == [300, 301, 302, 200, 201]


def test_forked_workers_make_the_same_samples_of_an_unpicklable_function(daemon: FakeDaemon) -> None:
    bench = Bench(daemon, list(range(200)), function=lambda item: {"a": np.arange(item), "b": str(item)})
    filled = bench.fill(Forked(2, bench.job, bench.item_of))
    assert len(filled.computed) == 200
    assert bench.called == [], "the parent called nothing itself"
    assert all(s["b"] == str(i) and s["a"].tolist() == list(range(i)) for i, s in enumerate(bench.samples()))
    assert left_behind(daemon) == 0


def test_a_worker_that_dies_names_the_item_and_what_was_done_stays(daemon: FakeDaemon) -> None:
    import os

    def crash(item: int) -> Any:
        if item == 150:
            os.kill(os.getpid(), 9)
        return np.int64(item)

    bench = Bench(daemon, list(range(200)), function=crash)
    with pytest.raises(PreprocessError, match="SIGKILL"):
        bench.fill(Forked(2, bench.job, bench.item_of))
    assert left_behind(daemon) == 0
    assert len(Bench(daemon, list(range(200)), "after").task().todo) < 200


def test_uncommitted_work_stays_below_thirty_seconds_and_two_percent() -> None:
    measured = pace.Pace()
    for _ in range(30):
        measured.note(1.0, 10)
    assert not measured.is_commit_due(0)
    measured.note(1.0, 10)
    assert measured.is_commit_due(0)
    measured.uncommitted_s = 0
    measured.cost_s = 10_000
    measured.uncommitted_s = 199
    assert not measured.is_commit_due(0)
    assert measured.is_commit_due(pace.COMMIT_BYTES)


def test_a_lease_is_one_item_first_then_a_second_or_two_and_less_near_the_end() -> None:
    measured = pace.Pace()
    assert measured.want(1000, 0) == 1
    measured.note(0.1, 10)
    assert 10 <= measured.want(1000, 0) <= 20
    assert measured.want(60, 0) == 10
    assert measured.want(10, 4) == 1
