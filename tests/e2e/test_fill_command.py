"""`prepcache fill` and `prepcache plan`: the data set of a script, prepared or planned without training."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.pages import lay_sample_data
from support.programs import python
from support.sandbox import Sandbox, sandbox

SCRIPT = """
from pathlib import Path
import prepcache

def lengths(path):
    return [len(word) for word in path.read_text().split()]

def make():
    return prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), lengths, progress=False)

def nothing():
    return None

def stream():
    return prepcache.CachedIterableDataset(Path("corpus").glob("*.txt"), lengths, progress=False)

if __name__ == "__main__":
    report = make().report()
    print(report.hit, report.computed)
"""
INVOLVED = """
import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import prepcache

argparse.ArgumentParser().parse_args()

def names(folder):
    return sorted(path.name for path in folder.glob("*.txt"))

class ByPosition:
    def __init__(self):
        self.found = [str(name) for name in prepcache.cached(names, Path("corpus"))]

    def __len__(self):
        return len(self.found)

    def __getitem__(self, i):
        return Path("corpus", self.found[i.__index__()])

def lengths(path):
    return [len(word) for word in path.read_text().split()]

def make():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(prepcache.CachedDataset, ByPosition(), lengths, progress=False).result()
"""
"""Has arguments of its own, asks `cached()` for its items, names them by position, and opens in a thread."""
CHAINED = """
from pathlib import Path
import prepcache

def text(path):
    return f"{path.name}: {path.read_text()}"

def words(text):
    return text.split()

def make():
    first = prepcache.CachedDataset(sorted(Path("corpus").glob("*.txt")), text, progress=False)
    return prepcache.CachedDataset(first, words, progress=False)
"""
"""The samples of the first data set are the items of the second one."""
COUNT = 12


@pytest.fixture
def project(tmp_path: Path) -> Path:
    lay_sample_data(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "opened.py").write_text(f"{SCRIPT}\nfiles = []\nds = make()\n")
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/json.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def box(box: Sandbox) -> Sandbox:
    box.start_daemon()
    return box


def command(box: Sandbox, project: Path, *words: str) -> Any:
    return json.loads(box.python("-m", "prepcache", *words, "--json", cwd=project).stdout)


def test_shards_make_all_items_once_and_a_job_hits_them(box, project):
    told = [command(box, project, "fill", "train.py:make", "--shard", f"{part}/3") for part in range(3)]
    assert [(one["items"], one["hit"], one["computed"]) for one in told] == [(12, 4 * n, 4) for n in range(3)]
    assert box.python(project / "train.py", cwd=project).stdout.split() == [str(COUNT), "0"]


def test_a_plan_makes_nothing_and_knows_what_is_to_come(box, project):
    [told] = command(box, project, "plan", "train.py:make")
    assert (told["items"], told["hit"], told["missing"], told["seconds"]) == (COUNT, 0, COUNT, None)
    command(box, project, "fill", "train.py:make", "--shard", "0/2")
    [told] = command(box, project, "plan", "train.py:make")
    assert (told["hit"], told["missing"]) == (6, 6)
    assert told["seconds"] >= 0 and told["bytes"] > 0
    assert command(box, project, "fill", "train.py:make")["computed"] == 6


def test_a_plan_is_no_miss_and_prints_nothing_of_a_job(project):
    train = project / "train.py"
    train.write_text(train.read_text().replace("progress=False", "progress=None"))
    with sandbox() as box:
        planned = box.python("-m", "prepcache", "plan", "train.py:make", cwd=project)
        assert f"{COUNT} missing" in planned.stdout and planned.stderr == ""
        assert "no job has missed since" in box.python("-m", "prepcache", "status").stdout


def test_a_script_with_arguments_and_threads_is_filled(box, project):
    (project / "train.py").write_text(INVOLVED)
    [planned] = command(box, project, "plan", "train.py:make")
    assert (planned["name"], planned["items"], planned["missing"]) == ("train.lengths", COUNT, COUNT)
    told = command(box, project, "fill", "train.py:make", "--shard", "1/3")
    assert (told["items"], told["computed"]) == (COUNT, 4)


def test_shards_of_chained_data_sets_leave_nothing_out(box, project):
    (project / "train.py").write_text(CHAINED)
    parts = [command(box, project, "fill", "train.py:make", "--shard", f"{part}/3") for part in range(3)]
    assert sum(one["computed"] for one in parts) == 2 * COUNT
    told = command(box, project, "fill", "train.py:make")
    assert (told["items"], told["hit"], told["computed"]) == (2 * COUNT, 2 * COUNT, 0)


def test_a_global_data_set_is_planned_by_its_name(box, project):
    [told] = command(box, project, "plan", "opened.py:ds")
    assert (told["name"], told["missing"]) == ("opened.lengths", COUNT)


def test_a_lazy_data_set_is_filled(box, project):
    (project / "train.py").write_text(SCRIPT.replace("progress=False", "progress=False, lazy=True"))
    assert command(box, project, "fill", "train.py:make")["computed"] == COUNT


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("fill", "train.py"), "write FILE:DATASET"),
        (("fill", "no.py:make"), "write FILE:DATASET"),
        (("fill", "train.py:nobody"), "train.py defines no 'nobody'"),
        (("fill", "train.py:nothing"), "opened no CachedDataset"),
        (("fill", "train.py:stream"), "opened no CachedDataset"),
        (("plan", "train.py:lengths"), "lengths opened no CachedDataset: give a function without arguments"),
        (("plan", "opened.py:files"), "files opened no CachedDataset"),
        (("fill", "steps/json.py:make"), "a module named json is already loaded"),
        (("fill", "train.py:make", "--shard", "3/3"), "from 0 to N - 1"),
    ],
)
def test_a_fill_that_cannot_be_says_what_to_write(words, text, project):
    with sandbox() as box:
        done = python("-m", "prepcache", *words, code=2, cwd=project, env=box.environ_of())
    assert text in " ".join(done.stderr.replace("│", " ").split())
