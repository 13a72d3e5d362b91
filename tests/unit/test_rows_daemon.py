"""Rows of sessions and leases: what of them a next daemon finds, after each change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, create_engine

from prepcached import rows
from prepcached.leases import Lease
from prepcached.sessions import Session
from support.storing import RECIPE, item

BOOT = "this boot"
HELD = item("held").hex()


@pytest.fixture
def conn() -> Iterator[Connection]:
    """Sessions `a` (watched; leases 1 and 2) and `b` (not watched; lease 3)."""
    engine = create_engine("sqlite://")
    rows.METADATA.create_all(engine)
    with engine.begin() as conn:
        for name, pid in (("a", 10), ("b", 0)):
            rows.add_session(conn, session(name, pid), BOOT)
        for name, owner in (("1", "a"), ("2", "a"), ("3", "b")):
            rows.add_lease(conn, lease(name, owner))
        yield conn
    engine.dispose()


def session(name: str, pid: int) -> Session:
    return Session(
        name, "token", name, 1000, pid, 11, "here", opened_at=5.0, beat_at=0.0, start_ticks=7, holds={HELD}
    )


def lease(name: str, owner: str) -> Lease:
    items = {item((name, one)) for one in "xy"}
    return Lease(name, "token", owner, "job", RECIPE, items, cost_s=2.0, deadline=0.0, progress_at=0.0)


def found(conn: Connection, boot: str = BOOT, *, dead: tuple[int, ...] = ()) -> tuple[list[str], list[str]]:
    """The ids of the sessions and leases that the next daemon takes on; it must find the same once more."""
    both = [rows.load(conn, boot, lambda pid, ticks: pid not in dead and ticks == 7) for _ in range(2)]
    names = [(sorted(s.id for s in sessions), sorted(one.id for one in leases)) for sessions, leases in both]
    assert names[0] == names[1]
    return names[0]


def test_what_was_written_comes_back_whole(conn: Connection) -> None:
    sessions, leases = rows.load(conn, BOOT, lambda pid, ticks: True)
    assert sessions == [session("a", 10), session("b", 0)]
    expected = [lease(name, owner) for name, owner in (("1", "a"), ("2", "a"), ("3", "b"))]
    assert [vars(one) for one in leases] == [vars(one) for one in expected]


def test_a_process_that_is_gone_takes_its_leases_with_it_and_one_that_nobody_watched_stays(
    conn: Connection,
) -> None:
    assert found(conn, dead=(10, 0)) == (["b"], ["3"])


def test_nothing_of_another_boot_comes_back(conn: Connection) -> None:
    assert found(conn, "the next boot") == ([], [])
    assert found(conn) == ([], []), "and its rows are gone"


def test_dropped_sessions_leave_no_rows_and_no_leases(conn: Connection) -> None:
    rows.drop_sessions(conn, ["a"])
    assert conn.execute(rows.LEASES.select()).scalars().all() == ["3"]
    assert conn.execute(rows.SESSIONS.select()).scalars().all() == ["b"]


def test_dropped_leases_leave_no_rows(conn: Connection) -> None:
    rows.drop_leases(conn, ["1", "3"])
    assert found(conn) == (["a", "b"], ["2"])


def test_more_leases_end_at_once_than_a_statement_takes_values(conn: Connection) -> None:
    rows.drop_leases(conn, [*map(str, range(3, 300_000)), "1"])
    assert found(conn) == (["a", "b"], ["2"])


def test_committed_items_leave_their_leases_and_a_lease_without_items_goes(conn: Connection) -> None:
    done = {item(("1", "x")), item(("1", "y")), item(("2", "x"))}
    rows.free_items(conn, [lease("1", "a"), lease("2", "a")], done)
    _, leases = rows.load(conn, BOOT, lambda pid, ticks: True)
    assert {one.id: one.items for one in leases} == {"2": {item(("2", "y"))}, "3": lease("3", "b").items}


def test_holds_are_those_last_saved(conn: Connection) -> None:
    other = item("other").hex()
    rows.save_holds(conn, [("a", [other, HELD]), ("b", [])])
    sessions, _ = rows.load(conn, BOOT, lambda pid, ticks: True)
    assert [one.holds for one in sessions] == [{other, HELD}, set()]


def test_a_lease_whose_session_is_unknown_is_dropped(conn: Connection) -> None:
    rows.add_lease(conn, lease("4", "nobody"))
    assert found(conn) == (["a", "b"], ["1", "2", "3"])
    assert len(conn.execute(rows.LEASES.select()).all()) == 3
