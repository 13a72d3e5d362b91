"""Marks are taken off before the function sees a value."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from prepcache.keys.markers import plain, strip, tree


class Pair(NamedTuple):
    a: Any
    b: Any


def test_marks_are_taken_off_wherever_a_container_can_be_rebuilt() -> None:
    value = {
        "a": [plain("x"), (tree("d"), 1)],
        "b": Pair(plain(plain(1)), {plain("s")}),
        plain("c"): collections.OrderedDict(z=plain({"n": tree(Path("p"))})),
    }
    assert strip(value) == {
        "a": ["x", ("d", 1)],
        "b": Pair(1, {"s"}),
        "c": collections.OrderedDict(z={"n": Path("p")}),
    }


def test_tree_takes_a_path() -> None:
    with pytest.raises(TypeError, match="directory"):
        tree(3)
