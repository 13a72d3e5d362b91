"""Holds: what they protect, when they weaken, and whose bytes stay after an unlink."""

from __future__ import annotations

from prepcached.store.holds import Holds

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


def test_bytes_held_by_many_sessions_count_once() -> None:
    holds = Holds(idle_s=100)
    holds.take("s", held(A, B), now=0)
    holds.take("t", held(A), now=0)
    assert holds.held_bytes(1) == 20
    assert holds.count(A) == 2


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


def test_a_digest_that_came_back_is_held_anew() -> None:
    holds = Holds(idle_s=100)
    holds.take("s", held(A), now=0)
    holds.removed([A])
    holds.take("s", held(A), now=1)
    assert holds.to_let_go("s") == []
    assert holds.is_held(A, now=2)


def test_held_and_pinned_bytes_are_not_counted_twice() -> None:
    holds = Holds(idle_s=100)
    holds.take("s", held(A, pinned=True) + held(B), now=0)
    assert holds.held_bytes(1, pinned_too=False) == 10
    holds.pin(B, True)
    holds.pin(A, False)
    assert holds.held_bytes(1, pinned_too=False) == 10
    assert holds.held_bytes(1) == 20


class Looked(bytes):
    """A digest that counts how often it is looked for."""

    times = 0

    def __hash__(self) -> int:
        Looked.times += 1
        return super().__hash__()


def test_many_sessions_with_much_in_hand_keep_nobody_waiting() -> None:
    """Each with its own, or all with the same: no hold is looked at again for each other session."""
    holds = Holds(idle_s=100)
    for n in range(100):
        own = [Looked(b"%d %d" % (n, one)) for one in range(50)]
        holds.take(f"s{n}", held(*own, b"all"), now=0)
    holds.take("few", held(b"0 0"), now=0)
    Looked.times = 0
    assert holds.held_bytes(1) == 10 * (100 * 50 + 1)
    holds.drop("s0")
    assert holds.held_bytes(1) == 10 * (99 * 50 + 2)
    assert Looked.times < 20 * 100 * 50, "and not half a million times"
