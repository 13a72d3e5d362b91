"""`code="script"`: which files count, found without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.code.import_graph import ImportGraph
from prepcache.keys.code.project import Places
from prepcache.keys.recipe_parts import static_key
from prepcache.keys.recipes import recipe
from support.projects import Project, project_fixture  # noqa: F401


def files(project: Project, target: str = "prep.f") -> set[str]:
    return set(project.recipe(target).parts["code"]["files"])


def test_two_files_known_by_one_name_both_count(tmp_path: Path) -> None:
    graph = ImportGraph(Places({}), [])
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "prep.py").write_text("")
        graph.add_file("prep", str(tmp_path / folder / "prep.py"))
    assert list(graph.files) == ["prep.py", "prep.py#2"]


def test_import_module_with_a_relative_literal_is_resolved(project: Project) -> None:
    project.write(
        pkg____init__="",
        pkg__one="import importlib\ndef f(x): return importlib.import_module('.two', __package__).g(x)",
        pkg__two="def g(x): return x",
    )
    assert "pkg/two.py" in files(project, "pkg.one.f")


def test_star_from_a_package_brings_the_submodules_of_its_all(project: Project) -> None:
    project.write(
        prep="from pkg import *\ndef f(x): return two.g(x)",
        pkg____init__="__all__ = ['two']",
        pkg__two="g = len",
    )
    assert "pkg/two.py" in files(project)


def test_library_modules_count_as_distributions_not_as_files(project: Project) -> None:
    project.write(prep="import os, helper\ndef f(x): return x", helper="import numpy")
    made = project.recipe()
    assert set(made.parts["code"]["files"]) == {"prep.py", "helper.py"}
    assert "numpy" in made.parts["environment"]["distributions"]


def test_a_module_that_shadows_the_standard_library_counts(project: Project) -> None:
    project.write(prep="def f(x):\n    import this\n    return x", this="K = 1")
    assert files(project) == {"prep.py", "this.py"}


def test_a_syntax_error_in_a_helper_names_the_file_and_a_way_out(project: Project) -> None:
    project.write(prep="def f(x):\n    import broken\n    return x", broken="def (")
    with pytest.raises(UnkeyableError, match=r"broken\.py cannot be parsed.*version="):
        project.recipe()


@pytest.mark.parametrize("code", ["script", "function"])
@pytest.mark.parametrize("edited", ["prep.py", "helper.py"])
@pytest.mark.parametrize("text", ["def (", None])
def test_a_loaded_file_that_no_longer_says_anything_is_keyed(
    project: Project, code: Literal["script", "function"], edited: str, text: str | None
) -> None:
    """By what was loaded from it."""
    digests = []
    for k in (1, 2):
        project.write(
            prep=f"import helper\nK = {k}\ndef f(x):\n    import helper\n    return helper.g(x) * K",
            helper=f"def g(x): return x * {k}",
        )
        module = project.load()
        (project.folder / edited).unlink() if text is None else project.put(edited, text)
        digests.append(recipe(module.f, code=code).digest)
    assert digests[0] != digests[1]


def test_a_module_that_is_only_bytecode_is_refused_by_name(project: Project) -> None:
    project.write(prep="def f(x):\n    import only\n    return x")
    (project.folder / "only.pyc").write_bytes(b"\0" * 16)
    with pytest.raises(UnkeyableError, match="module only exists only as bytecode"):
        project.recipe()


def test_a_static_key_reads_the_file_and_never_runs_it(project: Project) -> None:
    project.write(
        tool="import helper, sys\nSIZE = 3\nsys.exit('it ran')\ndef f(x): return helper.g(x, SIZE)",
        helper="import numpy, sys\nsys.exit('it ran')\ndef g(x, n): return x",
    )
    key = static_key(project.folder / "tool.py", "f")
    assert set(key["files"]) == {"tool.py", "helper.py"}
    assert {"tool.f", "helper.g"} <= set(key["definitions"])
    assert key["literals"] == {"tool.SIZE": "3"}
    assert "numpy" in key["distributions"]
    assert "tool" not in sys.modules


def test_a_static_key_of_an_unknown_name_says_what_there_is(project: Project) -> None:
    path = project.put("tool.py", "def f(x): return x")
    with pytest.raises(UnkeyableError, match="does not define 'g'; it defines f"):
        static_key(path, "g")
