"""Where observation meets an error, what was made meanwhile is given to the job and not stored."""

from __future__ import annotations

import pytest

from support.jobs import Jobs

NEAR_THE_LIMIT = """
import contextlib

def deep(left, path):
    return deep(left - 1, path) if left else os.open(path, os.O_RDONLY)

def make(item):
    if item % 2:
        return 0
    depth, frame, path = 0, sys._getframe(), "-".join(("the", "table"))
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    for room in range(2, 40):  # the least with which the file can be opened
        with contextlib.suppress(RecursionError):
            fd = deep(sys.getrecursionlimit() - depth - room, path)
            return int(os.read(fd, 9))
    raise AssertionError("no room for the file")

def main():
    options = {"lazy": {"lazy": True}, "workers": {"num_workers": 1}}.get(sys.argv[1], {})
    ds = prepcache.CachedDataset(range(4), make, name="prep.make", **options)
    tell(ds, samples=[ds[i] for i in range(4)])

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["fill", "workers"])
def test_a_file_read_near_the_recursion_limit_is_never_stale(jobs: Jobs, how: str) -> None:
    """It is observed, or what was made of it is not stored."""
    table, script = jobs.box.folder / "the-table", jobs.write(NEAR_THE_LIMIT)
    for text in "557":
        table.write_text(text)
        assert jobs.run(script, how)["samples"] == [int(text), 0, int(text), 0]


BROKEN = """
import builtins
import contextlib
import importlib
import sqlite3

class Table:
    def __fspath__(self):
        if sys._getframe(1).f_code.co_name in ("make", "exists"):
            return "-".join(("the", "table"))
        raise ERROR("asked by another")

class Name(str):
    def strip(self, *chars):
        raise ERROR("asked by another")

def make(item):
    with contextlib.suppress(FileNotFoundError):
        if item == 1 and WAY == "opens":
            sqlite3.connect(Table()).close()
        elif item == 1 and WAY == "lists":
            here = os.getcwd()
            os.mkdir("gone")
            os.chdir("gone")
            os.rmdir("../gone")
            os.listdir()
            os.chdir(here)
        elif item == 1 and WAY == "asks":
            os.path.exists(Table())
        elif item == 1:
            importlib.import_module(Name("colorsys"))
    called(item)
    return item

ERROR = getattr(builtins, sys.argv[1])
WAY = sys.argv[3]
ds = prepcache.CachedDataset(range(3), make, untracked=("ERROR",), lazy=sys.argv[2] == "lazy")
tell(ds, samples=list(ds))
"""


@pytest.mark.parametrize(
    ("error", "how", "way"),
    [
        ("TypeError", "fill", "opens"),
        ("MemoryError", "fill", "opens"),
        ("TypeError", "lazy", "opens"),
        ("FileNotFoundError", "fill", "lists"),
        ("MemoryError", "fill", "asks"),
        ("TypeError", "fill", "imports"),
    ],
)
def test_an_item_that_was_not_observed_is_named_and_not_stored(
    jobs: Jobs, error: str, how: str, way: str
) -> None:
    """The function gets what it asked for, the job gets the sample, and others are stored."""
    script = jobs.write(BROKEN)
    for calls in ({0: 1, 1: 2, 2: 1}, {1: 2}) if how == "fill" else ({0: 1, 1: 1, 2: 1}, {1: 1}):
        running = jobs.start(script, error, how, way)
        told, said = running.process.communicate(timeout=240)
        assert '"samples": [0, 1, 2]' in told, said
        (line,) = [line for line in said.splitlines() if "could not be observed" in line]
        assert "job.make: what the function read for item 1 (1) could not be observed" in line
        assert f"({error})" in line
        assert jobs.calls() == calls
        jobs.forget()
