"""Observed inputs that were edited: before the function loaded them, where the recipe counts them, and since
they were loaded, where only running the function shows them."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest
from blake3 import blake3

from prepcache.keys.observation.inputs import CHANGED, Roots, still_true
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import Recipe, recipe
from support.projects import Project, project_fixture  # noqa: F401

PREP = "def f(x):\n    from plugin import g\n    return g(x)\n"
PLUGIN = "def g(x): return x * 10\n"


@pytest.mark.parametrize("code", ["script", "function"])
def test_a_counted_module_edited_before_its_import_has_changed(project: Project, code: str) -> None:
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


UNFORESEEN = "import importlib\ndef f(x): return importlib.import_module(str('plug') + 'in').g(x)\n"
DEEP = {"plugin": "import deep\ndef g(x): return x * deep.N\n", "deep": "N = 10\n"}


def _observed(made: Recipe) -> dict[str, str]:
    """The digests of what a data set that is opened now observes."""
    assert made.preprocess is not None
    observer = Observer(made)
    with observer.watching():
        made.preprocess(1)
    return {row["name"]: row["digest"] for row in observer.taken()}


def _still(made: Recipe, observed: dict[str, str]) -> str | None:
    rows = [{"kind": "module", "name": name, "digest": digest} for name, digest in observed.items()]
    return still_true(rows, roots=Roots.of(made))


@pytest.mark.parametrize("module", sorted(DEEP))
def test_a_module_edited_since_it_was_loaded_has_changed(project: Project, module: str) -> None:
    """What the next data set makes is the old text's, and the file says the new one."""
    project.write(prep=UNFORESEEN, **DEEP)
    made, name = project.recipe(), f"project:{module}.py"
    before = _observed(made)
    project.write(**{module: DEEP[module].replace("N = 10", "N = 20").replace("x * deep", "x + deep")})
    assert {one for one, digest in _observed(made).items() if digest == CHANGED} == {name}
    project.write(**{module: DEEP[module]})
    assert _observed(made) == before


@pytest.mark.parametrize("is_new", [False, True], ids=["reloaded", "imported anew"])
def test_samples_of_an_edited_module_hit_once_it_is_loaded(project: Project, is_new: bool) -> None:
    project.write(prep=UNFORESEEN, **DEEP)
    made = project.recipe()
    before = _observed(made)
    text = DEEP["deep"].replace("10", "1000")
    project.write(deep=text)
    other = {**before, "project:deep.py": blake3(text.encode()).hexdigest()}
    assert _still(made, before) == _still(made, other) == "project:deep.py"
    if is_new:
        gone = [sys.modules.pop(name) for name in DEEP]
        assert gone, "and still there, as what came from them may be"
        importlib.invalidate_caches()
    else:
        importlib.reload(sys.modules["deep"])
    assert _observed(made) == other
    assert _still(made, other) is None
