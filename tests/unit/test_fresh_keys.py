"""Keys in fresh processes, as jobs of a user have them: what is otherwise for another job changes the key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARIABLES = """
import os
from prepcache.keys.recipes import recipe

def a(x): return "{MY_SIZE}/x".format(**os.environ)
def b(x): return "%(MY_SIZE)s" % os.environ
def c(x): return "{e[MY_SIZE]}".format(e=os.environ)
def d(x): return os.environb[b"MY_SIZE"]
def e(x): return os.getenvb(b"MY_SIZE")

for f in (a, b, c, d, e):
    print(f.__name__, recipe(f, code="function").digest)
"""


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


def test_a_variable_within_a_text_or_bytes_changes_the_key(tmp_path: Path) -> None:
    one, two = (run(tmp_path, VARIABLES, MY_SIZE=size) for size in ("1", "2"))
    other = run(tmp_path, VARIABLES, MY_SIZE="1", OTHER_SIZE="1")
    assert one == other
    assert len(one) == 5
    assert not {*one} & {*two}
