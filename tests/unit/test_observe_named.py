"""Observed inputs that are opened in C, under paths that stand in the code."""

from __future__ import annotations

import pickle
import sys

import pytest

from prepcache.keys.observation.observer import Observer
from support.observing import HERE, IN_C, Watched
from support.projects import Project, project_fixture  # noqa: F401


def watched(project: Project, line: str) -> Watched:
    """A function of this line, run once."""
    return Watched(project, f"{IN_C}\ndef f(x):\n    {line}\n")


NAMED = [
    "read_in_c('./a.mask')",
    "read_in_c(*('a.mask',))",
    "(lambda: read_in_c(path='a.mask'))()",
    # As DuckDB is told what to read:
    """query("select it isn't from 'a.mask'")""",
    """query('select * from read_csv("a.mask")')""",
    "query(QUERY)",
]


@pytest.mark.parametrize("line", NAMED)
def test_a_path_in_the_code_that_is_opened_in_c_is_an_input(
    project: Project, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    project.put("a.mask", "one")
    monkeypatch.chdir(project.folder)
    query = "QUERY = \"from 'a.mask'\"\ndef query(text): pass\n" if "query" in line else ""
    found = Watched(project, f"{IN_C}\n{query}def f(x):\n    {line}\n")
    assert found.names == ["cwd:a.mask"]
    assert found.changed() is None
    project.put("a.mask", "two")
    assert found.changed() == "cwd:a.mask"


def test_a_path_in_the_code_counts_in_a_copy_of_the_observer(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.put("a.mask", "one")
    monkeypatch.chdir(project.folder)
    project.write(prep=HERE + IN_C + "\ndef f(x):\n    read_in_c('a.mask')\n")
    found = project.recipe()
    copy = pickle.loads(pickle.dumps(Observer(found)))
    assert found.preprocess is not None
    with copy.watching():
        found.preprocess(None)
    assert [row["name"] for row in copy.taken()] == ["cwd:a.mask"]


NO_INPUTS = [
    "write_in_c('./out.txt')",
    "open('out.txt', 'wb').close()",
    "'out.txt, or another sentence.'",
]


@pytest.mark.parametrize("line", NO_INPUTS)
def test_what_is_only_named_in_the_code_or_written_is_no_input(
    project: Project, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    project.put("out.txt", "of an earlier run")
    monkeypatch.chdir(project.folder)
    assert watched(project, line).names == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell what is handed over")
def test_a_file_with_two_names_counts_by_both(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.put("a.mask", "one")
    monkeypatch.chdir(project.folder)
    assert watched(project, "read_in_c(joined(f'{HERE}', 'a.mask'))").names == [
        "cwd:a.mask",
        "project:a.mask",
    ]
