"""What sees the calls of a function stands beside profilers, coverage, forks: Python >= 3.12."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.11 has no sys.monitoring")


BESIDE = """
import sys
{before}
import os, types
from pathlib import Path
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe

library = types.ModuleType("library")
exec(compile("def read(path): pass", "/of/site-packages/library.py", "exec"), library.__dict__)
folder = os.path.dirname(__file__)
Path(folder, "a.mask").touch()

def f(x):
    if x != 1:
        return next(x)
    total = 0
    for i in range(300):
        total += len(str(i))
    library.read(f"{{folder}}/a.mask")
    return total

def names(x=1):
    observer = Observer(recipe(f))
    with observer.watching():
        assert f(x) == 790
    return [row["name"].removeprefix("project:") for row in observer.taken()]

{script}
"""
COVERAGE = """
import os
os.environ["COVERAGE_CORE"] = "sysmon"
import coverage
run = coverage.Coverage(data_file=None, config_file=False)
run.start()
"""
COVERED = """
assert names() == names() == ['a.mask']
run.stop()
first = f.__code__.co_firstlineno
assert {first + 3, first + 5, first + 7} <= set(run.get_data().lines(__file__))
"""
BESIDES = {
    "nothing": ("", "assert names() == names() == ['a.mask']"),
    "cProfile": (
        "import cProfile, pstats",
        "names()\n"
        "profile = cProfile.Profile()\n"
        "assert profile.runcall(names) == ['a.mask']\n"
        "counts = {name: row[1] for (_, _, name), row in pstats.Stats(profile).stats.items()}\n"
        "assert counts['f'] == 1 and counts['read'] == 1 and counts['<built-in method builtins.len>'] >= 300",
    ),
    "coverage by sys.monitoring": (COVERAGE, COVERED),
    "who has all tool ids": (
        "for tool in range(6): sys.monitoring.use_tool_id(tool, 'x')",
        "assert names() == []",
    ),
    "a generator that was begun before": (
        "",
        "def each():\n"
        "    while True: library.read(f'{folder}/a.mask'); yield 790\n"
        "found = each()\n"
        "next(found)\n"
        "assert names(found) == ['a.mask']",
    ),
    "items of one fill": (
        "",
        "def g(x):\n"
        "    for one in x: library.read(one)\n"
        "observer = Observer(recipe(g))\n"
        "with observer.filling():\n"
        "    for x in ([1] * 300, [f'{folder}/a.mask']):\n"
        "        with observer.watching(): g(x)\n"
        "        assert sys.monitoring.get_tool(4) == 'prepcache'\n"
        "assert sys.monitoring.get_tool(4) is None\n"
        "assert [row['name'] for row in observer.taken()] == ['project:a.mask']",
    ),
    "forks": (
        "",
        "assert names() == ['a.mask']\n"
        "if (child := os.fork()) == 0:\n"
        "    os._exit(0 if names() == ['a.mask'] else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0",
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor",
        "with ThreadPoolExecutor(4) as pool:\n"
        "    assert list(pool.map(lambda _: names(), range(40))) == [['a.mask']] * 40",
    ),
    "the interpreter's end": (
        "",
        "names()\n"
        "class Last:\n"
        "    def __del__(self, read=library.read): read('a.mask'), read(3)\n"
        "sys.last = library.last = Last()",
    ),
}


@pytest.mark.parametrize("other", BESIDES)
def test_it_stands_beside(tmp_path: Path, other: str) -> None:
    before, script = BESIDES[other]
    path = tmp_path / "script.py"
    path.write_text(BESIDE.format(before=before, script=script))
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, path], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
