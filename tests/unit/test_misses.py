"""The last miss of each name is kept, for so many names."""

from __future__ import annotations

from prepcached.misses import Miss, Misses


def test_names_that_missed_longest_ago_are_forgotten() -> None:
    misses = Misses(limit=2)
    for name in ("a", "b", "a", "c"):
        misses.note(Miss(name, f"recipe of {name}"))
    assert misses.latest(9, "b") == []
    assert misses.latest(9, "a") == [Miss("a", "recipe of a")]
