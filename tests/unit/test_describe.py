"""Objects read as what they were given, so that two that differ do not read the same."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

from prepcache.keys.code.values import TEXT_LIMIT, readable
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


def test_a_callable_object_is_explained_by_its_attribute() -> None:
    before, now = (recipe(Transform(size=1, settings=Settings(size))) for size in (2, 3))
    lines = [one.line for one in differences(before.parts, now.parts)]
    assert lines == ["preprocess.settings.size 2 -> 3"]


def test_a_method_is_explained_by_its_objects_attribute() -> None:
    before, now = (recipe(Transform(size=1, started=started).__call__) for started in (1.5, 2.5))
    lines = [difference.line for difference in differences(before.parts, now.parts)]
    assert lines == ["preprocess.__self__.started 1.5 -> 2.5"]
    assert readable(Transform(size=1).__call__) == f"__call__ of {HERE}.Transform"
    assert len(readable("x" * 1000)) <= TEXT_LIMIT
    assert readable(MethodType(print, "s3://me:hidden@box/x")) == "print of secret"


def test_a_replaced_object_is_explained_by_its_class() -> None:
    def made(held: Any) -> Any:
        def f(x: Any) -> Any:
            return held, x

        return recipe(f).parts

    lines = [one.line for one in differences(made(Settings(1)), made(Transform(size=1)))]
    [line] = [line for line in lines if "f[held]" in line]
    assert line.endswith(f"f[held] {HERE}.Settings -> {HERE}.Transform")
