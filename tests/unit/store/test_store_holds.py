"""Holds: what they protect, when they weaken, and whose bytes stay after an unlink."""

from __future__ import annotations

from prepcached.store.records import Holds

A, B = b"a" * 32, b"b" * 32


def held(*digests: bytes, pinned: bool = False) -> list[tuple[bytes, int, bool]]:
    return [(digest, 10, pinned) for digest in digests]


def test_a_hold_protects_until_the_last_session_lets_go() -> None:
    holds = Holds(idle_s=100)
    holds.take("s", held(A), now=0)
    holds.take("t", held(A), now=0)
    holds.drop("s")
    assert holds.is_held(A, now=1)
    assert holds.held_bytes(1) == 10
    holds.drop("t", [A])
    assert not holds.is_held(A, now=1)
    assert holds.held_bytes(1) == 0


def test_a_hold_weakens_when_idle_and_a_touch_keeps_it() -> None:
    holds = Holds(idle_s=100)
    holds.take("s", held(A, B), now=0)
    assert holds.touch("s", [A, b"unknown"], now=60) == [A]
    assert holds.is_held(A, now=120)
    assert not holds.is_held(B, now=120)
    assert holds.held_bytes(120) == 10


def test_unlinked_bytes_count_until_every_holder_let_go() -> None:
    holds = Holds(idle_s=100)
    holds.take("s", held(A), now=0)
    holds.take("t", held(A), now=0)
    holds.removed([A])
    assert not holds.is_held(A, now=0)
    assert holds.unlinked_bytes() == 10
    assert holds.to_let_go("s") == [A]
    holds.drop("s", [A])
    assert holds.unlinked_bytes() == 10
    holds.drop("t")
    assert holds.unlinked_bytes() == 0
