"""The fill, with a daemon that misbehaves at one exact step: nothing is lost, nothing is done twice."""

import itertools
from typing import Any

import numpy as np
import pytest

from prepcache.errors import DaemonUnreachable, LeaseLapsed, StagedFileRefused
from prepcache.fill.pacing import Pace
from prepcache.protocol import wire
from support.fake_session import FakeSession
from support.fills import RECIPE, Bench, daemon_fixture, left_behind  # noqa: F401


def test_a_full_cache_is_filled_up_to_about_a_commit(daemon):
    daemon.room = 200_000
    bench = Bench(daemon, list(range(100)), function=lambda item: np.full(1000, item, "i8"))
    filled = bench.fill(budget=32 * 20_000)
    assert filled.is_declined
    there = 100 - len(bench.catalogue.missing)
    assert 15 <= there <= 25
    assert len(bench.called) <= there + 1
    assert left_behind(daemon) == 0


def test_until_the_cache_has_told_its_size_commits_are_small(daemon):
    """A job that starts the daemon of a small cache would else collect more than all of it."""
    bench = Bench(daemon, list(range(12)), function=lambda item: np.zeros(1 << 20, "u1"))
    told = iter([0])
    bench.artifacts.budget_bytes = lambda: next(told, 1 << 40)  # type: ignore[method-assign]
    bench.fill()
    assert [ref.items for _, ref in daemon.artifacts[RECIPE.digest]] == [4, 8]


@pytest.mark.parametrize("method", ["lease", "stage", "commit"])
def test_a_daemon_that_dies_costs_no_sample_and_raises_nothing(daemon, method):
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


def test_jobs_go_their_own_ways_in_an_outage(daemon):
    """What two of them make meanwhile is then mostly different; what both made is stored once."""
    items = list(range(200))

    def beside(item: int) -> np.int64:
        if not two.called:
            two.fill()
        return np.int64(item)

    one, two = Bench(daemon, items, "one", beside), Bench(daemon, items, "two")
    one.session.is_away = two.session.is_away = True
    one.fill()
    assert sorted(one.called) == sorted(two.called) == items
    assert one.called != items and one.called != two.called
    assert sum(ref.items for _, ref in daemon.artifacts[RECIPE.digest]) == len(items)
    assert left_behind(daemon) == 0


