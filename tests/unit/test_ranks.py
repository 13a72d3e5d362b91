"""A variable that tells ranks apart, and is in a key, is named with the line that reads it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from prepcache.keys.recipes import Recipe, recipe
from support.projects import Project, project_fixture  # noqa: F401

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
def test_the_rank_its_line_and_the_way_out_are_named(
    module: Any, name: str, variable: str, line: str
) -> None:
    function = getattr(module, name)
    (note,) = made(function).notes
    assert note.startswith(f"{variable} differs between the processes of this job")
    assert line in note and f"untracked=({variable!r},)" in note
    assert made(function, untracked=(variable,)).notes == ()


def test_a_rank_that_an_object_holds_is_named(module: Any) -> None:
    (note,) = made(module.Prep(1)).notes
    assert note.startswith("local_rank differs") and "prep.py:22" in note
    left_out = [made(module.Prep(rank), untracked=("local_rank",)) for rank in (0, 1)]
    assert left_out[0].digest == left_out[1].digest and left_out[0].notes == ()


def test_nothing_is_said_without_ranks(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(module.without).notes == ()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert made(module.by_global).notes == ()
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name)
    assert made(module.by_global).notes == ()
