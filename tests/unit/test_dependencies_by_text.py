"""What a function reaches otherwise than by the names in its code: by asking, by registries, by libraries."""
# ruff: noqa: E501

from __future__ import annotations

import sys

import pytest

from prepcache.fill.recipe_guard import drift
from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}


def test_the_class_of_a_module_that_another_put_there_counts(project: Project) -> None:
    own = "import cfg, types\nclass M(types.ModuleType):\n    size = property(lambda self: {})\ncfg.__class__ = M\n"
    project.write(prep="import cfg, own\ndef f(x): return cfg.size", cfg="", own=own.format(1))
    assert changes(project, lambda: project.write(own=own.format(2)), **FUNCTION)


def test_a_file_that_was_loaded_by_its_place_counts_whole(project: Project) -> None:
    project.write(
        prep="import importlib.util, pathlib\nfrom importlib.machinery import SourceFileLoader\n"
        "loader = SourceFileLoader('aside', str(pathlib.Path(__file__).with_name('aside.txt')))\n"
        "module = importlib.util.module_from_spec(importlib.util.spec_from_loader('aside', loader))\n"
        "loader.exec_module(module)\ng = module.g\ndef f(x): return g(x)"
    )
    path = project.put("aside.txt", "N = 1\ndef g(x): return 1\n")
    assert changes(project, lambda: path.write_text("N = 2\ndef g(x): return 1\n"))


def test_a_module_off_the_path_counts_by_its_loaded_file(project: Project) -> None:
    aside = project.folder / "aside"
    project.put("aside/put_aside.py", "def g(x): return 1")
    project.write(prep="import put_aside\ndef f(x): return x")
    sys.path.insert(0, str(aside))
    module = project.load()
    sys.path.remove(str(aside))
    assert set(recipe(module.f).parts["code"]["files"]) == {"prep.py", "put_aside.py"}


def test_an_unowned_module_in_site_packages_counts_by_its_file(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.install(monkeypatch, "one", "def g(x): return x\n")
    project.put("site-packages/loose.py", "def g(x): return x\n")
    project.write(prep="import loose, one\ndef f(x): return loose.g(one.g(x))")
    made = project.recipe()
    assert set(made.parts["code"]["files"]) == {"prep.py", "loose.py"}
    assert "one" in made.parts["environment"]["distributions"]


def test_an_objects_own_caches_do_not_count(project: Project) -> None:
    project.write(
        prep="def made(path): return Reader(path)\nclass Reader:\n    def __init__(self, path):\n"
        "        self.path, self.n, self.seen = path, 0, {}\n    def get(self, x):\n        self.n += 1\n"
        "        self.seen[x] = x\n        return x\n    def __reduce__(self): return made, (self.path,)\n"
        "r = Reader('p')\ndef f(x): return r.get(x)\n"
    )
    module = project.load()
    made = recipe(module.f)
    module.f(1)
    assert recipe(module.f).digest == made.digest and not drift(made)


HOLDING = """
import functools
def by_default(fn):
    def inner(x, _fn=fn): return _fn(x)
    return inner
def by_keyword(fn):
    def inner(x, *, _fn=functools.partial(fn)): return _fn(x)
    return inner
def by_attribute(fn):
    def inner(x): return inner.fn(x)
    inner.fn = fn
    inner.calls = 0
    return inner
def counting(fn):
    seen = {}
    def inner(x):
        seen[x] = True
        return fn(x)
    return inner

def restored(name): ...

class by_name:
    def __init__(self, function):
        self._partial = functools.partial(function)
        self.name = function.__name__
    def __call__(self, x):
        return self._partial(x)
    def __reduce__(self):
        return restored, (self.name,)
"""


@pytest.fixture
def holding(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.install(monkeypatch, "holding", HOLDING)


@pytest.mark.parametrize("decorator", ["by_default", "by_keyword", "by_attribute", "by_name"])
@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.usefixtures("holding")
def test_what_a_librarys_decorator_keeps_beside_its_cells_counts(
    project: Project, decorator: str, code: str
) -> None:
    text = "import holding, help\n@holding.{0}\ndef f(x): return help.g(x) + {1}"
    project.write(prep=text.format(decorator, 7), help="def g(x): return x")
    made = project.recipe(code=code)
    if code == "script":
        assert set(made.parts["code"]["files"]) == {"prep.py", "help.py"}
    assert changes(project, lambda: project.write(prep=text.format(decorator, 8)), code=code)
    assert changes(project, lambda: project.write(help="def g(x): return 2 * x"), code=code)


@pytest.mark.usefixtures("holding")
def test_notes_of_a_librarys_decorator_are_the_functions_own(project: Project) -> None:
    project.write(prep="import holding\n@holding.counting\ndef g(x): return x\ndef f(x): return g(x)")
    module = project.load()
    made = recipe(module.f)
    module.f(1)
    assert drift(made) == {"prep.g[seen]": True}
    made = recipe(module.f)
    module.g = module.f
    assert drift(made) == {"prep.g": False}
