"""Observed inputs of processes that a function starts: the files that their command lines name."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.observing import Watched
from support.projects import Project, project_fixture  # noqa: F401

STARTS = {
    "a script": "subprocess.run([sys.executable, 'tool.py'])",
    "a script below the child's folder": "subprocess.run([sys.executable, 'tool.py'], cwd=HERE)",
    "an argument": "subprocess.run([sys.executable, '-c', '', 'tool.py'])",
    "an option": "subprocess.run([sys.executable, '-c', '', '--run=tool.py'])",
    "a program": "subprocess.run([str(HERE / 'tool.py')])",
    "a program on the path": "subprocess.run(['tool.py'], env={'PATH': str(HERE)})",
    "a shell": "subprocess.run(f'true && {sys.executable} tool.py >/dev/null', shell=True)",
    "os.system": "os.system(f'{sys.executable} tool.py;true')",
    "os.popen": "os.popen(f'{sys.executable} tool.py').close()",
    "posix_spawn": "os.waitpid(os.posix_spawn(sys.executable, [sys.executable, 'tool.py'], {}), 0)",
}


@pytest.mark.parametrize("how", STARTS)
def test_a_script_of_a_started_process_is_an_input(
    project: Project, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(project.folder)
    project.put("tool.py", "#!/bin/sh\n0\n").chmod(0o755)
    watched = Watched(project, f"import subprocess, sys\ndef f(x): {STARTS[how]}")
    assert {name.partition(":")[2] for name in watched.names} == {"tool.py"}
    assert watched.changed() is None
    project.put("tool.py", "#!/bin/sh\n1\n")
    assert watched.changed() is not None


def test_reads_of_a_process_are_inputs_and_writes_are_not(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(project.folder)
    project.put("read.txt", "one")
    project.put("written.txt", "old")
    (tmp_path / "item").write_text("x")
    source = (
        "import subprocess\n"
        "def f(x):\n"
        "    for _ in range(2):\n"
        "        subprocess.run(['cp', str(x), 'written.txt'])\n"
        "        (HERE / 'written.txt').read_text()\n"
        "    subprocess.run('cat read.txt >written.txt', shell=True)\n"
    )
    watched = Watched(project, source, tmp_path / "item")
    assert watched.names == ["cwd:read.txt"]
    assert watched.changed() is None
    project.put("read.txt", "two")
    assert watched.changed() == "cwd:read.txt"
