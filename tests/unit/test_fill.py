"""The fill: each item once, whoever else fills, raises, is interrupted, expands or dies; and its pace."""

import threading
from collections.abc import Iterator
from itertools import combinations, count
from typing import Any

import numpy as np
import pytest

from prepcache.errors import SampleError
from prepcache.fill import pacing
from prepcache.fill.call import Job
from prepcache.fill.commit import Committer
from prepcache.fill.workers import Forked
from support.fake_session import FakeDaemon, FakeSession
from support.fills import RECIPE, Bench, daemon_fixture, left_behind  # noqa: F401
from support.serving import READY_S, wait_until


def test_what_other_jobs_have_is_told_beside_what_is_made(daemon):
    bench, other = Bench(daemon, list(range(10))), FakeSession(daemon, "other")
    theirs = bench.catalogue.distinct.digests[2:5]
    answer = other.lease(RECIPE.digest, 0, theirs, want=3, cost_s=0, nbytes=0, wait_s=0)
    assert answer.lease is not None
    lease = answer.lease
    bench.watcher.waiting = lambda *_: other.heartbeat.note_lost(lease.id)  # type: ignore[method-assign]
    bench.fill()
    assert (max(bench.watcher.taken), bench.watcher.taken[-1]) == (3, 0)
    assert sorted(bench.called) == list(range(10))


def test_machines_without_a_lead_begin_with_other_items(tmp_path):
    """Also where their numbers begin alike: of the halves made first, about a half is the same."""
    first: list[set[int]] = []
    for order in (0x5DEECE66D0000001, 0x5DEECE66D0000003, 0x5DEECE77D0000001):
        folder = tmp_path / str(order)
        folder.mkdir()
        bench = Bench(FakeDaemon(folder), list(range(200)))
        bench.session.order = order
        bench.fill()
        assert sorted(bench.called) == list(range(200))
        first.append(set(bench.called[:100]))
    assert all(35 <= len(one & other) <= 65 for one, other in combinations(first, 2))


@pytest.mark.parametrize("changed", [["x"], []], ids=["changed", "no room in a small cache"])
def test_expanded_items_that_are_not_stored_share_a_file(daemon, changed):
    """Each file has a descriptor, and there may be any number of such items."""
    items, daemon.room = list(range(50)), 0 if not changed else daemon.room
    bench = Bench(daemon, items, function=lambda item: [item], is_expanded=True, changed=lambda _: changed)
    bench.fill(budget=32)
    assert bench.samples() == items and daemon.artifacts == {}
    assert len(bench.catalogue.slots) == 1


@pytest.mark.parametrize(
    "held", [(n for n in ()), threading.Lock(), lambda: 0], ids=["yield", "lock", "lambda"]
)
@pytest.mark.parametrize("is_expanded", [False, True])
def test_an_unpicklable_sample_is_refused_alike_with_workers(daemon, monkeypatch, held, is_expanded):
    """It never comes to the column that does not hold it; and no worker dies of it."""
    monkeypatch.setattr("prepcache.fill.call.PART_BYTES", 100)

    def one(item: int) -> Any:
        return {"x": [held]} if item == 3 else np.int64(item)

    def several(item: int) -> Iterator[Any]:
        for _ in range(3):
            yield np.full(20, item)
            yield one(item)

    said = []
    for name in ("alone", "forked"):
        bench = Bench(daemon, [1, 2, 3], name, several if is_expanded else one, is_expanded=is_expanded)
        with pytest.raises(SampleError, match=r"item 2 \(3\): sample\['x'\]\[0\]: a value of type") as caught:
            bench.fill(Forked(1, bench.job, bench.item_of) if name == "forked" else None)
        said.append((caught.value.message, caught.value.data))
    assert said[0] == said[1]
    assert left_behind(daemon) == 0


def interrupted(item: int) -> Any:
    """Ctrl-C at the sixth of ten items."""
    if item == 5:
        raise KeyboardInterrupt
    return np.int64(item)


def test_a_second_interrupt_keeps_what_is_being_committed(daemon, monkeypatch):
    may_commit, commit = threading.Event(), Committer._commit

    def commit_then(*given: Any) -> Any:
        assert may_commit.wait(READY_S)
        return commit(*given)

    bench = Bench(daemon, list(range(10)), function=interrupted)
    monkeypatch.setattr(Committer, "_commit", commit_then)
    interrupt(monkeypatch, Committer, "wait", at=0)
    with pytest.raises(KeyboardInterrupt):
        bench.fill()
    may_commit.set()
    assert wait_until(lambda: bench.committer.is_idle)
    assert len(Bench(daemon, list(range(10)), "after").missing()) == 5
    assert wait_until(lambda: left_behind(daemon) == 0)


def interrupt(patch: pytest.MonkeyPatch, owner: Any, name: str, *, at: int = 1) -> threading.Event:
    """Ctrl-C at a call of a method; set by then."""
    method, numbers, is_done = getattr(owner, name), count(), threading.Event()

    def interrupted(*given: Any, **named: Any) -> Any:
        if next(numbers) == at:
            is_done.set()
            raise KeyboardInterrupt
        return method(*given, **named)

    patch.setattr(owner, name, interrupted)
    return is_done


def test_what_a_beat_has_looked_up_in_mid_fill_is_not_made_again(daemon):
    other = Bench(daemon, list(range(5, 10)), "other")
    bench = Bench(daemon, list(range(10)))

    def meanwhile(item: int) -> Any:
        if item == 0:
            other.fill()
            bench.catalogue.index.take_in(daemon.resolved(RECIPE.digest, 0).artifacts)
        return np.int64(item * item)

    bench.job = Job(lambda item: (bench.called.append(item), meanwhile(item))[1], {})
    filled = bench.fill()
    assert bench.called == [0, 1, 2, 3, 4]
    assert sorted(filled.waited) == [5, 6, 7, 8, 9]


def test_uncommitted_work_stays_below_30_s_and_2_percent():
    measured = pacing.Pace()
    for _ in range(30):
        measured.note(1.0, 10)
    assert not measured.is_commit_due(0)
    measured.note(1.0, 10)
    assert measured.is_commit_due(0)
    measured.uncommitted_s = 0
    measured.cost_s = 10_000
    measured.uncommitted_s = 199
    assert not measured.is_commit_due(0)
    assert not measured.is_commit_due(pacing.COMMIT_BYTES - 1)
    assert measured.is_commit_due(pacing.COMMIT_BYTES)


def test_leases_grow_to_seconds_and_shrink_near_the_end():
    measured = pacing.Pace()
    assert measured.want(1000, 0) == 1
    measured.note(0.1, 10)
    assert 10 <= measured.want(1000, 0) <= 20
    assert measured.want(60, 0) == 10
    assert measured.want(10, 4) == 1