@pytest.mark.parametrize("leases", [1, 10])
def test_a_lapsed_lease_taken_by_another_job_looks_again(daemon, monkeypatch, leases):
    """And many that one commit names, which lapse one by one: that is no keep lapsing."""
    monkeypatch.setattr(Pace, "want", lambda *_: 10 // leases)
    bench = Bench(daemon, list(range(10)))
    other = Bench(daemon, list(range(10)), "other")
    lapses = iter([True])

    def lapse(method: str) -> None:
        if method == "commit" and next(lapses, False):
            daemon.table.end_session("job")
            other.commit()

    bench.session.fail = lapse
    filled = bench.fill()
    assert bench.samples() == [i * i for i in range(10)]
    assert bench.called == list(range(10)) and filled.reason == ""
    (refs,) = daemon.artifacts.values()
    assert sum(ref.items for _, ref in refs) == 10
    assert left_behind(daemon) == 0


def test_items_taken_by_others_do_not_cost_the_rest(daemon):
    bench = Bench(daemon, list(range(10)))
    maker, holder = Bench(daemon, [3], "maker"), FakeSession(daemon, "holder")
    lapses = iter([True])

    def lapse(method: str) -> None:
        if method == "commit" and next(lapses, False):
            daemon.table.end_session("job")
            seven = bench.catalogue.distinct.digests[7:8]
            holder.lease(RECIPE.digest, 0, seven, want=1, cost_s=0, nbytes=0, wait_s=0)
            maker.commit()

    bench.session.fail = lapse
    bench.fill()
    assert bench.called == list(range(10))
    assert bench.samples() == [i * i for i in range(10)]
    assert Bench(daemon, list(range(10)), "after").missing() == [7], "it is the other's to make"


def refuse(bench: Bench, error: Exception, times: int) -> None:
    """So many commits are refused."""
    left = itertools.repeat(error, times)

    def fail(method: str) -> None:
        if method == "commit" and (refusal := next(left, None)) is not None:
            raise refusal

    bench.session.fail = fail


@pytest.mark.parametrize("times", [1, 2])
def test_a_refused_staged_file_is_written_once_more(daemon, times):
    """As the daemon may have been killed after it had moved it; then it stays with the job."""
    bench = Bench(daemon, list(range(10)))
    refuse(bench, StagedFileRefused("no"), times)
    filled = bench.fill()
    assert bench.called == list(range(10)) and bench.samples() == [i * i for i in range(10)]
    assert (filled.reason == "no") == (times == 2)
    assert bool(Bench(daemon, list(range(10)), "after").missing()) == (times == 2)
    assert left_behind(daemon) == 0


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_commit_without_an_answer_is_found_later(daemon, monkeypatch, lost):
    monkeypatch.setattr("prepcache.fill.filler.COMMIT_ITEMS", 4)  # of a lease of one item, and one of nine
    bench = Bench(daemon, list(range(10)))
    commit, numbers = bench.session.commit, itertools.count(1)

    def killed(leases: Any, staged: Any, *, limit_s: float | None = None) -> Any:
        done = commit(leases, staged)
        return commit(leases, staged) if next(numbers) == lost else done

    monkeypatch.setattr(bench.session, "commit", killed)
    filled = bench.fill()
    assert (filled.reason, sorted(filled.waited + filled.computed)) == ("", list(range(10)))
    assert bench.called == list(range(10)) and bench.samples() == [i * i for i in range(10)]
    assert Bench(daemon, list(range(10)), "after").missing() == []
    assert left_behind(daemon) == 0


def test_items_made_by_others_are_not_stored_twice(daemon):
    def meanwhile(item: int) -> Any:
        if item == 0:  # as if the job were stopped here: another takes all up, and then it leases more
            daemon.table.end_session("job")
            other.fill()
        return item * item

    other = Bench(daemon, list(range(10)), "other")
    bench = Bench(daemon, list(range(10)), function=meanwhile)
    filled = bench.fill()
    assert bench.samples() == [i * i for i in range(10)]
    assert filled.computed == [0] and sorted(filled.waited) == list(range(1, 10))
    (refs,) = daemon.artifacts.values()
    assert sum(ref.items for _, ref in refs) == 10
    assert left_behind(daemon) == 0


MANY = 100
"""As often as a test's daemon lies, so that a fill that goes on for ever ends."""


@pytest.mark.parametrize("times", [1, MANY])
def test_a_lease_that_lapsed_by_the_daemons_word_is_given_back(daemon, times):
    """Else a job waits for itself where the daemon goes on counting it. One that lapses all is given up."""
    bench = Bench(daemon, list(range(10)))
    refuse(bench, LeaseLapsed("it lapsed"), times)
    filled = bench.fill()
    assert ("keep lapsing" in filled.reason) == (times == MANY)
    assert times == MANY or bench.called == list(range(10)), "no work is lost"
    assert bench.watcher.waits == [] and left_behind(daemon) == 0


@pytest.mark.parametrize("when", ["always", "at a commit"])
def test_a_daemon_that_always_says_look_again_is_given_up(daemon, monkeypatch, when):
    bench = Bench(daemon, list(range(10)))
    true, count = FakeSession.lease, itertools.count(1)

    def lease(self: FakeSession, *given: Any, **named: Any) -> wire.LeaseAnswer:
        is_due = when == "always" or "commit" in self.calls
        if is_due and (number := next(count)) < MANY:
            return wire.LeaseAnswer(look_again=wire.Resolved(number, True, ()))
        return true(self, *given, **named)

    def lapse(method: str) -> None:
        if method == "commit":
            raise LeaseLapsed("it lapsed")

    bench.session.fail = lapse
    monkeypatch.setattr(FakeSession, "lease", lease)
    assert "daemon keeps announcing" in bench.fill().reason
