"""Observed inputs and what the function made: folders of its own, and what processes write into them."""
# ruff: noqa: E501

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

IMPORTS = "import shutil, subprocess, tempfile\n"
CONVERTS = {
    "into a folder": "subprocess.run(['cp', HERE / 'v.txt', f'{t}/o'])",
    "by a shell": "os.system(f'cp {HERE}/v.txt {t}/o')",
    "under a name that it chose itself": "subprocess.run(['cp', HERE / 'v.txt', t]); os.rename(f'{t}/v.txt', f'{t}/o')",
    "into a folder below": "os.mkdir(f'{t}/d'); subprocess.run(['cp', HERE / 'v.txt', f'{t}/d/o']); t += '/d'",
    "into a folder that gets another name": "os.mkdir(HERE / 'd'); subprocess.run(['cp', HERE / 'v.txt', HERE / 'd/o']); t = HERE / 'e'; os.rename(HERE / 'd', t)",
}


@pytest.mark.parametrize("how", CONVERTS)
def test_writes_into_the_functions_own_folder_are_no_inputs(project: Project, how: str) -> None:
    """As ffmpeg does, into a temporary folder that is gone when the sample is made."""
    project.put("v.txt", "one")
    source = f"def f(x):\n    with tempfile.TemporaryDirectory() as t:\n        {CONVERTS[how]}\n"
    watched = Watched(
        project, IMPORTS + source + "        os.listdir(t)\n        return pathlib.Path(t, 'o').read_text()"
    )
    assert [name for name in watched.names if not name.startswith("cwd:")] == ["project:v.txt"]
    assert watched.changed() is None
    project.put("v.txt", "two")
    assert watched.changed() == "project:v.txt"


def test_what_a_process_writes_under_a_given_name_is_no_input(project: Project) -> None:
    project.put("v.txt", "one")
    source = "def f(x):\n    o = tempfile.mktemp()\n    subprocess.run(['cp', HERE / 'v.txt', o])\n    pathlib.Path(o).read_text()\n"
    watched = Watched(project, IMPORTS + source + "    os.unlink(o)")
    assert watched.names == ["project:v.txt"]


IN_OWN = "def f(x):\n    with tempfile.TemporaryDirectory() as t:\n        {0}\n        pathlib.Path(t, 'o').read_text()"


def test_the_target_of_a_link_in_an_own_folder_is_an_input(project: Project) -> None:
    project.put("v.txt", "one")
    watched = Watched(project, IMPORTS + IN_OWN.format("os.symlink(HERE / 'v.txt', f'{t}/o')"))
    assert watched.names == ["project:v.txt"]
    assert watched.changed() is None
    project.put("v.txt", "two")
    assert watched.changed() == "project:v.txt"


@pytest.mark.parametrize("link", ["os.symlink(HERE, f'{t}/d'); t += '/d'", "os.link(HERE / 'o', f'{t}/o')"])
def test_what_is_made_through_a_link_to_a_folder_is_not_kept(project: Project, link: str) -> None:
    project.put("o", "one")
    assert "links to" in Watched(project, IMPORTS + IN_OWN.format(link)).failure


def test_a_link_to_what_the_function_made_is_no_input(project: Project) -> None:
    makes = "(p := pathlib.Path(t, 'p')).write_text('made'); os.link(p, f'{t}/o')"
    watched = Watched(project, IMPORTS + IN_OWN.format(makes))
    assert watched.names == [] and not watched.failure


@pytest.mark.parametrize(
    "make", ["os.makedirs(HERE / 'd', exist_ok=True)", "(HERE / 'd').mkdir(exist_ok=True)"]
)
def test_an_existing_folder_that_is_listed_is_an_input(project: Project, make: str) -> None:
    project.put("d/a.txt", "one")
    watched = Watched(project, f"def f(x):\n    {make}\n    return os.listdir(HERE / 'd')")
    assert watched.changed() is None
    project.put("d/b.txt", "one")
    assert watched.changed() == "project:d"


NAMES = {
    "an argument": "subprocess.run(['cat', f'{DATA}/v.txt'], stdout=-1)",
    "an option": "subprocess.run(['cat', '--help', f'--x={DATA}/v.txt'], stdout=-1)",
    "a shell": "subprocess.run(f'cat {DATA}/v.txt >/dev/null', shell=True)",
}


@pytest.mark.parametrize("how", NAMES)
def test_a_file_on_a_process_command_line_is_an_input(project: Project, tmp_path: Path, how: str) -> None:
    """Not only what lies below the checkout: data mostly lie elsewhere."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("v.txt", "v.py"):
        (data / name).write_text("0")
    watched = Watched(project, f"import subprocess, sys\nDATA = {str(data)!r}\ndef f(x): {NAMES[how]}")
    assert {os.path.splitext(name)[0] for name in watched.names} == {f"{data}/v"}
    assert watched.changed() is None
    for name in ("v.txt", "v.py"):
        (data / name).write_text("1")
    assert watched.changed() is not None


def test_the_commands_of_the_system_are_no_input(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(project, "import subprocess\ndef f(x): subprocess.run('true', shell=True)").names == []
    project.put("bin/tool", "#!/bin/sh\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project.folder}/bin", prepend=os.pathsep)
    assert Watched(project, "import subprocess\ndef f(x): subprocess.run('tool')").names == [
        "project:bin/tool"
    ]


READS = {
    "by its path": "pathlib.Path(__file__).read_text()",
    "of another module": "(HERE / 'helper.py').read_text()",
    "by the name that a module keeps": "pathlib.Path(helper.__file__).read_text()",
    "to be run": "__import__('runpy').run_path(helper.__file__)",
}


@pytest.mark.parametrize("how", READS)
def test_a_module_read_as_text_is_an_input(project: Project, how: str) -> None:
    def put(unused: str) -> None:
        project.put("helper.py", f"K = {unused}\ndef g(x): return x")

    put("1")
    source = f"import helper, warnings\nK = 1\ndef f(x):\n    helper.g(x)\n    warnings.warn('w')\n    return {READS[how]}"
    with pytest.warns(UserWarning):
        watched = Watched(project, source, code="function")
    read = "prep" if how == "by its path" else "helper"
    assert f"project:{read}.py" in watched.names
    with pytest.warns(UserWarning):
        assert Watched(project, source).names == [], "whole files count already"
