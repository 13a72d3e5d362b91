"""Eviction accounting is pure: what fits, and what goes."""

from __future__ import annotations

from prepcached.store.eviction import idle_of
from prepcached.store.queries import Doomable
from prepcached.store.records import Holds, Ledger

NONE = Holds(0.0)


def never(_: bytes) -> bool:
    return False


def candidates(*sizes: int) -> list[Doomable]:
    return [
        Doomable(n, b"", bytes([n]), 0, size, size, 0.0, False, 0, 0, 0.0, 0.0)
        for n, size in enumerate(sizes)
    ]


def test_the_coldest_go_first_and_no_more_than_needed() -> None:
    assert [c.id for c in idle_of(candidates(10, 10, 10), 15, never)] == [0, 1]


def test_what_is_protected_is_passed_over() -> None:
    assert [c.id for c in idle_of(candidates(10, 10, 10), 15, lambda d: d == b"\x00")] == [1, 2]


def test_everything_on_disk_counts_against_the_budget() -> None:
    holds = Holds(0.0)
    holds.take("job", [(b"x", 20, False)], 0.0)
    holds.removed([b"x"])
    ledger = Ledger(100, 0, holds, live_bytes=30, staged_bytes=10, reserved_bytes=10)
    assert ledger.shortfall(30, free_bytes=1000) == 0
    assert ledger.shortfall(31, free_bytes=1000) == 1


def test_the_limit_shrinks_to_keep_min_free() -> None:
    ledger = Ledger(100, 50, NONE, live_bytes=20)
    assert ledger.limit(free_bytes=60) == 30
    assert ledger.limit(free_bytes=1000) == 100
    assert ledger.limit(free_bytes=0) == 0


def test_a_refusal_names_the_setting_that_limits() -> None:
    mib = 1 << 20
    budget = Ledger(50 * mib, 10 * mib, NONE, live_bytes=50 * mib)
    told = "no room for 2.0 MiB more: the cache's limit is 50.0 MiB (--max-bytes), and all entries are in use"
    assert budget.refusal(2 * mib, free_bytes=24_000 * mib).startswith(told)
    assert "reserved for" not in budget.refusal(2 * mib, free_bytes=24_000 * mib)
    told = "60.0 MiB exceed the cache's limit: 50.0 MiB (--max-bytes)"
    assert budget.refusal(60 * mib, free_bytes=24_000 * mib) == told
    disk = Ledger(500 * mib, 10 * mib, NONE, live_bytes=50 * mib)
    told = (
        "the cache's limit is 51.0 MiB, because the disk has 11.0 MiB free, "
        "of which 10.0 MiB must stay free (--min-free)"
    )
    assert told in disk.refusal(2 * mib, free_bytes=11 * mib)


def test_headroom_is_a_share_of_the_limit_and_bounded() -> None:
    assert Ledger(1000, 0, NONE).headroom(10_000) == 20
    assert Ledger(1 << 50, 0, NONE).headroom(1 << 50) == 256 << 20
