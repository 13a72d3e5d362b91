"""The last miss of each name is kept, for so many names."""

from __future__ import annotations

from prepcached.misses import Misses


def test_the_last_miss_of_a_name_and_of_all_is_remembered() -> None:
    misses = Misses()
    assert misses.last() is None and misses.last("a") is None
    for name, recipe in (("a", "1"), ("b", "2"), ("a", "3")):
        misses.note(name, recipe)
    assert (misses.last("a"), misses.last("b"), misses.last()) == ("3", "2", "3")


def test_names_that_missed_longest_ago_are_forgotten() -> None:
    misses = Misses(limit=2)
    for name in ("a", "b", "a", "c"):
        misses.note(name, f"recipe of {name}")
    assert misses.last("b") is None
    assert misses.last("a") == "recipe of a"
