"""What cached functions keep from before a change is not taken for what they give after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

PREP = """
import functools, os
SCALE = OTHER = 1
@functools.cache
def table(): return SCALE, os.environ.get("SIZE_OF_X")
def f(x): return x * OTHER, table()
"""


def watched(function: Any) -> None:
    """Calls a function as a data set does."""
    with Observer(recipe(function)).watching([], function):
        function(0)


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("name", ["SCALE", "variable"])
def test_a_filled_cache_counts_with_what_filled_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    """A job that opens a data set for each of some sizes: it makes the table once, for the first of them."""

    def change(value: int) -> None:
        if name == "SCALE":
            monkeypatch.setattr(module, name, value)
        else:
            monkeypatch.setenv("SIZE_OF_X", str(value))

    def digest() -> str:
        return recipe(module.f, code=code).digest

    project.write(prep=PREP)
    module = project.load()
    change(2)
    second = digest()
    module = project.load()
    change(1)
    first = digest()
    watched(module.f)
    assert digest() == first
    change(2)
    stale = digest()
    assert stale == digest() not in (first, second)
    change(1)
    assert digest() == first
    change(2)
    module.table.cache_clear()
    assert digest() == second
    watched(module.f)
    assert digest() == second


def test_a_filled_cache_ignores_unrelated_changes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what a job makes for its second size would be made again by the next, whose cache is empty."""
    project.write(prep=PREP)
    digests = set()
    for others in ((1, 2), (2,)):
        module = project.load()
        for other in others:
            monkeypatch.setattr(module, "OTHER", other)
            made = recipe(module.f)
            watched(module.f)
        digests.add(made.digest)
    assert len(digests) == 1


def test_a_recipe_says_what_changed_since_a_cache_was_filled(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(prep=PREP)
    module = project.load()
    recipe(module.f)
    watched(module.f)
    monkeypatch.setattr(module, "SCALE", 2)
    values = recipe(module.f).parts["code"]["values"]
    assert "prep.table, kept from before prep.SCALE changed" in values


NUMBA = """
class Dispatcher:
    def __init__(self, py_func):
        self.py_func, self.overloads = py_func, {}
    def __call__(self, x):
        self.overloads[type(x)] = self.py_func
        return self.py_func(x)
    def __reduce__(self): return Dispatcher, (self.py_func,)
"""


def test_numba_code_counts_with_what_it_was_compiled_from(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the globals of its first call in it, whatever they are later."""
    site = tmp_path / "site-packages"
    (site / "numba").mkdir(parents=True)
    (site / "numba" / "__init__.py").write_text(NUMBA)
    monkeypatch.syspath_prepend(site)
    project.write(
        prep="import numba\nSCALE = 1\n@numba.Dispatcher\ndef g(x): return x * SCALE\ndef f(x): return g(x)"
    )
    module = project.load()
    module.SCALE = 2
    second = recipe(module.f, code="function").digest
    module = project.load()
    first = recipe(module.f, code="function").digest
    module.SCALE = 2
    assert recipe(module.f, code="function").digest == second
    module.SCALE = 1
    recipe(module.f, code="function")
    module.f(1)
    assert recipe(module.f, code="function").digest == first
    module.SCALE = 2
    assert recipe(module.f, code="function").digest not in (first, second)
