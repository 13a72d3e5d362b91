"""A daemon that was given up, and answers again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from prepcache.control.client import Client
from prepcache.control.patience import Patience
from prepcache.control.session import Session
from prepcache.errors import DaemonUnreachable
from support.fake_daemon import Hang, Request, reply
from support.sessions import Bench, SomeRecipe, World, bench_fixture, ref, wait_until  # noqa: F401


def test_a_daemon_that_was_given_up_is_used_again_when_it_answers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("prepcache.control.comeback.FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr("prepcache.control.comeback.RETURN_S", 20.0)  # on a crowded machine, too
    session, removed = bench.session, list[set[str]]()
    session.patience.budget_s = 2.0
    session.on_removed(removed.append)
    bench.world.artifacts = [1, 2]
    session.resolve(SomeRecipe())
    is_down = threading.Event()
    is_down.set()

    def hang_while_down(request: Request) -> Any:
        if is_down.is_set():
            raise Hang
        return World.on_post_resolve(bench.world, request)

    def healthy(request: Request) -> Any:
        if is_down.is_set():
            raise Hang
        return reply({})

    bench.world.said["POST resolve"] = hang_while_down
    bench.world.said["GET "] = healthy
    with pytest.raises(DaemonUnreachable):
        session.resolve(SomeRecipe())
    assert session.is_gone
    with pytest.raises(DaemonUnreachable):
        session.resolve(SomeRecipe())
    bench.world.artifacts = [2]
    is_down.clear()
    wait_until(lambda: not session.is_gone and removed)
    assert removed == [{ref(1)["digest"]}], "its holds are taken again"
    assert len(session.resolve(SomeRecipe()).artifacts) == 1
    assert bench.world.opened == 2, "leases of the old session are nobody's"
    assert bench.sent("DELETE", "/v1/sessions/s1")
    beats = len(bench.sent("POST", "/beat"))
    wait_until(lambda: len(bench.sent("POST", "/beat")) > beats + 1)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 and "the daemon answers again" in messages[1]


def test_nobody_looks_for_a_daemon_that_lied_or_was_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prepcache.control.comeback.FIRST_PAUSE_S", 0.01)

    def lookouts() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "prepcache-lookout"]

    bench.session.patience.budget_s = 2.0
    bench.world.said["POST resolve"] = lambda r: None
    with pytest.raises(DaemonUnreachable):
        bench.session.resolve(SomeRecipe())
    (thread,) = lookouts()
    bench.session.close()
    thread.join()
    bench.world.said["POST resolve"] = lambda r: reply(b"<html>", 200)
    other = Session(Client(bench.session.client.url, patience=Patience(1.0)))
    with pytest.raises(DaemonUnreachable):
        other.resolve(SomeRecipe())
    assert other.is_gone and not lookouts()
    other.close()


def test_of_two_threads_that_find_their_session_forgotten_one_takes_its_holds_again(bench: Bench) -> None:
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
    bench.session.patience.budget_s = 100.0
    other = threading.Thread(target=bench.session.reopen, args=(header,))
    other.start()
    other.join(30)
    assert not other.is_alive(), "there is nothing left to do for it"
    may_answer.set()
    first.join()
    assert bench.session.beat._dropped == set()
    assert bench.session.beat.take_held() == {ref(1)["digest"], ref(2)["digest"]}
