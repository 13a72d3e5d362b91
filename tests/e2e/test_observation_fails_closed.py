"""Where observation meets an error, what was made meanwhile is given to the job and not stored."""

import sys

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
def test_a_file_read_near_the_recursion_limit_is_never_stale(jobs, how):
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
def test_an_item_that_was_not_observed_is_named_and_not_stored(jobs, error, how, way):
    """The function gets what it asked for, the job gets the sample, and others are stored."""
    script = jobs.write(BROKEN)
    for calls in ({0: 1, 1: 2, 2: 1}, {1: 2}) if how == "fill" else ({0: 1, 1: 1, 2: 1}, {1: 1}):
        told, said = jobs.said(script, error, how, way)
        assert told["samples"] == [0, 1, 2], said
        (line,) = [line for line in said.splitlines() if "could not be observed" in line]
        assert "job.make: what the function read for item 1 (1) could not be observed" in line
        assert f"({error})" in line
        assert jobs.calls() == calls
        jobs.forget()


SCRIPT = """
import ctypes

def imread(path):
    libc = ctypes.CDLL(None)
    fd = libc.open(os.fsencode(path), os.O_RDONLY)
    buffer = ctypes.create_string_buffer(20_000)
    got = libc.read(fd, buffer, 20_000)
    libc.close(fd)
    return np.frombuffer(buffer.raw[:got], np.uint8).copy()

def by_c(i):
    return imread(f"images/{i:04d}.png")

def by_python(i):
    with open(f"images/{i:04d}.png", "rb") as file:
        return np.frombuffer(file.read(), np.uint8).copy()

def by_item(path):
    return imread(path)

def by_process(i):
    import subprocess
    return subprocess.run(["wc", "-c"], input=b"12", capture_output=True, check=True).stdout.decode()

def main():
    options = {"lazy": {"lazy": True}, "workers": {"num_workers": 2}}.get(sys.argv[2], {})
    items = [Path(f"images/{i:04d}.png") for i in range(8)] if sys.argv[1] == "by_item" else range(8)
    ds = prepcache.CachedDataset(items, globals()[sys.argv[1]], **options)
    assert len(list(ds)) == 8
    tell(ds)

if __name__ == "__main__":
    main()
"""


def said_by(jobs: Jobs, function: str, how: str = "fill") -> list[str]:
    """The lines that a job said of its function."""
    script = jobs.write(SCRIPT)
    (jobs.box.folder / "images").mkdir(exist_ok=True)
    for number in range(8):
        (jobs.box.folder / "images" / f"{number:04d}.png").write_bytes(bytes(5000 + number))
    _, said = jobs.said(script, function, how)
    return [line for line in said.splitlines() if f"job.{function}: it " in line]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 tells what is handed over")
@pytest.mark.parametrize("how", ["fill", "workers"])
def test_reads_of_a_c_library_are_said_once_with_the_remedy(jobs, how):
    (line,) = said_by(jobs, "by_c", how)
    assert "reads files that prepcache cannot observe" in line
    assert "pass their paths in the item, or change version=" in line
    assert said_by(jobs, "by_c", how) == [], "a hit reads nothing"


@pytest.mark.parametrize("function", ["by_python", "by_item"])
def test_what_was_seen_being_read_is_not_said(jobs, function):
    assert said_by(jobs, function) == []


def test_a_start_of_a_process_is_said_once_with_the_remedy(jobs):
    (line,) = said_by(jobs, "by_process")
    assert "starts processes (wc). Of the files that they read" in line
    assert "change version=" in line
