"""Observed inputs that are opened in C, under paths that stand in the code."""

import sys

import pytest

from prepcache.keys.observation.inputs import CHANGED
from support.observing import IN_C, Watched
from support.projects import project_fixture  # noqa: F401

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
def test_a_path_in_the_code_that_is_opened_in_c_is_an_input(project, monkeypatch, line):
    project.put("a.mask", "one")
    monkeypatch.chdir(project.folder)
    query = "QUERY = \"from 'a.mask'\"\ndef query(text): pass\n" if "query" in line else ""
    found = Watched(project, f"{IN_C}\n{query}def f(x):\n    {line}\n")
    assert found.names == ["cwd:a.mask"]
    assert found.changed() is None
    project.put("a.mask", "two")
    assert found.changed() == "cwd:a.mask"


@pytest.mark.parametrize("line", ["open('out.txt', 'wb').close()", "'out.txt, or another sentence.'"])
def test_what_is_only_named_in_the_code_or_written_is_no_input(project, monkeypatch, line):
    project.put("out.txt", "of an earlier run")
    monkeypatch.chdir(project.folder)
    assert Watched(project, f"def f(x):\n    {line}\n").names == []


@pytest.mark.parametrize("way", ["open('labels', 'a').close()", "os.close(os.open('labels', os.O_WRONLY))"])
def test_a_file_that_was_there_and_is_kept_counts_if_read(project, monkeypatch, way):
    """By whatever name and for whatever item: to open it so may be a lock."""
    project.put("labels", "one")
    monkeypatch.chdir(project.folder)
    found = Watched(project, f"def f(x):\n    {way}\n    pathlib.Path(f'{{HERE}}/labels').read_text()\n")
    assert "project:labels" in found.names and found.changed() is None
    project.put("labels", "two")
    assert found.changed() is not None


EDITS = {
    "a pattern": "subprocess.run('for one in *mask; do echo two >$one; done', shell=True, cwd=HERE)",
    "C code": "os.write(in_c('open', os.fsencode(p), os.O_WRONLY | os.O_TRUNC), b'two')",
}
if sys.version_info >= (3, 12):  # which tells that C code got the name first
    EDITS["its name"] = "subprocess.run(['cp', __file__, p])"


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_that_is_edited_while_c_reads_it_has_changed(project, edit):
    """Whether C code or the process wrote it, nobody can tell."""
    path = project.put("a.mask", "one")
    lines = ["import subprocess", f"p = {str(path)!r}", "read_in_c(p)", EDITS[edit]]
    found = Watched(project, IN_C + "def f(x):\n" + "".join(f"    {line}\n" for line in lines))
    assert [row["digest"] for row in found.taken if row["name"] == str(path)] == [CHANGED]
