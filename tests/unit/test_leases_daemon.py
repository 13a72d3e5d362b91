"""The lease table by itself: deadlines, bounds and announcements, with a clock that moves when told to."""

import os
from typing import Any

import pytest

from prepcache.errors import BadRequest, LeaseLapsed, LimitExceeded
from prepcached import leases
from prepcached.leases import Answer, Lease, LeaseTable


def item(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Desk:
    """A table, its clock, and what it announced."""

    def __init__(self) -> None:
        self.now = 100.0
        self.changed: list[str] = []
        self.table = LeaseTable(lambda: self.now, self.changed.append)

    def ask(
        self, *numbers: int, session: str = "s", recipe: str = "r", want: int = 99, **kinds: Any
    ) -> Answer:
        items = b"".join(item(number) for number in numbers)
        given = {"generation": 0, "cost_s": 0.0, "lease_id": os.urandom(16).hex(), **kinds}
        return self.table.grant(session, f"job {session}", recipe, given.pop("generation"), items, want=want,
                                **given)  # fmt: skip

    def lease(self, *numbers: int, **kinds: Any) -> Lease:
        lease = self.ask(*numbers, **kinds).lease
        assert lease is not None
        return lease


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_equal_items_in_one_request_are_granted_once(desk):
    assert desk.ask(1, 1, 2, 1).granted == [0, 2]


def test_a_lease_has_the_unique_id_of_its_client(desk):
    assert desk.lease(1, lease_id="mine").id == "mine"
    for session in ("s", "t"):
        with pytest.raises(BadRequest, match="a new id"):
            desk.ask(2, session=session, lease_id="mine")
    assert len(desk.table) == 1


def test_a_lease_forsaken_before_it_is_granted_is_refused(desk):
    """The request waited in the daemon for longer than its client did."""
    desk.table.forsake("s", ["late"])
    with pytest.raises(BadRequest, match="given up"):
        desk.ask(1, lease_id="late")
    assert desk.ask(1).granted == [0]


def test_a_lease_acts_with_its_token_and_in_its_session_only(desk):
    lease, other = desk.lease(1), desk.lease(2)
    for session, lease_id, token in [
        ("s", lease.id, other.token), ("s", lease.id, "ü"),
        ("t", lease.id, lease.token), ("s", "?", lease.token),
    ]:  # fmt: skip
        with pytest.raises(LeaseLapsed, match="not live in this session"):
            desk.table.begin_commit(session, [(lease_id, token)])
        with pytest.raises(LeaseLapsed, match="not live in this session"):
            desk.table.release(session, lease_id, token)
    desk.table.begin_commit("s", [(lease.id, lease.token)])


def test_beats_without_progress_keep_a_lease_only_for_so_long(desk):
    desk.lease(1)
    for _ in range(63):
        desk.now += 10
        desk.table.beat("s")
    assert desk.ask(1, session="t").granted == [0]


def test_a_commit_names_leases_of_one_recipe_each_once(desk):
    first, second = desk.lease(1, recipe="r"), desk.lease(1, recipe="q")
    pairs = [(first.id, first.token), (second.id, second.token)]
    for wrong in ([], pairs, [pairs[0], pairs[0]]):
        with pytest.raises(BadRequest):
            desk.table.begin_commit("s", wrong)
    assert not first.is_committing and not second.is_committing


def test_leases_and_leased_items_are_bounded(desk, monkeypatch):
    monkeypatch.setattr(leases, "MAX_LEASES", 2)
    monkeypatch.setattr(leases, "MAX_LEASED_ITEMS", 5)
    assert desk.ask(1, 2, 3, 4, 5, 6, 7).granted == [0, 1, 2, 3, 4]
    with pytest.raises(LimitExceeded, match="job s holds 1 leases on 5 items"):
        desk.ask(6)
    assert desk.ask(6, session="t").granted == [0]
    desk.ask(7, session="t")
    with pytest.raises(LimitExceeded, match="2 leases"):
        desk.ask(8, session="t")


def test_holders_hear_that_somebody_waits_until_he_gives_up(desk):
    lease = desk.lease(1, session="s")
    assert desk.ask(1, 2, session="t").held == {"s": 1} and not desk.table.waited_for(), "it has something"
    assert desk.ask(1, session="t").held == {"s": 1}
    assert desk.table.waited_for() == [lease]
    desk.now += 10
    assert desk.table.waited_for() == []
