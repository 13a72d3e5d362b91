"""Functions that IPython's autoreload has edited: it compiles a definition alone, and swaps the code."""

from __future__ import annotations

import ast
import textwrap
from types import ModuleType
from typing import Any

import pytest

from prepcache.errors import SourceChangedError
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

HEAD = "from __future__ import annotations\nimport math\n\n"
CASES = {
    "a function of an imported module": "def f(x):\n    return math.floor(x) * {0}\n",
    "a helper": "def g(x):\n    return math.floor(x) * {0}\n\ndef f(x):\n    return g(x)\n",
    "a docstring": 'def f(x):\n    """Of two\n      lines."""\n    return math.floor(x) * {0}\n',
    "annotations": "def f(x: int, *, y: list[int] = ()) -> int:\n    return math.floor(x) * {0}\n",
    "a decorator": (
        "import functools\n\n@functools.lru_cache\ndef g(x):\n    return math.floor(x) * {0}\n\n"
        "def f(x):\n    return g.__wrapped__(x)\n"
    ),
    "a function in it": (
        "def f(x):\n    def inner(y):\n        return math.floor(y) * {0}\n    return inner(x)\n"
    ),
    "a method": (
        "class A:\n    def other(self):\n        return 1\n\n    def g(self, x):\n"
        '        """Of two\n        lines."""\n        return math.floor(x) * {0}\n\n'
        "def f(x):\n    return A().g(x)\n"
    ),
    "a method of a class in a class": (
        "class A:\n    class B:\n        @staticmethod\n        def g(x):\n"
        "            return math.floor(x) * {0}\n\ndef f(x):\n    return A.B.g(x)\n"
    ),
}


def swap(module: ModuleType, text: str) -> None:
    """Puts code that is compiled from each definition alone into the functions that are there."""

    def walk(body: list[ast.stmt], space: Any) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                walk(node.body, space[node.name].__dict__)
            elif isinstance(node, ast.FunctionDef):
                alone = textwrap.dedent(ast.unparse(node))
                made: dict[str, Any] = {}
                if space is not vars(module):
                    alone = "class __autoreload_class__:\n" + textwrap.indent(alone, "    ")
                exec(compile(alone, str(module.__file__), "exec", dont_inherit=True), vars(module), made)
                found = made.get("__autoreload_class__")
                new = made[node.name] if found is None else found.__dict__[node.name]
                bare(space[node.name]).__code__ = bare(new).__code__

    walk(ast.parse(text).body, vars(module))


def bare(value: Any) -> Any:
    return getattr(value, "__wrapped__", value)


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_reloaded_counts_as_in_a_new_process(project: Project, case: str, code: Any) -> None:
    before, after = (HEAD + CASES[case].format(factor) for factor in (10, 20))
    project.write(prep=before)
    module = project.load()
    first = recipe(module.f, code=code).digest
    project.write(prep=after)
    swap(module, after)
    assert module.f(1) == 20
    reloaded = recipe(module.f, code=code).digest
    assert reloaded != first
    assert reloaded == recipe(project.load().f, code=code).digest


def test_what_was_edited_again_after_it_was_reloaded_is_refused(project: Project) -> None:
    before, after, later = (HEAD + CASES["a helper"].format(factor) for factor in (10, 20, 30))
    project.write(prep=before)
    module = project.load()
    swap(module, after)
    project.write(prep=later)
    with pytest.raises(SourceChangedError, match=r"prep\.g is not in"):
        recipe(module.f)


def test_the_definition_is_that_of_the_functions_own_name(project: Project) -> None:
    """Of two that compile to the same code, other things that are said of them may differ."""
    text = HEAD + (
        "class A:\n    def g(self, x, y: int = 1):\n        return math.floor(x) * 10\n\n"
        "class B:\n    def g(self, x, y: str = 1):\n        return math.floor(x) * 10\n\n"
        "def f(x):\n    return B().g(x)\n"
    )
    project.write(prep=text)
    module = project.load()
    first = recipe(module.f, code="function").digest
    swap(module, text)
    assert recipe(module.f, code="function").digest == first
