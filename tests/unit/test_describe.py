"""Objects read as what they were given, so that two that differ do not read the same."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import pytest

from prepcache.keys.code.describe import TEXT_LIMIT, readable
from prepcache.keys.drift import drift
from prepcache.keys.recipes import recipe
from prepcache.protocol.explain import differences

HERE = __name__


@dataclass
class Settings:
    size: int
    deep: Any = None


class Transform:
    """A function that is an object, as transforms are."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __call__(self, x: Any, **config: Any) -> Any:
        return x, vars(self)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, ""),
        ({"size": 1, "mode": "near"}, "(size=1, mode='near')"),
        ({"settings": Settings(2, Settings(3))}, "(settings=Settings(size=2, deep=Settings))"),
        ({"_calls": 1, "table": [1], "other": object()}, ""),
        ({"size": 1, "hf_token": "hidden"}, "(size=1, hf_token=secret)"),
        ({"size": 1, "store": "s3://me:hidden@box/x"}, "(size=1, store=secret)"),
    ],
)
def test_an_object_reads_as_the_settings_that_it_was_given(given: dict[str, Any], text: str) -> None:
    assert readable(Transform(**given)) == f"{HERE}.Transform{text}"


def test_a_callable_object_is_explained_by_its_attribute() -> None:
    before, now = (recipe(Transform(size=1, settings=Settings(size))) for size in (2, 3))
    lines = [one.line for one in differences(before.parts, now.parts)]
    assert lines == ["preprocess.settings.size 2 -> 3"]


def test_a_method_is_explained_by_its_objects_attribute() -> None:
    before, now = (recipe(Transform(size=1, started=started).__call__) for started in (1.5, 2.5))
    lines = [difference.line for difference in differences(before.parts, now.parts)]
    assert lines == ["preprocess.__self__.started 1.5 -> 2.5"]
    assert readable(Transform(size=1).__call__) == f"__call__ of {HERE}.Transform(size=1)"
    assert readable(MethodType(print, "s3://me:hidden@box/x")) == "print of secret"


def test_an_object_is_shown_with_more_than_a_text_is_but_bounded() -> None:
    shown = readable(Transform(**{f"name{number}": number for number in range(1000)}))
    assert TEXT_LIMIT < len(shown) <= 400 and shown.endswith("...")
    assert len(readable("x" * 1000)) <= TEXT_LIMIT


class Keyed(Transform):
    """One that says itself what of it counts."""

    def __prepcache_key__(self) -> int:
        return 7


def test_what_reads_otherwise_and_counts_the_same_is_no_drift() -> None:
    one = Keyed(calls=0)
    made = recipe(one, config={"one": one})
    vars(one)["calls"] = 1
    assert recipe(one, config={"one": one}).parts != made.parts
    assert drift(made) == {}
