"""Modules that functions import themselves: their files count, and what they hold once they are loaded."""
# ruff: noqa: E501

import importlib
import string
import sys
from types import ModuleType
from typing import Any

import pytest
from PIL import ImageFile

from prepcache.errors import UnkeyableError
from prepcache.fill.call import Job
from prepcache.fill.recipe_guard import RecipeGuard
from prepcache.keys.recipes import Recipe, recipe
from support.projects import Project, changes, drift, fill, project_fixture  # noqa: F401

BOTH = pytest.mark.parametrize("code", ["function", "script"])
PREP = "def f(x):\n    from helper import g\n    return g(x)\n"
SETTINGS = """
S = 1
CFG = {'size': 1}
class Config:
    size = 1
    def __init__(self): self.n = 1
    def method(self): return 1
    @property
    def prop(self): return 1
cfg = Config()
def scale(x): return x
def sum(x): return x
def other(x): return -x
"""
SECOND = "import settings\ndef h(x): return x * settings.S\ndef p(x): return x\ndef __getattr__(name): return settings.S\n"
SET = {
    "its type": ("import settings\ndef g(x): return x * settings.S\n", "S = True"),
    "everything that is taken": ("from settings import *\ndef g(x): return x * S\n", "S = 5"),
    "a class attribute": ("from settings import cfg\ndef g(x): return x * cfg.size\n", "Config.size = 5"),
    "a function that was replaced": ("import settings\ndef g(x): return settings.scale(x)\n", "scale = other"),
    "a helper of the helper in another file": ("from second import h\ndef g(x): return h(x)\n", "S = 5"),
    "an import by text": ("import importlib\ndef g(x): return x * importlib.import_module('settings').S\n", "S = 5"),
    "what is looked up by text": ("import settings\nK = settings.S * 1\ndef g(x): return x * globals()['K']\n", "S = 5"),
    "what a query names by text": (
        "from settings import S\nclass Q:\n    def query(self, text): return text\ndef g(x): return Q().query('a > @S')\n", "S = 5",
    ),
    "a property of a module whose class was replaced": (
        "def g(x):\n    import settings\n    return settings.prop\n",
        "import sys, types\nsys.modules['settings'].__class__ = type('M', (types.ModuleType,), {'__module__': 'settings', 'prop': property(lambda self: 5)})",
    ),
    "what a module makes when it is asked": ("from second import made\ndef g(x): return made\n", "S = 5"),
    "a builtin": ("def g(x): return SCALE(x)\n", "import builtins; builtins.SCALE = other"),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", SET)
def test_what_the_job_set_in_a_loaded_module_counts(project, monkeypatch, name, code):
    """The helper is not loaded: what it will read is."""
    helper, change = SET[name]
    project.write(prep=PREP, settings=SETTINGS, helper=helper, second=SECOND)
    module = project.load()
    settings = importlib.import_module("settings")
    before = recipe(module.f, code=code).digest
    monkeypatch.setattr("builtins.SCALE", settings.scale, raising=False)
    exec(change, vars(settings))
    assert "helper" not in sys.modules
    assert recipe(module.f, code=code).digest != before


@BOTH
def test_a_module_bound_by_a_computed_name_counts(project, code):
    project.write(
        be_a="def g(x): return x",
        helper="import importlib\nimpl = importlib.import_module('be_' + 'A'.lower())\n",
    )
    project.write(prep="import helper as loaded\ndef f(x):\n    import helper\n    return helper.impl.g(x)\n")
    before = project.recipe(code=code)
    project.write(be_a="def g(x): return -x")
    assert project.recipe(code=code).digest != before.digest


def test_what_only_loading_a_module_uses_is_not_refused(project):
    """The file that `with open(...) as file` leaves behind has no stable bytes."""
    project.put("size.txt", "3")
    project.write(
        settings="with open(__file__.replace('settings.py', 'size.txt')) as file: SIZE = int(file.read())",
        prep="def f(x):\n    import settings\n    return settings.SIZE\n",
    )
    module = project.load()
    assert module.f(1) == 3
    assert recipe(module.f).digest == recipe(module.f).digest


COMPUTED = {
    "sys.modules[...]": "import sys\ndef f(x): return sys.modules['hel' + x]._SIZE",
    "sys.modules by another name": "import sys\ndef f(x):\n    them = sys.modules\n    return them['hel' + x]._SIZE",
    "modules of sys": "from sys import modules\ndef f(x): return modules['hel' + x]._SIZE",
    "sys by a name of the function's": "def f(x):\n    import sys as s\n    return s.modules['hel' + x]._SIZE",
    "an attribute by its name": "import sys\ndef f(x): return getattr(sys.modules['hel' + x], '_SIZE')",
    "a path of attributes": "import sys\nfrom operator import attrgetter\ndef f(x): return attrgetter('_SIZE.real')(sys.modules['hel' + x])",
    "in a global that it binds": "import sys\ndef f(x):\n    global m\n    m = sys.modules['hel' + x]\n    return m._SIZE",
    "__import__": "def f(x): return __import__('hel' + x)._SIZE",
    "__import__ by another name": "IT = __import__\ndef f(x): return IT('hel' + x)._SIZE",
    "in a module that it imports": "def f(x):\n    import late\n    return late.g(x)",
}


@BOTH
@pytest.mark.parametrize("how", COMPUTED)
def test_a_module_looked_up_by_a_computed_name_is_refused(project, how, code):
    """What it uses is unknown, and no event tells of it. It may be left out."""
    project.write(prep=COMPUTED[how], late="def g(x): return __import__('hel' + x)._SIZE")
    function = project.load().f
    with pytest.raises(UnkeyableError, match=r"looks modules up .*import_module\(name\)"):
        recipe(function, code=code)
    assert recipe(function, code=code, untracked=("modules",)).parts["code"]["untracked"] == ["modules"]


def test_what_an_imported_modules_package_holds_is_not_refused(project):
    project.write(
        prep="def f(x):\n    from zoo.one import load\n    return load(x)\n",
        zoo____init__="from . import two\n",
        zoo__one="def load(x, n='x'): return globals().get(n, x)\n",
        zoo__two="import threading\nlocal = threading.local()\ndef held(): return local\n",
    )
    function = project.load().f
    importlib.import_module("zoo.one")
    assert recipe(function).digest == recipe(function).digest


OWN = {
    "its own name": "def f(x): return sys.modules[__name__].K",
    "the module of a class": "class A: pass\ndef f(x, cls=A): return sys.modules[cls.__module__].K",
    "whether one is loaded": "def f(x): return f'{x}' in sys.modules, K",
    "its names": "def f(x): return x in sys.modules.keys(), K",
    "one taken out": "def f(x): return sys.modules.pop('stub', None), K",
    "one put in and taken out": "def f(x):\n    sys.modules['stub'] = x\n    del sys.modules['stub']\n    return K",
    "what sys holds beside them, by another name": "import sys as _sys\ndef f(x): return _sys.byteorder, K",
    "a module that is named modules": "import modules\ndef f(x): return modules.K, K",
    "a method that is named modules": "def f(x): return sys.byteorder, [m for m in x.modules()], K",
}


@BOTH
@pytest.mark.parametrize("by", ["sys.modules", "s.modules"])
def test_what_a_function_finds_by_the_name_of_its_module_counts(project, by, code):
    project.write(prep=f"import sys\ndef f(x):\n    import sys as s\n    return {by}[__name__]._SIZE")
    module, digests = project.load(), []
    for module._SIZE in (1, 1, 2):  # type: ignore[attr-defined]
        digests.append(recipe(module.f, code=code).digest)
    assert digests[0] == digests[1] != digests[2]


SCRIPT = {
    "sys.modules": "import sys\ndef f(x): return sys.modules['__main__']._SIZE",
    "import_module": "import importlib\ndef f(x): return importlib.import_module('__main__')._SIZE",
    "__import__": "def f(x): return __import__('__main__')._SIZE",
    "in a module that it imports": "def f(x):\n    import late\n    return late.g(x)",
}


@BOTH
@pytest.mark.parametrize("how", SCRIPT)
def test_what_the_script_holds_counts_where_its_name_leads_there(project, how, code, monkeypatch):
    project.write(prep=SCRIPT[how], late="import sys\ndef g(x): return sys.modules['__main__']._SIZE")
    function, script = project.load().f, ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    digests = []
    for size in (1, 1, 2):
        script._SIZE = size  # type: ignore[attr-defined]
        digests.append(recipe(function, code=code).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("how", OWN)
def test_a_look_up_that_leads_to_no_other_module_counts_none(project, how):
    project.write(prep=f"import sys\nK = 1\n{OWN[how]}", helper="K = 1", modules="K = 1")
    function = project.load().f
    before = recipe(function).digest
    importlib.import_module("helper")
    assert recipe(function).digest == before


# -- libraries -----------------------------------------------------------------------------------------

READS = {
    "by itself": "from PIL.ImageFile import MAXBLOCK\n    return MAXBLOCK",
    "in a function of the function's": "from PIL import ImageFile\n    return lambda: ImageFile.MAXBLOCK",
    "in a helper": "from helper import g\n    return g(x)",
}


@BOTH
@pytest.mark.parametrize("name", READS)
def test_a_setting_of_a_library_counts_once_it_was_set(project, monkeypatch, name, code):
    project.write(
        prep=f"def f(x):\n    {READS[name]}\n",
        helper="from PIL import ImageFile\ndef g(x): return ImageFile.MAXBLOCK\n",
    )
    module = project.load()
    before = recipe(module.f, code=code)
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 5)
    assert recipe(module.f, code=code).digest != before.digest
    assert before.parts["code"]["values"].keys() == {"preprocess"}, "what its text says does not count"


@pytest.mark.parametrize("name", ["ascii_letters", "SCALE"])
def test_what_a_library_computes_or_was_given_counts(project, monkeypatch, name):
    project.write(prep=f"def f(x):\n    import string\n    return string.{name}\n")
    before = project.digest()
    monkeypatch.setattr(string, name, "abc", raising=False)
    assert project.digest() != before


# -- what calls load -----------------------------------------------------------------------------------

HELPER = """
import math, settings
K = math.sqrt(4)
class C:
    k = 1
one = C()
one.n = settings.S
def scaling(by):
    def scaled(x): return x * by
    return scaled
scaled = scaling(3)
def g(x, k=1):
    return scaled(x) * K * one.n * k * settings.S
"""
CHANGES: dict[str, Any] = {
    "a computed constant": lambda helper: setattr(helper, "K", 7.0),
    "an object": lambda helper: setattr(helper.one, "n", 7),
    "a default": lambda helper: setattr(helper.g, "__defaults__", (7,)),
    "a function's code": lambda helper: setattr(helper.g, "__code__", (lambda x, k=1: 7).__code__),
    "what a closure holds": lambda helper: setattr(helper, "scaled", helper.scaling(7)),
}


@pytest.fixture(name="module")
def _module(project: Project) -> ModuleType:
    project.write(prep=PREP, helper=HELPER, settings="S = 1\n")
    return project.load()


def _called(module: ModuleType, code: str = "script") -> tuple[Recipe, RecipeGuard]:
    """A data set whose first call loads the helper."""
    made = recipe(module.f, code=code)
    job = Job(module.f, {}, guard=RecipeGuard(made))
    assert job.guard.check() == []
    job.call(0, 1)
    job.guard.note_call()
    return made, job.guard


@BOTH
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_job_changes_in_what_calls_loaded_counts(module, name, code):
    """For an open data set and for a later one. The open one takes an object for changed by its own calls."""
    _, guard = _called(module, code)
    fill(guard)
    before = recipe(module.f, code=code)
    CHANGES[name](sys.modules["helper"])
    assert recipe(module.f, code=code).digest != before.digest
    if name != "an object":
        assert guard.check() != []
        assert drift(before) != {}


@BOTH
def test_a_setting_before_the_first_call_is_a_change(module, code):
    made = recipe(module.f, code=code)
    job = Job(module.f, {}, guard=RecipeGuard(made))
    importlib.import_module("helper").K = 7.0
    assert "helper.K" in job.guard.check(), "it does not matter that nothing was loaded before"
    job.call(0, 1)
    job.guard.note_call()
    fill(job.guard)
    assert recipe(module.f, code=code).digest != made.digest
