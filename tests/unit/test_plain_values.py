"""Large plain globals: looked at again in a tenth of the time, and every change of them is still seen."""

from __future__ import annotations

from typing import Any

import pytest

from prepcache.fill.recipe_guard import drift
from prepcache.keys.code import dependencies
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

PREP = """
import numpy, pathlib
HERE = str(pathlib.Path(__file__).parent)
TABLE = {"words": {"a": 1, "b": 2}, "boxes": [[1.0, 0.0], (b"x", None)], "names": {"cat.jpg"}}
FILES = [HERE + "/v.txt"]
ARRAYS = [numpy.zeros(3)]
def f(x): return TABLE, FILES, ARRAYS, x
"""


@pytest.fixture
def module(project: Project, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(dependencies, "DEAR_S", -1.0)
    project.write(prep=PREP)
    project.put("v.txt", "one")
    return project.load()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("words", "a"), True),
        (("words", "a"), 1.0),
        (("words", "c"), 3),
        (("boxes", 0, 1), -0.0),
        (("boxes", 1), [b"x", None]),
        (("boxes", 1), ("x", None)),
        (("names",), {"dog.jpg"}),
        (("names",), frozenset({"cat.jpg"})),
        (("names",), object),
    ],
)
def test_every_change_of_it_is_a_change(module: Any, path: tuple[Any, ...], value: Any) -> None:
    made = recipe(module.f)
    *folders, last = path
    inner = module.TABLE
    for step in folders:
        inner = inner[step]
    before = inner.get(last) if isinstance(inner, dict) else inner[last]
    inner[last] = value
    assert list(drift(made)) == ["prep.TABLE"]
    if before is None:
        del inner[last]
    else:
        inner[last] = before
    assert drift(made) == {}


def test_a_file_that_a_large_value_names_is_looked_at_again(module: Any, project: Project) -> None:
    made = recipe(module.f)
    project.put("v.txt", "another")
    assert list(drift(made)) == ["prep.FILES"]


def test_variables_that_a_plain_table_names_are_looked_at_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "DEAR_S", -1.0)
    project.write(prep='import os\nNAMES = {0: "MY_RATE"}\ndef f(x): return os.environ[NAMES[x]]\n')
    module = project.load()
    monkeypatch.setenv("MY_RATE", "16000")
    made = recipe(module.f)
    assert drift(made) == {}
    monkeypatch.setenv("MY_RATE", "8000")
    assert drift(made)


def test_bytes_are_told_from_a_bytearray_of_them(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "DEAR_S", -1.0)
    project.write(prep='DATA = b"abc"\ndef f(x): return type(DATA).__name__\n')
    module = project.load()
    made = recipe(module.f)
    module.DATA = bytearray(module.DATA)
    assert drift(made)
