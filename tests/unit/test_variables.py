"""Environment variables, the command line and the home folder count where code that is reached asks; ranks are named."""
# ruff: noqa: E501

import argparse
import linecache
from typing import Any

import pytest

from prepcache.keys.recipes import Recipe, recipe
from support.projects import Project, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}
ENV = "import os\ndef env(n): return os.environ.get(n)\n"

# Each row: a module whose `f` reads $MY_SIZE under a name that does not stand in its code, or within a text.
HELD = {
    "attribute of an object": (
        "class C:\n    def __init__(self, k): self.k = k\n    def g(self): return env(self.k)\nc = C('MY_SIZE')\ndef f(x): return c.g()"
    ),
    "descriptor that puts it together": (
        "class V:\n    def __set_name__(self, o, n): self.n = 'MY_' + n.upper()\n    def __get__(self, o, t): return env(self.n)\n"
        "class C: size = V()\ndef f(x): return C().size"
    ),
    "prefix": "class C: PREFIX = 'MY_'\ndef f(x): return env(C.PREFIX + x.upper())",
    "reference": "T = ['$MY_SIZE/x']\ndef f(x): return os.path.expandvars(T[0])",
    "format that a value holds": "T = ['at {MY_SIZE}']\ndef f(x): return T[0].format_map(os.environ)",
    "words": "def f(x): return [env(n) for n in 'MY_SIZE MY_NAME'.split()]",
    "bytes": "from os import environb as e\nN = b'MY_SIZE'\ndef f(x): return e[N]",
    "config": "def f(x, n='MY_SIZE'): return env(n)",
}  # fmt: skip
LAZY = {
    "variable of a name": "import os\nNAME = 'MY_SIZE'\nSIZE = os.environ[NAME]",
    "variables of a prefix": "import os\nSIZE = [v for n, v in os.environ.items() if n.startswith('MY_')]",
    "settings": "from pydantic_settings import BaseSettings\nclass S(BaseSettings):\n    my_size: int\nSIZE = S().my_size",
    "settings of a prefix": (
        "from pydantic_settings import BaseSettings\nclass S(BaseSettings):\n    model_config = {'env_prefix': 'my_'}\n"
        "    size: int\nSIZE = S().size"
    ),
}  # fmt: skip


def keys(project: Project, monkeypatch: pytest.MonkeyPatch, name: str, **options: object) -> set[str]:
    """The recipe with each of two values of an environment variable."""
    found = set()
    for value in ("1", "2"):
        monkeypatch.setenv(name, value)
        found.add(project.digest(**options))
    return found


@pytest.mark.parametrize("is_late", [False, True], ids=["", "in a module that it imports"])
@pytest.mark.parametrize("held", HELD)
def test_a_variable_counts_whose_name_is_held_by_a_value(project, monkeypatch, held, is_late):
    late = {"prep": "def f(x):\n    from helper import f\n    return f(x)", "helper": ENV + HELD[held]}
    project.write(**late if is_late else {"prep": ENV + HELD[held]})
    config = {"config": {"n": "MY_SIZE"}} if held == "config" else {}
    assert len(keys(project, monkeypatch, "MY_SIZE", **FUNCTION, **config)) == 2
    assert len(keys(project, monkeypatch, "OTHER_SIZE", **FUNCTION, **config)) == 1


@pytest.mark.parametrize("how", LAZY)
def test_a_variable_read_by_an_imported_module_counts(project, monkeypatch, how):
    project.write(prep="def f(x):\n    from helper import SIZE\n    return SIZE", helper=LAZY[how])
    assert len(keys(project, monkeypatch, "MY_SIZE")) == 2
    assert len(keys(project, monkeypatch, "OTHER_SIZE")) == 1


@pytest.mark.parametrize("name", ["TERM", "_", "SSH_TTY"])
def test_session_variables_do_not_count(project, monkeypatch, name):
    """Their names are used for other things."""
    words = "WORDS = ['the', 'TERM', '_', 'SSH_']\ndef f(x): return env('MY_SIZE').split('_'), WORDS"
    project.write(prep=ENV + words)
    assert len(keys(project, monkeypatch, name, **FUNCTION)) == 1


@pytest.mark.parametrize("text", ["open(os.path.expanduser(x)).read()", "(Path.home() / x).read_text()", "x"])
def test_the_home_folder_counts_only_where_code_asks(project, monkeypatch, text):
    """What is read there by the same name is another file in another's."""
    project.write(prep=f"import os\nfrom pathlib import Path\ndef f(x): return {text}")
    assert len(keys(project, monkeypatch, "HOME")) == (1 if text == "x" else 2)


SOURCE = """
import os
RANK = int(os.environ.get("RANK", 0))
IS_MAIN = RANK == 0
SIZE = 4

def by_global(x):
    if RANK == 0:
        print(x)
    return x

def by_derived(x):
    return print(x) if IS_MAIN else x

def by_variable(x):
    return x, os.environ["SLURM_PROCID"]

class Prep:
    def __init__(self, local_rank):
        self.local_rank = local_rank
    def __call__(self, x):
        return x, self.local_rank

def by_args(x):
    return x, args.local_rank

def without(x):
    return x * SIZE
"""


@pytest.fixture
def module(project: Project, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "8"), ("SLURM_PROCID", "1")):
        monkeypatch.setenv(name, value)
    project.write(prep=SOURCE)
    module = project.load()
    module.args = argparse.Namespace(local_rank=1)
    return module


def made(function: Any, **options: Any) -> Recipe:
    return recipe(function, code="function", **options)


@pytest.mark.parametrize(
    ("name", "variable", "line"),
    [
        ("by_global", "RANK", "prep.py:8: if RANK == 0:"),
        ("by_derived", "IS_MAIN", "prep.py:13: return print(x) if IS_MAIN else x"),
        ("by_variable", "SLURM_PROCID", 'prep.py:16: return x, os.environ["SLURM_PROCID"]'),
        ("by_args", "local_rank", "prep.py:25: return x, args.local_rank"),
    ],
)
def test_the_rank_its_line_and_the_way_out_are_named(module, name, variable, line):
    function = getattr(module, name)
    (note,) = made(function).notes
    assert note.startswith(f"{variable} differs between the processes of this job")
    assert line in note and f"untracked=({variable!r},)" in note
    assert made(function, untracked=(variable,)).notes == ()


def test_a_rank_that_an_object_holds_is_named(module):
    (note,) = made(module.Prep(1)).notes
    assert note.startswith("local_rank differs") and "prep.py:22" in note
    left_out = [made(module.Prep(rank), untracked=("local_rank",)) for rank in (0, 1)]
    assert left_out[0].digest == left_out[1].digest and left_out[0].notes == ()


def test_nothing_is_said_without_ranks(module, monkeypatch):
    linecache.clearcache()
    assert made(module.without).notes == () and module.__file__ not in linecache.cache
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert made(module.by_global).notes == ()
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name)
    assert made(module.by_global).notes == ()
