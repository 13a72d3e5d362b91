"""Keys in fresh processes, as jobs of a user have them: what is otherwise for another job changes the key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(folder: Path, text: str, **variables: str) -> list[str]:
    """The lines that a script in a checkout prints."""
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").touch()
    (folder / "job.py").write_text(text)
    command = [sys.executable, "-W", "error", "job.py"]
    env = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FOLDERS = """
import json, os, sys
from pathlib import Path
from prepcache.keys.observation.inputs import still_true
from prepcache.keys.observation.inputs import Roots
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe

HERE = Path(__file__).parent
def a(x): return os.path.exists(HERE / "flags")
def b(x): return os.path.isdir("flags")

for f in (a, b):
    found = recipe(f)
    rows = Path(f"../{f.__name__}.json")
    if not rows.exists():
        observer = Observer(found)
        with observer.watching():
            f(0)
        rows.write_text(json.dumps(observer.taken()))
    print(still_true(json.loads(rows.read_text()), roots=Roots.of(found)))
"""


def test_a_folder_that_was_there_counts_in_each_checkout(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / name / "flags").mkdir()
        assert run(tmp_path / name, FOLDERS) == ["None", "None"]
    assert run(tmp_path / "three", FOLDERS) == ["project:flags/", "cwd:flags/"]
    (tmp_path / "one" / "flags").rmdir()
    assert run(tmp_path / "one", FOLDERS) == ["project:flags/", "cwd:flags/"]
    (tmp_path / "one" / "flags").touch()
    assert run(tmp_path / "one", FOLDERS) == ["project:flags/", "cwd:flags/"]
