"""What a function's first call loads: what a job changes in it later counts, and has changed."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

from prepcache.fill.recipe_guard import Steady
from prepcache.keys.drift import drift
from prepcache.keys.recipes import Recipe, recipe
from support.projects import Project, project_fixture  # noqa: F401

BOTH = pytest.mark.parametrize("code", ["function", "script"])
HELPER = """
import math, settings
K = math.sqrt(4)
M = settings.S * 1.0
class C:
    k = 1
one = C()
one.n = settings.S
def scaling(by):
    def scaled(x): return x * by
    return scaled
scaled = scaling(3)
def g(x, k=1):
    return scaled(x) * K * M * one.n * k * settings.S
"""


@pytest.fixture(name="module")
def _module(project: Project) -> ModuleType:
    project.write(
        prep="def f(x):\n    from helper import g\n    return g(x)\n", helper=HELPER, settings="S = 1\n"
    )
    return project.load()


def _called(module: ModuleType, code: str) -> tuple[Recipe, Steady]:
    """A data set whose function loads the helper."""
    made = recipe(module.f, code=code)
    steady = Steady(made)
    assert steady.changed(is_due=True) == []
    module.f(1)
    steady.settle()
    return made, steady


READS_FILE = "from pathlib import Path\nV = (Path(__file__).parent / 'vocab.txt').read_text().split()\n"

CHANGES: dict[str, Any] = {
    "a computed constant": lambda helper: setattr(helper, "K", 7.0),
    "an object": lambda helper: setattr(helper.one, "n", 7),
    "an object's class": lambda helper: setattr(helper.C, "k", 7),
    "a default": lambda helper: setattr(helper.g, "__defaults__", (7,)),
    "a function": lambda helper: setattr(helper, "g", lambda x: 7),
    "what a closure holds": lambda helper: setattr(helper, "scaled", helper.scaling(7)),
    "a constant of another module's": lambda helper: setattr(helper.settings, "S", 7),
}


@BOTH
@pytest.mark.parametrize("name", CHANGES)
def test_a_later_data_set_counts_changes_since_loading(module: ModuleType, name: str, code: str) -> None:
    _called(module, code)
    before = recipe(module.f, code=code).digest
    CHANGES[name](sys.modules["helper"])
    assert recipe(module.f, code=code).digest != before


def test_a_later_data_set_counts_reads_at_import(project: Project) -> None:
    """The first one has observed the file; the later one would not."""
    vocabulary = project.put("vocab.txt", "a b")
    project.write(prep="def f(x):\n    import helper\n    return len(helper.V) + x\n", helper=READS_FILE)
    _called(project.load(), "function")
    one = recipe(sys.modules["prep"].f, code="function").digest
    vocabulary.write_text("a b c")
    _called(project.load(), "function")
    assert recipe(sys.modules["prep"].f, code="function").digest != one


@BOTH
@pytest.mark.parametrize("name", [name for name in CHANGES if name != "an object"])
def test_an_open_data_set_sees_changes_since_loading(module: ModuleType, name: str, code: str) -> None:
    """But for an object that the first call has made: it may have changed itself."""
    _, steady = _called(module, code)
    assert steady.changed(is_due=True) == []
    CHANGES[name](sys.modules["helper"])
    assert steady.changed(is_due=True) != []


@BOTH
def test_a_later_data_set_sees_what_is_changed_while_it_is_open(module: ModuleType, code: str) -> None:
    _called(module, code)
    later = recipe(module.f, code=code)
    sys.modules["helper"].K = 7.0  # type: ignore[attr-defined]
    assert "helper.K" in drift(later)


@BOTH
def test_a_setting_before_the_first_call_is_a_change(module: ModuleType, code: str) -> None:
    made = recipe(module.f, code=code)
    steady = Steady(made)
    importlib.import_module("helper").K = 7.0
    steady.changed(is_due=True)
    module.f(1)
    steady.settle()
    assert recipe(module.f, code=code).digest != made.digest


WRITTEN = "S = 1\nT = {}\ndef h(x): return x\nclass C: n = 1\n"
READS = "def f(x):\n    import settings\n    return settings.S, settings.T, settings.h(x), settings.C.n\n"
SET = {
    "settings.S": lambda settings: setattr(settings, "S", 7),
    "settings.T": lambda settings: settings.T.update(a=1),
    "settings.h": lambda settings: setattr(settings, "h", lambda x: 7),
    "settings.C": lambda settings: setattr(settings, "C", type("D", (), {"n": 7})),
    "settings.C.n": lambda settings: setattr(settings.C, "n", 7),
}


@BOTH
@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("name", SET)
def test_what_counted_by_its_text_has_changed_once_it_was_set(
    project: Project, name: str, code: str, is_loaded: bool
) -> None:
    project.write(prep=READS, settings=WRITTEN)
    module = project.load()
    if is_loaded:
        importlib.import_module("settings")
    steady = Steady(recipe(module.f, code=code))
    assert steady.changed(is_due=True) == []
    module.f(1)
    steady.settle()
    assert steady.changed(is_due=True) == []
    SET[name](sys.modules["settings"])
    assert name.removesuffix(".n") in steady.changed(is_due=True)


@BOTH
@pytest.mark.parametrize("name", [name for name in SET if name != "settings.C.n"])
def test_a_module_set_before_the_first_look_has_changed(project: Project, name: str, code: str) -> None:
    project.write(prep=READS, settings=WRITTEN)
    made = recipe(project.load().f, code=code)
    SET[name](importlib.import_module("settings"))
    assert name in drift(made)


@BOTH
def test_what_was_set_has_changed_once_it_is_as_its_text_again(project: Project, code: str) -> None:
    project.write(prep=READS, settings=WRITTEN)
    module = project.load()
    settings: Any = importlib.import_module("settings")
    settings.S = 5
    made = recipe(module.f, code=code)
    assert drift(made) == {}
    settings.S = 1
    assert drift(made) == {"settings.S": False}


def test_the_functions_own_changes_are_no_change(project: Project) -> None:
    counter = "import math\nseen = [math.pi]\ndef g(x):\n    seen.append(x)\n    return x\n"
    project.write(prep="def f(x):\n    from helper import g\n    return g(x)\n", helper=counter)
    _, steady = _called(project.load(), "function")
    sys.modules["prep"].f(2)
    assert steady.changed(is_due=True) == []


@BOTH
def test_state_left_by_a_call_is_not_the_loaded_state(project: Project, code: str) -> None:
    """A mean of the first items: in a process that begins with others it is another."""
    helper = (
        "MEAN = None\ndef g(x):\n    global MEAN\n    MEAN = x if MEAN is None else MEAN\n    return MEAN\n"
    )
    project.write(prep="def f(x):\n    from helper import g\n    return g(x)\n", helper=helper)
    module = project.load()
    made, _ = _called(module, code)
    assert recipe(module.f, code=code).digest != made.digest
