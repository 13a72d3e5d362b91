"""What a function reaches otherwise than by the names in its code: by asking, by registries, by libraries."""
# ruff: noqa: E501

from __future__ import annotations

import json
import sys

import pytest

from prepcache.keys.drift import drift
from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}

# Each row: a module whose `f` does not change, and what stands for `$` in it before and after.
ROWS = {
    "class in an annotation as text that is read": (
        "import typing\nclass C: n = $\ndef g(x: 'C'): return x\ndef f(x): return typing.get_type_hints(g)", "1", "2",
    ),
    "literals that an alias stands for in an annotation that is read": (
        "import typing\nM = typing.Literal['a', $]\ndef g(x: M): return x\ndef f(x): return typing.get_type_hints(g)", "'b'", "'c'",
    ),
    "what annotates an annotation that is read": (
        "import typing\nN = $\nM = typing.Annotated[int, N]\ndef g(x: M): return x\n"
        "def f(x): return typing.get_type_hints(g, include_extras=True)", "1", "2",
    ),
    "docstring that is read by its name as text": (
        "class T:\n    '$'\ndef f(x): return getattr(T, '__doc__')", "one", "two",
    ),
    "docstring that is read by its name in a global": (
        "NAME = '__doc__'\nclass T:\n    '$'\ndef f(x): return vars(T)[NAME]", "one", "two",
    ),
    "comment in a function whose source is read": (
        "import inspect\ndef g(x): # $\n    return x\ndef f(x): return inspect.getsource(g)", "one", "two",
    ),
    "function that a namespace gives": (
        "def g(x): return 0\ndef helper_a(x): return $\ndef f(x): return g.__globals__['helper_' + 'a'](x)", "1", "2",
    ),
    "state of an enum's member": (
        "import enum\nclass E(enum.Enum): A = 1\nE.A.n = $\ndef f(x): return E.A.n", "1", "2",
    ),
    "value of an enum's member, set later": (
        "import enum\nclass E(enum.Enum): A = 1\nE.A._value_ = $\ndef f(x): return E.A.value", "1", "2",
    ),
    "method set on an enum": (
        "import enum\nclass E(enum.Enum): A = 1\ndef one(e): return 1\ndef two(e): return 2\nE.g = $\n"
        "def f(x): return E.A.g()", "one", "two",
    ),
    "method set on a namedtuple": (
        "import typing\nclass P(typing.NamedTuple): n: int\ndef one(p): return 1\ndef two(p): return 2\nP.g = $\n"
        "def f(x): return P(1).g()", "one", "two",
    ),
    "default of a pydantic field": (
        "import pydantic\nN = $\nclass M(pydantic.BaseModel):\n    n: int = N\ndef f(x): return M()", "1", "2",
    ),
    "validator in an alias that an annotation names": (
        "import pydantic\nfrom typing import Annotated\nT = Annotated[int, pydantic.AfterValidator(lambda n: n + $)]\n"
        "class M(pydantic.BaseModel):\n    n: T\ndef f(x): return M(n=1)", "1", "2",
    ),
    "validator in a lazy alias": (
        "import pydantic\nfrom typing import Annotated\nfrom typing_extensions import TypeAliasType\n"
        "T = TypeAliasType('T', Annotated[int, pydantic.AfterValidator(lambda n: n + $)])\n"
        "class M(pydantic.BaseModel):\n    n: T\ndef f(x): return M(n=1)", "1", "2",
    ),
    "path in the checkout": (
        "import os, pathlib\nP = pathlib.Path($, 'v.txt')\ndef f(x): return P", "''", "os.path.dirname(__file__)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_is_reached_otherwise_than_by_name_changes_the_key(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OTHERWISE", "")
    text, before, after = ROWS[name]
    project.write(prep=text.replace("$", before))
    assert changes(project, lambda: project.write(prep=text.replace("$", after)), **FUNCTION)


def test_the_getattr_of_a_module_counts(project: Project) -> None:
    project.write(prep="import helper\ndef f(x): return helper.K", helper="def __getattr__(name): return 1")
    assert changes(project, lambda: project.write(helper="def __getattr__(name): return 2"), **FUNCTION)


OF_ITS_OWN = (
    "import sys, types\n_SIZE = {0}\nclass M(types.ModuleType):\n    @property\n    def size(self): return {1}\n"
    "sys.modules[__name__].__class__ = M\n"
)


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("body", ["_SIZE", "self._SIZE"])
def test_what_the_class_of_a_module_reads_counts(project: Project, body: str, code: str) -> None:
    project.write(prep="import cfg\ndef f(x): return cfg.size", cfg=OF_ITS_OWN.format(1, body))
    module = project.load()
    before = recipe(module.f, code=code).digest
    assert recipe(module.f, code=code).digest == before
    module.cfg._SIZE = 2
    assert module.f(0) == 2
    assert recipe(module.f, code=code).digest != before


def test_the_class_of_a_module_counts(project: Project) -> None:
    project.write(prep="import cfg\ndef f(x): return cfg.size", cfg=OF_ITS_OWN.format(1, "1"))
    edited = OF_ITS_OWN.format(1, "2")
    assert changes(project, lambda: project.write(cfg=edited), **FUNCTION)


def test_the_class_of_a_module_that_another_put_there_counts(project: Project) -> None:
    own = "import cfg, types\nclass M(types.ModuleType):\n    size = property(lambda self: {})\ncfg.__class__ = M\n"
    project.write(prep="import cfg, own\ndef f(x): return cfg.size", cfg="", own=own.format(1))
    assert changes(project, lambda: project.write(own=own.format(2)), **FUNCTION)


def test_a_submodule_that_its_package_gives_when_asked_counts(project: Project) -> None:
    project.write(
        prep="import pkg.inner\ndel pkg.inner\ndef f(x): return pkg.inner.g(x)",
        pkg____init__="import importlib\ndef __getattr__(name): return importlib.import_module('pkg.' + name)",
        pkg__inner="def g(x): return 1",
    )
    assert changes(project, lambda: project.write(pkg__inner="def g(x): return 2"), **FUNCTION)


def test_what_the_project_puts_into_a_library_counts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for state, body, size in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)):
        project.write(
            prep=f"import json\nclass C: n = {state}\ndef g(x): return {body}\n"
            "def f(x): return json.made, json.function, json.JSONDecoder.size"
        )
        module = project.load()
        monkeypatch.setattr(json, "made", module.C(), raising=False)
        monkeypatch.setattr(json, "function", module.g, raising=False)
        monkeypatch.setattr(json.JSONDecoder, "size", size, raising=False)
        digests.add(recipe(module.f, **FUNCTION).digest)
    assert len(digests) == 4


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
    site = project.folder / "site-packages"
    for name, text in {
        "one-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1\n",
        "one-1.dist-info/RECORD": "one/__init__.py,sha256=a,1\n",
        "one/__init__.py": "def g(x): return x\n",
        "loose.py": "def g(x): return x\n",
    }.items():
        project.put(f"site-packages/{name}", text)
    monkeypatch.syspath_prepend(str(site))
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
    """An installed library of decorators."""
    for name, text in {
        "holding-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: holding\nVersion: 1\n",
        "holding-1.dist-info/RECORD": "holding/__init__.py,sha256=a,1\n",
        "holding/__init__.py": HOLDING,
    }.items():
        project.put(f"site-packages/{name}", text)
    monkeypatch.syspath_prepend(str(project.folder / "site-packages"))


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
    module = project.load()
    before = recipe(module.f, code=code).digest
    vars(module.f)["calls"] = 1
    assert recipe(module.f, code=code).digest == before


