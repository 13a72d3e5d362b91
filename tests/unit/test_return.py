"""A daemon that was given up, and answers again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

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


def test_nobody_looks_for_a_daemon_that_lied_or_was_closed(bench: Bench) -> None:
    def watches() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "prepcache-beat"]

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
    assert other.is_gone and not other.is_away
    wait_until(lambda: not watches())
    other.close()
