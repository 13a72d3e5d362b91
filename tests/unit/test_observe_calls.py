"""What is opened in C under paths that the function hands to libraries, and what stands beside it."""

import sys
import types
from collections.abc import Iterator

import pytest

from prepcache.keys.observation import calls
from support.observing import HERE, Observed, Watched
from support.programs import python
from support.projects import Project, project_fixture  # noqa: F401

monitored = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.11 has no sys.monitoring")

LIBRARY = """
import contextlib, ctypes, dataclasses, functools, os

libc = ctypes.CDLL(None)

def read(path, *rest, **named):
    fd = libc.open(os.fsencode(path), os.O_RDONLY)
    assert fd >= 0
    os.close(fd)
    return path

def write(path):
    fd = libc.open(os.fsencode(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, b"written")
    os.close(fd)

def make(path):
    write(path + ".new")
    assert not libc.rename(os.fsencode(path + ".new"), os.fsencode(path))

def wraps(function):
    @functools.wraps(function)
    def wrapped(*args, **named): return function(*args, **named)
    return wrapped

class Reader:
    def __init__(self, path): read(path)

class ReaderByNew:
    def __new__(cls, path): read(path)

@dataclasses.dataclass
class Record:
    path: str
    def __post_init__(self): read(self.path)

class Meta(type):
    def __call__(cls, path): read(path)

class ReaderByMeta(metaclass=Meta): pass

class Unnamed:
    __module__ = "builtins"
    def __init__(self, path): read(path)

class Methods:
    @classmethod
    def of_class(cls, path): read(path)
    def read(self, path): read(path)
    def __call__(self, path): read(path)

wrapped = wraps(read)
partial = functools.partial(read)
context = contextlib.contextmanager(wraps(lambda path: (yield read(path))))
"""
LINES = """
import contextlib, dataclasses, functools, logging, re
from pathlib import Path

def own(path): return path

class Own:
    def __init__(self, path): self.path = path
    def __call__(self, path): return path
    def method(self, path): return path

class Nothing:
    def __new__(cls, *args): return super().__new__(cls)

@dataclasses.dataclass
class Record:
    path: str

@contextlib.contextmanager
def own_context(path): yield path

def f(x):
    path = f"{HERE}/a.mask"
"""


@pytest.fixture(name="library", scope="module")
def library_fixture() -> Iterator[types.ModuleType]:
    library = types.ModuleType("library_in_c")
    library.__file__ = "/of/site-packages/library_in_c.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, library.__name__, library)
        exec(compile(LIBRARY, library.__file__, "exec"), library.__dict__)
        yield library


def source(*lines: str) -> str:
    return LINES + "".join(f"    {line}\n" for line in lines)


def watched(project: Project, library: types.ModuleType, *lines: str) -> Watched:
    """A function of these lines, run once; what it listed does not count here."""
    found = Watched(project, source(*lines), library)
    found.taken = [row for row in found.taken if row["kind"] != "folder"]
    return found


@monitored
@pytest.mark.parametrize(
    "path",
    [
        "f'{HERE}/a.mask'",
        "os.fspath(HERE) + '/' + 'a.mask'",
        "os.fsencode(f'{HERE}/a.mask')",
        "[entry.path for entry in os.scandir(HERE) if entry.name == 'a.mask'][0]",
        "[entry for entry in os.scandir(HERE) if entry.name == 'a.mask'][0]",
    ],
)
def test_a_file_whose_path_goes_to_a_library_counts(project, library, path):
    project.put("a.mask", "one")
    found = watched(project, library, f"x.read({path})")
    assert found.names == ["project:a.mask"]
    assert found.changed() is None
    project.put("a.mask", "two")
    assert found.changed() == "project:a.mask"


OPENS = [
    "x.read", "x.libc.open", "x.Reader", "x.ReaderByNew", "x.ReaderByMeta", "x.Unnamed", "x.Record",
    "x.Methods.of_class", "x.Methods().read", "x.Methods()", "type('Of', (x.Reader,), {})", "x.wrapped",
    "x.partial", "x.context", "x.wraps(own)", "x.wraps(os.path.basename)", "safetensors.safe_open",
    "ctypes.CDLL",
]  # fmt: skip
OPENS_NOTHING = [
    "len", "str", "os.path.basename", "'path'.endswith", "re.match", "Path", "logging.getLogger().debug",
    "own", "Own", "Own('path')", "lambda it: it", "Nothing", "Record", "ValueError", "own_context",
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "answer"), [*((f, False) for f in OPENS), *((f, True) for f in OPENS_NOTHING)]
)
def test_what_is_called_may_open_a_file_of_which_nothing_tells(project, library, function, answer):
    """So does what a library defines, or is in other languages; not the standard library nor the job."""
    project.write(prep=HERE + source("import ctypes, safetensors", f"return {function}"))
    assert calls.may_open(project.load().f(library)) is not answer


@monitored
@pytest.mark.parametrize("write", ["x.write(path)", "x.make(path)"])
@pytest.mark.parametrize("again", ["pass", "os.access(path, os.F_OK) and x.read(path)"])
def test_what_a_library_writes_where_nothing_was_is_no_input(project, library, write, again):
    call = Observed(project, source(write, again))
    for _ in range(2):
        call(library)
        assert call.changed() is None and call.digests == {}


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


@monitored
@pytest.mark.parametrize("other", BESIDES)
def test_it_stands_beside(tmp_path, other):
    before, script = BESIDES[other]
    path = tmp_path / "script.py"
    path.write_text(BESIDE.format(before=before, script=script))
    assert not python(path).stderr
