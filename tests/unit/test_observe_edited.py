"""Observed inputs: files that the recipe counts, and that were edited before the function loaded them."""

from __future__ import annotations

import importlib
import sys

import pytest

from prepcache.keys.inputs import still_true
from prepcache.keys.observe import Observer
from prepcache.keys.recipes import recipe
from prepcache.keys.roots import Roots
from support.projects import Project, project_fixture  # noqa: F401

PREP = "def f(x):\n    from plugin import g\n    return g(x)\n"
PLUGIN = "def g(x): return x * 10\n"


@pytest.mark.parametrize("code", ["script", "function"])
def test_a_counted_module_that_was_edited_before_the_function_imports_it(project: Project, code: str) -> None:
    project.write(prep=PREP, plugin=PLUGIN)
    module = project.load()
    made = recipe(module.f, code=code)
    observer = Observer(made)
    project.write(plugin=PLUGIN.replace("10", "1000"))
    importlib.invalidate_caches()
    with observer.watching():
        assert module.f(1) == 1000
    taken = observer.taken()
    assert [(row["kind"], row["name"]) for row in taken] == [("module", "project:plugin.py")]
    assert still_true(taken, roots=Roots.of(made)) is None
    project.write(plugin=PLUGIN)
    assert project.recipe(code=code) == made
    assert still_true(taken, roots=Roots.of(made)) == "project:plugin.py"


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_counted_module_that_is_as_it_was_is_no_observation(project: Project, is_loaded: bool) -> None:
    """Nor is one that is edited when it is loaded: what runs is what was loaded."""
    project.write(prep=PREP, plugin=PLUGIN)
    module = project.load()
    if is_loaded:
        module.f(1)
    observer = Observer(recipe(module.f))
    if is_loaded:
        project.write(plugin=PLUGIN.replace("10", "1000"))
    with observer.watching():
        assert module.f(1) == 10
        importlib.import_module("plugin")
    assert "plugin" in sys.modules
    assert observer.taken() == []
