"""Holds and drops: what an answer holds is certain unless a drop may have overtaken it."""

from __future__ import annotations

from typing import Any

import pytest

from prepcache.daemon.heartbeat import HOLD_TRIES, Heartbeat
from prepcache.digests import Digest, Key
from prepcache.protocol import wire


class Owner:
    """Stands for a session, of which nothing is wanted here."""


@pytest.fixture
def heartbeat() -> Heartbeat:
    return Heartbeat(Owner())  # type: ignore[arg-type]


def ref(number: int) -> wire.ArtifactRef:
    return wire.ArtifactRef(Key(f"{number:064x}"), Digest(f"{number:064x}"), 1, 1, 1, 1.0)


def tell(heartbeat: Heartbeat) -> list[str]:
    with heartbeat._telling_drops() as told:
        return list(told)


def test_a_drop_told_before_the_request_undoes_nothing(heartbeat: Heartbeat) -> None:
    heartbeat.drop([ref(1).digest])
    assert tell(heartbeat) == [ref(1).digest]
    assert heartbeat.hold([ref(1)], heartbeat.tells)


def test_a_drop_told_after_the_request_may_undo_a_hold(heartbeat: Heartbeat) -> None:
    heartbeat.drop([ref(1).digest])
    since = heartbeat.tells
    tell(heartbeat)
    assert not heartbeat.hold([ref(1)], since)


def test_a_drop_still_unanswered_may_undo_a_hold(heartbeat: Heartbeat) -> None:
    heartbeat.drop([ref(1).digest])
    with heartbeat._telling_drops():
        since = heartbeat.tells
    assert not heartbeat.hold([ref(1)], since)
    assert heartbeat.hold([ref(1)], heartbeat.tells)


def test_an_uncertain_hold_is_requested_again(heartbeat: Heartbeat) -> None:
    asked: list[int] = []

    def ask() -> Any:
        asked.append(1)
        if len(asked) == 1:
            tell(heartbeat)
        return wire.Resolved(1, True, "/", (ref(1),))

    heartbeat.drop([ref(1).digest])
    assert heartbeat.holding(ask).artifacts == (ref(1),)
    assert len(asked) == 2 <= HOLD_TRIES
    assert tell(heartbeat) == [], "it is held now"


def test_a_hold_dropped_again_is_told_again(heartbeat: Heartbeat) -> None:
    heartbeat.drop(["a", "b"])
    with heartbeat._telling_drops() as told:
        assert told == ["a", "b"]
        heartbeat.drop(["a"])
    assert tell(heartbeat) == ["a"]
    assert tell(heartbeat) == []