@pytest.mark.usefixtures("holding")
def test_notes_of_a_librarys_decorator_are_the_functions_own(project: Project) -> None:
    project.write(prep="import holding\n@holding.counting\ndef g(x): return x\ndef f(x): return g(x)")
    module = project.load()
    made = recipe(module.f)
    module.f(1)
    assert drift(made) == {"prep.g": True}
    made = recipe(module.f)
    module.g = module.f
    assert drift(made) == {"prep.g": False}


LOOKUPS = {
    "of a class": ("from sub import S\ndef f(x): return S().build(x)", {}),
    "of a module that the config names": (
        "import sub, sys\ndef f(x, mod): return getattr(sys.modules[mod], 'helper_' + 'a')(x)", {"mod": "sub"},
    ),
    "of a module that a table names": (
        "import sub, sys\nT = {'s': 'sub'}\ndef f(x): return getattr(sys.modules[T['s']], 'helper_' + 'a')(x)", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("module", ["sys.modules[type(self).__module__]", "inspect.getmodule(type(self))"])
@pytest.mark.parametrize("how", LOOKUPS)
def test_what_is_looked_up_in_a_module_that_no_code_names_counts(
    project: Project, how: str, module: str
) -> None:
    source, config = LOOKUPS[how]
    base = (
        f"import inspect, sys\nclass B:\n    def build(self, x): return getattr({module}, 'helper_' + 'a')(x)"
    )
    project.write(prep=source, base=base)

    def put(value: int) -> None:
        project.put("sub.py", f"from base import B\nclass S(B): pass\ndef helper_a(x): return {value}")

    put(1)
    assert changes(project, lambda: put(2), config=config, **FUNCTION)
