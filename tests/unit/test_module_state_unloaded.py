"""What a function imports when it is called, not loaded at the opening: what it will read counts all the same."""
# ruff: noqa: E501

from __future__ import annotations

import importlib
import sys

import pytest

from prepcache.fill.recipe_guard import Steady
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

BOTH = pytest.mark.parametrize("code", ["function", "script"])
PREP = "def f(x):\n    from helper import g\n    return g(x)\n"
SETTINGS = "S = 1\nT = 1\nCFG = {'size': 1}\nclass Config:\n    size = 1\n    def __init__(self): self.n = 1\ncfg = Config()\ndef scale(x): return x\ndef sum(x): return x\ndef other(x): return -x\n"
SET = {
    "a constant": ("import settings\ndef g(x): return x * settings.S\n", "S = 5"),
    "a constant under another name": ("import settings as s\ndef g(x): return x * s.S\n", "S = 5"),
    "a constant that is taken": ("from settings import S as K\ndef g(x): return x * K\n", "S = 5"),
    "everything that is taken": ("from settings import *\ndef g(x): return x * S\n", "S = 5"),
    "a dict that was changed": (
        "from settings import CFG\ndef g(x): return x * CFG['size']\n",
        "CFG['size'] = 5",
    ),
    "an object": ("from settings import cfg\ndef g(x): return x * cfg.n\n", "cfg.n = 5"),
    "a class attribute": ("from settings import cfg\ndef g(x): return x * cfg.size\n", "Config.size = 5"),
    "a function that was replaced": (
        "import settings\ndef g(x): return settings.scale(x)\n",
        "scale = other",
    ),
    "a helper of the helper in another file": ("from second import h\ndef g(x): return h(x)\n", "S = 5"),
    "everything that is taken, a builtin's name among it": (
        "from settings import *\ndef g(x): return sum(x)\n",
        "sum = other",
    ),
    "an import in the helper": ("def g(x):\n    import settings\n    return x * settings.S\n", "S = 5"),
    "an import by text": (
        "import importlib\ndef g(x): return x * importlib.import_module('settings').S\n",
        "S = 5",
    ),
    "what is looked up by text": (
        "import settings\nK = settings.S * 1\ndef g(x): return x * globals()['K']\n",
        "S = 5",
    ),
    "a module that is looked up by text": (
        "import sys\ndef g(x): return x * sys.modules['settings'].S\n",
        "S = 5",
    ),
    "what a query names by text": (
        "from settings import S\nclass Q:\n    def query(self, text): return text\n"
        "def g(x): return Q().query('a > @S')\n",
        "S = 5",
    ),
    "a property of a module whose class was replaced": (
        "def g(x):\n    import settings\n    return settings.prop\n",
        "import sys, types\nsys.modules['settings'].__class__ = type('M', (types.ModuleType,), {'__module__': 'settings', 'prop': property(lambda self: 5)})",
    ),
    "what a module makes when it is asked": ("from second import made\ndef g(x): return made\n", "S = 5"),
    "a builtin": ("def g(x): return SCALE(x)\n", "import builtins; builtins.SCALE = other"),
}
SECOND = "import settings\ndef h(x): return x * settings.S\ndef p(x): return x\ndef q(x): return -x\ndef __getattr__(name): return settings.S\n"


@BOTH
@pytest.mark.parametrize("name", SET)
def test_what_the_job_set_in_a_loaded_module_counts(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    helper, change = SET[name]
    project.write(prep=PREP, settings=SETTINGS, helper=helper, second=SECOND)
    module = project.load()
    settings = importlib.import_module("settings")
    before = recipe(module.f, code=code).digest
    monkeypatch.setattr("builtins.SCALE", settings.scale, raising=False)
    exec(change, vars(settings))
    assert "helper" not in sys.modules
    assert recipe(module.f, code=code).digest != before


COMPUTED = {"what a module makes when it is asked", "what is looked up by text"}
"""When the helper is loaded; then it counts as it is."""


@pytest.mark.nightly
@BOTH
@pytest.mark.parametrize("name", [name for name in SET if name not in COMPUTED])
def test_a_setting_counts_alike_with_a_helper_loaded_or_not(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    helper, change = SET[name]
    project.write(prep=PREP, settings=SETTINGS, helper=helper, second=SECOND)
    module = project.load()
    settings = importlib.import_module("settings")
    monkeypatch.setattr("builtins.SCALE", settings.scale, raising=False)
    exec(change, vars(settings))
    made = recipe(module.f, code=code)
    steady = Steady(made)
    module.f(1)
    steady.settle()
    now = recipe(module.f, code=code)
    assert now.parts == made.parts
    assert now.digest == made.digest


def test_modules_that_take_from_each_other_are_followed(project: Project) -> None:
    project.write(
        prep=PREP,
        settings=SETTINGS,
        helper="from second import *\nfrom second import h\ndef g(x): return h(x) * S\n",
        second="from helper import *\nfrom helper import g\nfrom settings import *\ndef h(x): return g(x)\n",
    )
    module = project.load()
    settings = importlib.import_module("settings")
    before = recipe(module.f).digest
    settings.S = 5  # type: ignore[attr-defined]
    assert recipe(module.f).digest != before
