"""What objects of libraries keep that is another thing in each process: it does not count, all else does."""

from __future__ import annotations

from typing import Any

import numpy
import numpy.random
import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401

LIBRARY = '''
import functools, os, pickle, random, threading, uuid
import numpy as np

class Kept:
    """Gives its attributes away as they are."""
    def __init__(self, n): self.n = n

class Given(Kept):
    def __getstate__(self): return dict(vars(self))

class Unseeded(Given):
    """As monai's Compose."""
    def __init__(self, n):
        super().__init__(n)
        self.R = np.random.RandomState()
        self.rng = np.random.default_rng()
    def __call__(self, x): return self.R.random_sample() < self.n

class Seeded(Given):
    def __init__(self, n):
        super().__init__(0)
        self.R, self.rng, self.py = np.random.RandomState(n), np.random.default_rng(5), random.Random(6)

class Global(Given):
    """As scipy's distributions."""
    def __init__(self, n):
        super().__init__(n)
        self.R, self.py = np.random.random_sample.__self__, random._inst
        np.random.random_sample(), random.random()

class Locked(Kept):
    """As rich's Console."""
    def __init__(self, n):
        super().__init__(n)
        self.lock, self.again = threading.Lock(), threading.RLock()

def checked(function):
    """As beartype: made from text, in the namespace of the function, with parameters named by addresses."""
    limit = (int, str)
    name = f"__limit_{id(limit)}"
    text = f"def {function.__name__}(x, *, __function=function, {name}=limit):\\n"
    text += f"    return __function(x) if isinstance(x, {name}) else (lambda: {name})()\\n"
    space = {"function": function, "limit": limit}
    exec(compile(text, f"<checked {function.__name__} at {id(limit)}>", "exec"), function.__globals__, space)
    return functools.update_wrapper(space[function.__name__], function)
'''

HEAD = "import library as L\n"
HELD = HEAD + "HELD = $\ndef f(x): return HELD"

ROWS = {
    "generators made from entropy": (HELD, "L.Unseeded(1)", "L.Unseeded(2)"),
    "generators made from a seed": (HELD, "L.Seeded(1)", "L.Seeded(2)"),
    "the global generators": (HELD, "L.Global(1)", "L.Global(2)"),
    "locks": (HELD, "L.Locked(1)", "L.Locked(2)"),
    "a parameter named by an address": (
        HEAD + "@L.checked\ndef g(x): return $\ndef f(x): return g(x)",
        "1",
        "2",
    ),
    "code made from text that calls itself a file": (
        "space = {'__file__': '<made>'}\nexec(compile('def g(x): return $', '<made>', 'exec'), space)\n"
        "g = space['g']\ndef f(x): return g(x)",
        "1",
        "2",
    ),
}


@pytest.fixture
def library(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.install(monkeypatch, "library", LIBRARY)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.usefixtures("library")
def test_what_differs_in_each_process_does_not_count(project: Project, name: str) -> None:
    text, one, other = ROWS[name]
    kept: list[Any] = []  # alive: what is made next lies elsewhere

    def digest(expression: str) -> str:
        project.write(prep=text.replace("$", expression))
        kept.append(project.load())
        return recipe(kept[-1].f, code="function").digest

    before = digest(one)
    numpy.random.seed(5)
    assert digest(one) == before
    assert digest(other) != before


def test_a_hash_that_a_library_made_from_text_does_not_count(project: Project) -> None:
    """As attrs does, with the hash of a text in it."""
    text = "class C: n = $\nspace = {'k': id(C)}\n"
    text += "exec(f'def __hash__(self): return {id(C)}', space)\nC.__hash__ = space['__hash__']\n"
    text += "def f(x): return C()"
    kept: list[Any] = []

    def digest(number: str) -> str:
        project.write(prep=text.replace("$", number))
        kept.append(project.load())
        return recipe(kept[-1].f, code="function").digest

    before = digest("1")
    assert digest("1") == before
    assert digest("2") != before
    own = "class C:\n    def __hash__(self): return $\ndef f(x): return C()"
    project.write(prep=own.replace("$", "1"))
    before = project.digest(code="function")
    project.write(prep=own.replace("$", "2"))
    assert project.digest(code="function") != before
