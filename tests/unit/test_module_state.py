"""Modules that are imported inside functions: their files count, and what the job set in them."""
# ruff: noqa: E501

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}

LAZY = """
import other, third
from other import K
SIZE = 1
NAME = 'a'
PAIR = (1, 'a')
TABLE = {'a': [1]}
WORDS = {'a', ('b',)}
class Text(str): pass
class Table(dict): pass
class C:
    n = 1
    def g(self): return 1
    @property
    def p(self): return 1
    @staticmethod
    def s(): return 1
class D:
    n = 2
    def g(self): return 2
    @property
    def p(self): return 2
    @staticmethod
    def s(): return 2
def g(x): return 1
def h(x): return 2
"""


def _set(name: str, make: Callable[[Any, Any], Any]) -> Callable[[Any, Any], None]:
    """Sets what `make(lazy, other)` gives under a dotted name of the lazy module."""

    def apply(lazy: Any, other: Any) -> None:
        first, _, last = name.rpartition(".")
        holder = getattr(lazy, first) if first else lazy
        setattr(holder, last, make(lazy, other))

    return apply


PATCHES = {
    "constant": _set("SIZE", lambda lazy, other: 2),
    "type of a constant": _set("SIZE", lambda lazy, other: True),
    "class of a text": _set("NAME", lambda lazy, other: lazy.Text("a")),
    "class of an element": _set("PAIR", lambda lazy, other: (1, lazy.Text("a"))),
    "length of a tuple": _set("PAIR", lambda lazy, other: (1, "a", 2)),
    "class of a table": _set("TABLE", lambda lazy, other: lazy.Table(a=[1])),
    "value in a table": _set("TABLE", lambda lazy, other: {"a": [2]}),
    "class of an element of a set": _set("WORDS", lambda lazy, other: {lazy.Text("a"), ("b",)}),
    "class of what is in an element of a set": _set("WORDS", lambda lazy, other: {"a", (lazy.Text("b"),)}),
    "function of another name": _set("g", lambda lazy, other: lazy.h),
    "function of another file": _set("g", lambda lazy, other: other.g),
    "class of another name": _set("C", lambda lazy, other: lazy.D),
    "class of another file": _set("C", lambda lazy, other: other.C),
    "class of another file than the one it is imported from": _set("K", lambda lazy, other: lazy.third.K),
    "class attribute": _set("C.n", lambda lazy, other: 2),
    "method": _set("C.g", lambda lazy, other: lazy.D.g),
    "property": _set("C.p", lambda lazy, other: lazy.D.p),
    "static method": _set("C.s", lambda lazy, other: staticmethod(lazy.D.s)),
}


@pytest.mark.parametrize("name", PATCHES)
def test_what_the_job_sets_in_a_lazy_module_counts(project: Project, name: str) -> None:
    project.write(
        prep="def f(x):\n    import lazy\n    return lazy.g, lazy.C, lazy.K, lazy.SIZE, lazy.NAME, lazy.PAIR, lazy.TABLE, lazy.WORDS",
        lazy=LAZY,
        other="class C: n = 2\nclass K: n = 1\ndef g(x): return 2",
        third="class K: n = 2",
    )
    module = project.load()
    module.f(0)
    before = recipe(module.f, **FUNCTION).digest
    assert recipe(module.f, **FUNCTION).digest == before
    PATCHES[name](sys.modules["lazy"], sys.modules["other"])
    assert recipe(module.f, **FUNCTION).digest != before


@pytest.mark.parametrize("code", ["function", "script"])
def test_a_lazy_module_counts_alike_loaded_or_not(project: Project, code: str) -> None:
    project.write(
        prep="def f(x):\n    from lazy import g, SIZE\n    return g(x) * SIZE",
        lazy="SIZE = 2\ndef h(x): return x * SIZE\ndef g(x): return h(x)",
    )
    module = project.load()
    before = recipe(module.f, code=code).digest
    module.f(1)
    assert recipe(module.f, code=code).digest == before
    sys.modules["lazy"].SIZE = 3
    assert recipe(module.f, code=code).digest != before


def test_a_lazy_modules_reexports_count_loaded_or_not(project: Project) -> None:
    project.write(
        prep="def f(x):\n    from lazy import C, g\n    return g(x), C.n",
        lazy____init__="from .inner import g\nfrom .inner import *",
        lazy__inner="from lazy.deep import g, C\n__all__ = ['C']",
        lazy__deep="class C: n = 1\ndef g(x): return 1",
    )
    module = project.load()
    before = recipe(module.f, **FUNCTION).digest
    module.f(1)
    assert recipe(module.f, **FUNCTION).digest == before


def test_a_function_reached_in_two_ways_counts_by_definition(project: Project) -> None:
    text = "def h(x): return {}\ndef g(x): return h(x)"
    project.write(
        prep="import util\ndef f(x):\n    from util import g\n    return util.h(x) + g(x)",
        util=text.format(1),
    )
    made = project.recipe(**FUNCTION)
    assert "util.h" in made.parts["code"]["definitions"]
    assert changes(project, lambda: project.write(util=text.format(2)), **FUNCTION)


def test_what_only_loading_a_module_uses_is_not_refused(project: Project) -> None:
    """The file that `with open(...) as file` leaves behind has no stable bytes."""
    project.put("size.txt", "3")
    project.write(
        settings="with open(__file__.replace('settings.py', 'size.txt')) as file: SIZE = int(file.read())",
        prep="def f(x):\n    import settings\n    return settings.SIZE\n",
    )
    module = project.load()
    assert module.f(1) == 3
    assert recipe(module.f).digest == recipe(module.f).digest
