"""What a function reaches: as it was loaded, whatever became of its source; or refused by name."""

from __future__ import annotations

import pytest

from prepcache.keys.recipes import recipe
from support.projects import Project, changes, project_fixture  # noqa: F401

FUNCTION = {"code": "function"}


@pytest.mark.parametrize(
    ("loaded", "edited"),
    [
        ("x", "-x"),
        ("x.real", "x.imag"),
        ("1", "1.0"),
        ("'1'", "b'1'"),
        ("(1, 2)", "(1, 3)"),
        ("abs(x)", "len(x)"),
    ],
)
def test_what_runs_is_keyed_after_an_edit_of_its_source(project: Project, loaded: str, edited: str) -> None:
    project.write(prep=f"def f(x): return {loaded}")
    module = project.load()
    before = {code: recipe(module.f, code=code).digest for code in ("script", "function")}
    project.write(prep=f"def f(x): return {edited}")
    assert recipe(module.f, **FUNCTION).digest == before["function"]
    after = recipe(module.f).digest
    project.write(prep=f"def f(x): return {edited}  # and again")
    assert recipe(module.f).digest == after
    assert after not in (before["script"], project.digest())
    assert project.digest(**FUNCTION) != before["function"]


def test_the_last_of_very_many_names_counts(project: Project) -> None:
    """Their numbers take several bytes of the bytecode."""
    names = [f"A{number}" for number in range(300)]
    text = "".join(f"{name} = 1\n" for name in names) + f"def f(x): return [{', '.join(names)}]"
    project.write(prep=text)
    assert changes(project, lambda: project.write(prep=text.replace("A299 = 1", "A299 = 2")), **FUNCTION)


def test_untracked_names_that_are_not_reached_are_noted(project: Project) -> None:
    project.write(prep="def f(x): return x")
    assert project.recipe(untracked=("nothing",)).notes == (
        "untracked='nothing' names nothing that the code reaches",
    )
