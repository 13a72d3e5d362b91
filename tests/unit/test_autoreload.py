"""Functions that IPython's `%autoreload` has edited: it compiles a definition alone, and swaps the code."""

import os
import sys
from types import ModuleType

import pytest
from IPython.extensions.autoreload import ModuleReloader

from prepcache.keys.recipes import recipe
from support.projects import Project, drift, project_fixture  # noqa: F401

CASES = {
    "a function": "def f(x):\n    return x * {0}\n",
    "a helper": "def g(x):\n    return x * {0}\n\ndef f(x):\n    return g(x)\n",
    "a default": "def f(x, factor={0}):\n    return x * factor\n",
    "a private name": (
        "class A:\n    __k = 1\n\n    def g(self, x):\n        return x * {0} * self.__k\n\n"
        "    def k(self, x):\n        return x * {0}\n\ndef f(x):\n    return A().k(x)\n"
    ),
}  # fmt: skip


class Notebook:
    """Edits modules and reloads them, as a notebook does between two cells after `%autoreload 2`."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._reloader = ModuleReloader()
        self._time_s = 1_000_000_000

    def load(self, text: str) -> ModuleType:
        self._write(text)
        module = self._project.load()
        # What was imported earlier is none of the notebook's, nor slow to look at.
        self._reloader.skip_modules = {name: True for name in sys.modules if name != "prep"}
        self._reloader.check(check_all=True, do_reload=False)
        return module

    def edit(self, text: str) -> None:
        self._write(text)
        self._reloader.check(check_all=True)

    def _write(self, text: str) -> None:
        self._time_s += 10
        path = self._project.put("prep.py", text)
        os.utime(path, (self._time_s, self._time_s))


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_reloaded_counts_as_what_runs(project, case, code):
    notebook = Notebook(project)
    module = notebook.load(CASES[case].format(10))
    function = module.f
    made = {10: recipe(function, code=code)}
    for factor in (20, 10):
        notebook.edit(CASES[case].format(factor))
        assert function(1) == factor  # its code was swapped
        assert drift(made[10]) or factor == 10
        made[factor] = recipe(function, code=code)
    fresh = recipe(project.load().f, code=code).digest
    assert made[20].digest not in (made[10].digest, fresh)
    if case == "a helper":
        assert fresh == made[10].digest, "as in a new process"
