"""WaitBudget: what a process may lose to its daemon, counted on a clock of the test's own."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from prepcache.daemon import waits
from prepcache.daemon.waits import OwnTime, WaitBudget
from prepcache.errors import DaemonUnreachable, NotFound
from support.observing import told_by_child
from support.stores import Clock

URL = "unix:///somewhere"


class Waited(Clock):
    """Time passes only when somebody waits."""

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Waited:
    return Waited(100.0)


@pytest.fixture
def budget(clock: Waited) -> WaitBudget:
    return WaitBudget(5.0, clock=clock, sleep=clock.wait)


def failing(clock: Waited, why: str, takes_s: float | None = None) -> Callable[[float], Any]:
    """An attempt that fails after `takes_s`, or after all that it may take."""

    def attempt(limit_s: float) -> Any:
        clock.wait(limit_s if takes_s is None else min(limit_s, takes_s))
        raise DaemonUnreachable(f"cannot be reached: {why}", why=why)

    return attempt


def answering(clock: Waited, takes_s: float) -> Callable[[float], str]:
    def attempt(limit_s: float) -> str:
        clock.wait(takes_s)
        return "answer"

    return attempt


def starting(clock: Waited) -> Callable[[float], str]:
    up_at = clock.now + 1.0

    def attempt(limit_s: float) -> str:
        if clock.now < up_at:
            raise DaemonUnreachable("not yet", why="absent")
        return "up"

    return attempt


def test_a_hang_costs_the_budget_once_and_nothing_afterwards(budget, clock):
    with pytest.raises(DaemonUnreachable, match=r"and this job has waited 3\.0 s for it in all"):
        budget.run(URL, failing(clock, "broken"))
    assert clock.now == pytest.approx(103.0)
    for _ in range(3):
        with pytest.raises(DaemonUnreachable):
            budget.run(URL, failing(clock, "broken"))
    assert clock.now == pytest.approx(103.0)
    assert budget.is_gone


def test_slow_answers_are_charged_beyond_what_is_free(budget, clock):
    budget.run(URL, answering(clock, waits.FREE_S))
    assert budget.remaining_s == 3.0
    budget.run(URL, answering(clock, 1.0 + waits.FREE_S))
    assert budget.remaining_s == pytest.approx(2.0)


def test_a_long_poll_that_is_answered_in_time_costs_nothing(budget, clock):
    for _ in range(100):
        budget.run(URL, answering(clock, 2.0), wait_s=2.0)
    assert budget.remaining_s == 3.0


def test_an_absent_daemon_costs_no_time_and_may_come_later(budget, clock):
    with pytest.raises(DaemonUnreachable):
        budget.run(URL, failing(clock, "absent", 0.0))
    assert clock.now == 100.0 and not budget.is_gone
    assert budget.run(URL, answering(clock, 0.0)) == "answer"


def test_a_daemon_that_restarts_within_the_budget_is_found_again(budget, clock):
    budget.run(URL, answering(clock, 0.0))
    down_until = clock.now + 1.8

    def attempt(limit_s: float) -> str:
        if clock.now < down_until:
            raise DaemonUnreachable("down", why="absent")
        return "back"

    assert budget.run(URL, attempt) == "back"
    assert 0.5 < budget.remaining_s < 1.6


def test_a_daemon_that_is_being_started_is_waited_for(budget, clock):
    assert budget.run(URL, starting(clock), start=lambda: True) == "up"


def test_a_job_that_was_stopped_does_not_blame_its_daemon(budget, clock):
    assert budget.run(URL, answering(clock, 600.0), wait_s=2.0) == "answer"
    assert budget.remaining_s == 3.0
    outcomes = iter([DaemonUnreachable("late", why="broken"), None])

    def attempt(limit_s: float) -> str:
        outcome = next(outcomes)
        if outcome is not None:
            clock.wait(600.0)
            raise outcome
        return "answer"

    assert budget.run(URL, attempt) == "answer"
    assert budget.remaining_s == pytest.approx(3.0 - waits.RETRY_S)


def test_a_refusal_is_an_answer(budget):
    def attempt(limit_s: float) -> str:
        raise NotFound("no such entry")

    with pytest.raises(NotFound):
        budget.run(URL, attempt)
    assert budget.remaining_s == 3.0 and not budget.is_gone


def outage(budget: WaitBudget, clock: Waited) -> float:
    """How long a hang is waited for."""
    started = clock.now
    with pytest.raises(DaemonUnreachable):
        budget.run(URL, failing(clock, "broken"))
    return clock.now - started


def test_a_daemon_that_keeps_returning_costs_no_more(budget, clock, caplog):
    lost = [outage(budget, clock)]
    while budget.is_away:
        budget.come_back()
        assert budget.run(URL, answering(clock, 0.0)) == "answer"
        lost.append(outage(budget, clock))
    assert lost[:4] == pytest.approx([3.0, 1.0, 0.5, 0.25])
    assert sum(lost) <= 5.0 and min(lost) >= waits.LEAST_S
    budget.come_back()
    assert budget.is_gone
    assert len(caplog.messages) == len(lost)
    assert all(URL in said and "preprocesses by itself" in said for said in caplog.messages)


@pytest.mark.parametrize("why", ["nonsense", "failed"])
def test_what_will_not_mend_does_not_come_back(budget, clock, caplog, why):
    def start() -> bool:
        raise DaemonUnreachable("it is not installed", why="failed")

    with pytest.raises(DaemonUnreachable):
        budget.run(URL, failing(clock, "absent" if why == "failed" else why, 0.0), start=start)
    assert not budget.is_away
    budget.come_back()
    assert budget.is_gone
    budget.give_up(URL, "another thread waited as well")
    assert len(caplog.messages) == 1


def test_a_person_who_asks_has_all_of_the_time(clock):
    with pytest.raises(DaemonUnreachable, match="cannot be reached"):
        OwnTime(5.0, clock=clock, sleep=clock.wait).run("u", failing(clock, "broken", 1.2))
    assert clock.now == pytest.approx(105.0, abs=1.2)
    assert OwnTime(5.0, clock=clock, sleep=clock.wait).run("u", answering(clock, 9.0), wait_s=9.0) == "answer"
    with pytest.raises(DaemonUnreachable):
        OwnTime(5.0, clock=clock, sleep=clock.wait).run("u", failing(clock, "absent", 0.0))
    assert OwnTime(5.0, clock=clock, sleep=clock.wait).run("u", starting(clock), start=lambda: True) == "up"


def test_what_one_worker_has_waited_for_the_next_does_not(budget, clock, caplog):
    def asks() -> bool:
        with contextlib.suppress(DaemonUnreachable):
            budget.run(URL, failing(clock, "broken"))
        return budget.is_away

    assert told_by_child(asks) and not told_by_child(lambda: budget.is_away), "jobs of their own"
    budget.run(URL, answering(clock, 0.0))
    assert told_by_child(asks) and told_by_child(lambda: budget.is_away)
    assert not budget.is_gone and asks() and not caplog.records, "a worker has said it"
    budget.come_back()
    assert not told_by_child(lambda: budget.is_away)
