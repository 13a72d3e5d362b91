"""Whom a thread that finds no room waits for: those who take in answers that have put holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from prepcache.daemon import waits
from prepcache.daemon.heartbeat import Beat
from support.serving import wait_until


class Owner:
    """Stands for a session, of which nothing is wanted here."""


class Noting(threading.Condition):
    """Notes whether there was nothing to wait for."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.found: list[bool] = []

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        self.found.append(predicate())
        return super().wait_for(predicate, timeout)


class Taker:
    """A thread that takes an answer in until it is let go."""

    def __init__(self, one: Beat, asks: Callable[[], None]) -> None:
        self._one, self._asks = one, asks
        self.is_there, self.may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._one.taking_in():
            self._asks()
            self.is_there.set()
            assert self.may_end.wait(60)

    def __enter__(self) -> Taker:
        self._thread.start()
        assert self.is_there.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.may_end.set()
        self._thread.join()


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Beat:
    monkeypatch.setattr(waits, "TAKING_IN_S", 0.01)
    made: Any = Beat(Owner())  # type: ignore[arg-type]
    made._taken_in = Noting(made._lock)
    return made  # type: ignore[no-any-return]


def has_to_wait(one: Any) -> bool:
    """Whether there is somebody to wait for; has waited then."""
    one.wait_until_taken_in()
    return not one._taken_in.found.pop()


def answered(one: Beat) -> None:
    one.asks()
    one.hold([])


def polled(one: Beat) -> None:
    one.asks(polls=True)
    one.hold([])


def reopened(one: Beat) -> None:
    """A poll whose session was forgotten, and that is sent again."""
    one.asks(polls=True)
    answered(one)
    one.asks(polls=True)


def test_nobody_waits_for_himself_or_for_what_has_ended(one: Beat) -> None:
    with Taker(one, lambda: answered(one)):
        pass
    with one.taking_in():
        answered(one)
        assert not has_to_wait(one)


@pytest.mark.parametrize("asks", [answered, polled, Beat.asks])
def test_an_answer_is_waited_for_once(one: Beat, asks: Callable[[Beat], None]) -> None:
    with Taker(one, lambda: asks(one)):
        assert has_to_wait(one)
        assert not has_to_wait(one)
    with Taker(one, lambda: asks(one)):
        assert has_to_wait(one)


@pytest.mark.parametrize("asks", [lambda one: one.asks(polls=True), reopened, lambda one: None])
def test_what_the_daemon_may_keep_is_not_waited_for(one: Beat, asks: Callable[[Beat], None]) -> None:
    with Taker(one, lambda: asks(one)):
        assert not has_to_wait(one)


def test_an_awaited_answer_is_not_awaited_again(one: Beat) -> None:
    may_hold, has_held = threading.Event(), threading.Event()

    def slowly() -> None:
        with one.taking_in():
            one.asks()
            there.set()
            assert may_hold.wait(60)
            one.hold([])
            has_held.set()
            assert may_end.wait(60)

    there, may_end = threading.Event(), threading.Event()
    thread = threading.Thread(target=slowly)
    thread.start()
    assert there.wait(60) and has_to_wait(one)
    may_hold.set()
    assert has_held.wait(60) and not has_to_wait(one)
    may_end.set()
    thread.join()


def test_two_that_find_no_room_do_not_wait_for_each_other(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "TAKING_IN_S", 60)
    found = one._taken_in.found

    def other() -> None:
        with one.taking_in():
            one.asks()
            one.wait_until_taken_in()

    with one.taking_in():
        one.asks()
        thread = threading.Thread(target=other)
        thread.start()
        assert wait_until(lambda: found == [False])  # it waits for this thread
        assert not has_to_wait(one)
        thread.join(30)
        assert not thread.is_alive()


def test_a_hold_dropped_again_is_told_again(one: Beat) -> None:
    one.drop(["a", "b"])
    with one._telling_drops() as told:
        assert told == ["a", "b"]
        one.drop(["a"])
    with one._telling_drops() as told:
        assert told == ["a"]
    with one._telling_drops() as told:
        assert told == []
