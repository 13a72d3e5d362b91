"""Functions that IPython's `%autoreload` has edited: it compiles a definition alone, and swaps the code."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest
from IPython.extensions.autoreload import ModuleReloader

from prepcache.errors import SourceChangedError
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

HEAD = "from __future__ import annotations\nimport math\n\n"
CASES = {
    "a function of an imported module": "def f(x):\n    return math.floor(x) * {0}\n",
    "an import in a branch": (
        "try:\n    import json as js\nexcept ImportError:\n    js = None\n\n"
        "def f(x):\n    return js.loads(str(x)) * {0}\n"
    ),
    "a helper": "def g(x):\n    return math.floor(x) * {0}\n\ndef f(x):\n    return g(x)\n",
    "a docstring": 'def f(x):\n    """Of two\n      lines."""\n    return math.floor(x) * {0}\n',
    "annotations": "def f(x: int, *, y: list[int] = ()) -> int:\n    return math.floor(x) * {0}\n",
    "a default": "def f(x, factor={0}):\n    return math.floor(x) * factor\n",
    "a decorator": (
        "import functools\n\n@functools.lru_cache\ndef g(x):\n    return math.floor(x) * {0}\n\n"
        "def f(x):\n    return g.__wrapped__(x)\n"
    ),
    "a function in it": (
        "def f(x):\n    def inner(y):\n        return math.floor(y) * {0}\n    return inner(x)\n"
    ),
    "a lambda in it": "def f(x):\n    return (lambda y: math.floor(y) * {0})(x)\n",
    "a method": (
        "class A:\n    def other(self):\n        return 1\n\n    def g(self, x):\n"
        '        """Of two\n        lines."""\n        return math.floor(x) * {0}\n\n'
        "def f(x):\n    return A().g(x)\n"
    ),
    "one of two methods that are alike": (
        "class B:\n    def g(self, x, y: str = '{0}'):\n        return math.floor(x) * int(y)\n\n"
        "class A:\n    def g(self, x, y: int = {0}):\n        return math.floor(x) * int(y)\n\n"
        "def f(x):\n    return A().g(x)\n"
    ),
    "a method of a class in a class": (
        "class A:\n    class B:\n        @staticmethod\n        def g(x):\n"
        "            return math.floor(x) * {0}\n\ndef f(x):\n    return A.B.g(x)\n"
    ),
    "a property": (
        "class A:\n    @property\n    def g(self):\n        return math.floor({0}.5)\n\n"
        "def f(x):\n    return A().g * x\n"
    ),
}


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


@pytest.fixture
def notebook(project: Project) -> Notebook:
    return Notebook(project)


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_reloaded_counts_as_in_a_new_process(
    project: Project, notebook: Notebook, case: str, code: Any
) -> None:
    before, after = (HEAD + CASES[case].format(factor) for factor in (10, 20))
    module = notebook.load(before)
    first, loaded = recipe(module.f, code=code).digest, module.f
    notebook.edit(after)
    assert loaded(1) == 20  # its code was swapped
    reloaded = recipe(loaded, code=code).digest
    assert reloaded != first
    assert reloaded == recipe(project.load().f, code=code).digest


LATER = {
    "a constant": ("math.floor(x) * {0}", 20, 30),
    "a name": ("math.{0}(x) * 20", "floor", "ceil"),
    "a function in it": ("math.floor(x) * (lambda y: y * {0})(x)", 20, 30),
    "an operator": ("math.floor(x) {0} 20", "*", "+"),
}


@pytest.mark.parametrize("case", LATER)
def test_what_was_edited_again_after_it_was_reloaded_is_refused(
    project: Project, notebook: Notebook, case: str
) -> None:
    text, after, later = LATER[case]
    whole = f"{HEAD}def g(x):\n    'What it does.'\n    return {text}\n\ndef f(x):\n    return g(x)\n"
    module = notebook.load(whole.format(after).replace("return math", "return 0 + math"))
    notebook.edit(whole.format(after))
    recipe(module.f)
    project.put("prep.py", whole.format(later))
    with pytest.raises(SourceChangedError, match=r"prep\.g is not in"):
        recipe(module.f)


def test_a_docstring_that_the_function_reads_is_compared(project: Project, notebook: Notebook) -> None:
    text = HEAD + "def f(x):\n    '{0}'\n    return f.__doc__ + str(math.floor(x) * {1})\n"
    module = notebook.load(text.format("One.", 1))
    notebook.edit(text.format("Two.", 2))
    assert module.f(1) == "Two.2"
    recipe(module.f)
    project.put("prep.py", text.format("Three.", 2))
    with pytest.raises(SourceChangedError):
        recipe(module.f)


def test_of_two_that_are_alike_in_one_place_none_is_taken(project: Project, notebook: Notebook) -> None:
    """Either may have been loaded; what their annotations say may differ."""
    text = HEAD + "if {0}:\n    def f(x: int):\n        return math.floor(x)\n"
    text += "else:\n    def f(x: str):\n        return math.{1}(x)\n"
    module = notebook.load(text.format("len('a')", "ceil"))
    notebook.edit(text.format("len('a')", "floor"))
    with pytest.raises(SourceChangedError):
        recipe(module.f)


RUNS_OTHERWISE = {
    "a private name, mangled with autoreload's class": (
        "class A:\n    __k = 3\n\n    def g(self, x):\n        return math.floor(x) * {0} * len('__k')\n\n"
        "    def k(self):\n        return self.__k * {0}\n\ndef f(x):\n    return A().k()\n"
    ),
    "lines of a text, indented with autoreload's class": (
        "class A:\n    def g(self, x):\n        return len(f'''{{x}}\n{0}\n''') + math.floor({0})\n\n"
        "def f(x):\n    return A().g(x)\n"
    ),
    "annotations that the function makes": (
        "def f(x):\n    def inner(y: math.floor({0}.5)) -> int: ...\n    return str(inner.__annotations__)\n"
    ),
}


@pytest.mark.parametrize("case", RUNS_OTHERWISE)
def test_what_runs_otherwise_than_in_a_new_process_counts_otherwise(
    project: Project, notebook: Notebook, case: str
) -> None:
    before, after = (HEAD + RUNS_OTHERWISE[case].format(factor) for factor in (10, 20))
    loaded = notebook.load(before).f
    notebook.edit(after)
    try:
        given: Any = loaded(1)
    except AttributeError:
        given = AttributeError
    try:
        digest = recipe(loaded).digest
    except SourceChangedError:
        digest = None
    anew = project.load().f
    assert given == anew(1) or digest != recipe(anew).digest, (given, anew(1))


def test_annotations_that_autoreload_leaves_as_they_were_are_refused(
    project: Project, notebook: Notebook
) -> None:
    text = HEAD + "def f(x: 'a{0}') -> int:\n    return math.floor({0}) and str(f.__annotations__)\n"
    module = notebook.load(text.format(10))
    notebook.edit(text.format(20))
    assert "a10" in module.f(1)
    with pytest.raises(SourceChangedError):
        recipe(module.f)
