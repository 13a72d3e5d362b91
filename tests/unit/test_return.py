"""A daemon that was given up, and answers again."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from prepcache.daemon import waits
from prepcache.daemon.client import Client
from prepcache.daemon.session import Session
from prepcache.daemon.wait_budget import WaitBudget
from prepcache.errors import DaemonUnreachable
from support.fake_daemon import Request, reply
from support.sessions import Bench, SomeRecipe, bench_fixture, ref, wait_until  # noqa: F401


def test_an_outage_ends_when_the_daemon_answers_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    session, returns = bench.session, list[int]()

    class Waiting:
        def go_on(self) -> None:
            returns.append(1)

    waiting = Waiting()
    session.at_return(waiting.go_on)
    session.budget.budget_s = 2.0
    bench.world.artifacts = [1, 2]
    session.resolve(SomeRecipe())
    is_up = threading.Event()

    def once_up(answer: Any) -> Any:
        def answered(request: Request) -> Any:
            assert is_up.wait(30)
            return answer(request)

        return answered

    bench.world.said["POST resolve"] = once_up(bench.world.on_post_resolve)
    bench.world.said["GET "] = once_up(lambda request: reply({}))
    with pytest.raises(DaemonUnreachable):
        session.resolve(SomeRecipe())
    assert session.is_gone and session.is_away
    asked = len(bench.sent("POST", "/resolve"))
    with pytest.raises(DaemonUnreachable):
        session.resolve(SomeRecipe())
    assert len(bench.sent("POST", "/resolve")) == asked, "in an outage nothing is asked"
    is_up.set()
    wait_until(lambda: bool(returns))
    assert not session.is_gone
    assert len(session.resolve(SomeRecipe()).artifacts) == 2
    assert bench.world.opened == 1 and not bench.sent("DELETE", "/v1/sessions/s1"), "leases are kept"
    beats = len(bench.sent("POST", "/beat"))
    wait_until(lambda: len(bench.sent("POST", "/beat")) > beats + 1)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 and "the daemon answers again" in messages[1]


def test_a_child_that_was_forked_in_an_outage_sees_its_end(bench: Bench) -> None:
    """The thread that looks for the daemon stays with its parent."""
    session, may_answer = bench.session, threading.Event()
    session.resolve(SomeRecipe())

    def held(request: Request) -> Any:
        assert may_answer.wait(60)
        return reply({})

    bench.world.said["POST resolve"] = lambda r: None
    bench.world.said["GET "] = held
    with pytest.raises(DaemonUnreachable):
        session.resolve(SomeRecipe())
    assert session.is_away
    if (pid := os.fork()) == 0:
        code = 2
        try:
            session.budget.budget_s = 60.0
            while session.is_away and session.wait_for_return(0.05):
                pass
            code = int(session.is_gone)
        finally:
            os._exit(code)
    may_answer.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_nobody_looks_for_a_daemon_that_lied_or_was_closed(bench: Bench) -> None:
    def watches() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "prepcache-watch"]

    bench.session.budget.budget_s = 2.0
    bench.world.said["POST resolve"] = lambda r: None
    bench.world.said["GET "] = lambda r: None
    with pytest.raises(DaemonUnreachable):
        bench.session.resolve(SomeRecipe())
    (thread,) = watches()
    bench.session.close()
    thread.join()
    bench.world.said["POST resolve"] = lambda r: reply(b"<html>", 200)
    other = Session(Client(bench.session.client.url, budget=WaitBudget(1.0)))
    with pytest.raises(DaemonUnreachable):
        other.resolve(SomeRecipe())
    assert other.is_gone and not other.is_away and not watches()
    other.close()


def test_one_of_two_threads_retakes_the_holds(bench: Bench) -> None:
    bench.world.artifacts = [1, 2]
    bench.session.resolve(SomeRecipe())
    header = bench.session.header
    assert header is not None
    is_asked, may_answer = threading.Event(), threading.Event()

    def wait_and_resolve(request: Request) -> Any:
        is_asked.set()
        assert may_answer.wait(30)
        return bench.world.on_post_resolve(request)

    bench.world.said["POST resolve"] = wait_and_resolve
    first = threading.Thread(target=bench.session.reopen, args=(header,))
    first.start()
    assert is_asked.wait(30)
    bench.session.budget.budget_s = 100.0
    other = threading.Thread(target=bench.session.reopen, args=(header,))
    other.start()
    other.join(30)
    assert not other.is_alive(), "there is nothing left to do for it"
    may_answer.set()
    first.join()
    assert bench.session.heartbeat._dropped == {}
    assert bench.session.heartbeat.take_held() == {ref(1)["digest"], ref(2)["digest"]}


def test_a_wait_at_the_end_for_a_silent_daemon_is_said_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "HANDOVER_S", 0.05)
    monkeypatch.setattr(Session, "is_away", property(lambda _: True))
    monkeypatch.setattr(type(bench.session.watch), "begin", lambda _: None)
    monkeypatch.setattr(type(bench.session.watch), "wait", lambda _, seconds: None)
    for _ in range(2):
        bench.session.wait_at_end()
    [said] = caplog.messages
    assert said.startswith("prepcache: the daemon does not answer; waiting up to 0 s more for it to accept")
