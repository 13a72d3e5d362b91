"""Functions that IPython's `%autoreload` has edited: it compiles a definition alone, and swaps the code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from types import ModuleType
from typing import Any

import pytest
from IPython.extensions.autoreload import ModuleReloader

from prepcache import loaded
from prepcache.errors import SourceChangedError
from prepcache.keys.drift import drift
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
    first, function = recipe(module.f, code=code).digest, module.f
    notebook.edit(after)
    assert function(1) == 20  # its code was swapped
    reloaded = recipe(function, code=code).digest
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
    "a branch that was not taken": (
        "if math.pi:\n    def g(x):\n        return math.floor(x)\nelse:\n    def g(x):\n"
        "        return math.floor(x) * {0}\n\ndef f(x):\n    return g(x)\n"
    ),
    "a class's docstring": (
        "class A:\n    '{0}'\n    def g(self, x):\n        return math.floor(x) * {0}\n\n"
        "def f(x):\n    return A().g(x), A.__doc__\n"
    ),
    "the lines of a method's docstring": (
        'class A:\n    def g(self, x):\n        """Of two\n        lines."""\n'
        "        return math.floor(x) * {0}\n\ndef f(x):\n    return A().g(x), A.g.__doc__\n"
    ),
    "those of a function's within a method": (
        'class A:\n    def g(self, x):\n        def h():\n            """Of two\n            lines."""\n'
        "        return math.floor(x) * {0}, h.__doc__\n\ndef f(x):\n    return A().g(x)\n"
    ),
    "code that the function compiles": (
        "def f(x):\n    space = {{}}\n    exec('def g(x: int): ...', space)\n"
        "    return math.floor(x) * {0}, str(space['g'].__annotations__)\n"
    ),
    "a base of a class": (
        "class B:\n    k = 10\n\nclass C:\n    k = 20\n\nBASES = {{5: B, 10: B, 20: C}}\n\n"
        "class A(BASES[{0}]):\n    def g(self, x):\n        return math.floor(x) * {0}, self.k\n\n"
        "def f(x):\n    return A().g(x)\n"
    ),
    "a function of a library's decorator": (
        "import contextlib\n\n@contextlib.contextmanager\ndef g(x):\n    yield x * {0}\n\n"
        "def f(x):\n    with g(x) as y:\n        return y\n"
    ),
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


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("is_lazy", [False, True], ids=["", "imported by the function"])
@pytest.mark.parametrize("case", RUNS_OTHERWISE)
def test_what_runs_otherwise_than_in_a_new_process_counts_otherwise(
    project: Project, notebook: Notebook, case: str, is_lazy: bool, code: Any
) -> None:
    first, before, after = (HEAD + RUNS_OTHERWISE[case].format(factor) for factor in (5, 10, 20))
    module = notebook.load(first)
    project.write(late="def f(x):\n    import prep\n    return prep.f(x)\n")
    function = importlib.import_module("late").f if is_lazy else module.f
    found = []
    for text in (before, after):
        notebook.edit(text)
        with contextlib.suppress(SourceChangedError):
            found.append((recipe(function, code=code).digest, run(function)))
    anew = project.load("late" if is_lazy else "prep").f
    found.append((recipe(anew, code=code).digest, run(anew)))
    assert len(dict(found)) == len(set(found)), found


def test_where_nothing_is_known_of_a_module_that_the_function_imports_it_is_refused(
    project: Project, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEAD + CASES["a helper"]
    notebook.load(text.format(10))
    project.write(late="def f(x):\n    import prep\n    return prep.f(x)\n")
    function = importlib.import_module("late").f
    notebook.edit(text.format(20))
    monkeypatch.setattr(loaded, "_loads", {})
    with pytest.raises(SourceChangedError):
        recipe(function)


def run(function: Any) -> str:
    try:
        return str(function(1))
    except AttributeError as error:
        return str(error)


@pytest.mark.parametrize("text", [CASES["a helper"], CASES["a method"]], ids=["a function", "a method"])
def test_what_is_reloaded_while_a_data_set_is_open_has_changed(notebook: Notebook, text: str) -> None:
    module = notebook.load(HEAD + text.format(10))
    made = recipe(module.f)
    notebook.edit(HEAD + text.format(20))
    assert module.f(1) == 20
    assert drift(made)


def test_what_a_librarys_decorator_was_given_anew_is_refused(notebook: Notebook) -> None:
    text = HEAD + RUNS_OTHERWISE["a function of a library's decorator"]
    module = notebook.load(text.format(10))
    made = recipe(module.f)
    notebook.edit(text.format(20))
    assert module.f(1) == 20
    assert drift(made)
    with pytest.raises(
        SourceChangedError, match=r"prep\.g was compiled anew, under the name of .*contextlib\.py"
    ):
        recipe(module.f)


def test_a_function_of_a_decorator_of_another_module_is_found(project: Project, notebook: Notebook) -> None:
    text = f"{HEAD}import deco\n\n@deco.twice\n{CASES['a helper']}"
    project.write(deco="def twice(g):\n    def h(x):\n        return g(x) * 2\n    return h\n")
    module = notebook.load(text.format(10))
    recipe(module.f)
    notebook.edit(text.format(20))
    assert module.f(1) == 40
    assert recipe(module.f).digest == recipe(project.load().f).digest


def test_annotations_that_autoreload_leaves_as_they_were_are_refused(
    project: Project, notebook: Notebook
) -> None:
    text = HEAD + "def f(x: 'a{0}') -> int:\n    return math.floor({0}) and str(f.__annotations__)\n"
    module = notebook.load(text.format(10))
    notebook.edit(text.format(20))
    assert "a10" in module.f(1)
    with pytest.raises(SourceChangedError):
        recipe(module.f)
