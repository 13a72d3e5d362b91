"""Observed inputs that are only asked for: a file that may be there, beside the item."""

import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prepcache.fill.call import Job
from prepcache.keys.observation.inputs import ABSENT, CHANGED, FOLDER
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe
from support.observing import IN_C, Observed, Watched, told_by_child
from support.projects import Project, project_fixture  # noqa: F401

BEFORE = (
    IN_C
    + """
import contextlib, functools, glob, shutil, subprocess, tempfile, threading
from concurrent.futures import ThreadPoolExecutor
def tried(call):
    with contextlib.suppress(OSError):
        return call()

def make_in_c(path):
    fd = in_c("open", os.fsencode(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, b"made in C")
    os.close(fd)

def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()

def in_pool(call, path):
    with ThreadPoolExecutor(1) as pool:
        return list(pool.map(call, [path]))

def f(x):
"""
)
IS_MONITORED = sys.version_info >= (3, 12)
TEXT = "f'{HERE}/a.json'"
WAYS = {
    "exists": f"os.path.exists({TEXT})",
    "bytes": f"os.path.exists(os.fsencode({TEXT}))",
    "a path": "os.path.exists(HERE / 'a.json')",
    "lexists": f"os.path.lexists({TEXT})",
    "isfile": f"os.path.isfile({TEXT})",
    "isdir": f"os.path.isdir({TEXT})",
    "getsize": f"tried(lambda: os.path.getsize({TEXT}))",
    "getmtime": f"tried(lambda: os.path.getmtime({TEXT}))",
    "exists of a path": "(HERE / 'a.json').exists()",
    "is_file of a path": "(HERE / 'a.png').with_suffix('.json').is_file()",
    "is_dir of a path": "(HERE / 'a.json').is_dir()",
    "stat of a path": "tried((HERE / 'a.json').stat)",
    "glob": f"glob.glob({TEXT})",
    "a pattern": "glob.glob(f'{HERE.parent}/{HERE.name[:-1]}?/a.json')",
    "in a thread": f"in_thread(lambda: os.path.exists({TEXT}))",
    "in a pool": f"in_pool(os.path.exists, {TEXT})",
}
if sys.version_info < (3, 12):
    # Python 3.12 lists each folder, and 3.13 asks by `os.lstat`.
    WAYS["a pattern of a path"] = "list(HERE.parent.glob(f'{HERE.name[:-1]}?/a.json'))"


ASKERS = {
    "name": "def g(path): return os.path.exists(path)",
    "text": "def g(path): return getattr(os.path, 'exists')(path)",
    "value": "ASK = {1: os.path.exists}\ndef g(path): return ASK[1](path)",
    "another function": "def ask(path): return os.path.exists(path)\ndef g(path): return ask(path)",
    "nested code": "def g(path): return [(lambda: os.path.exists(p))() for p in [path]]",
    "a class": "class G:\n    def ask(self, path): return os.path.exists(path)\ndef g(path): G().ask(path)",
    "an object": "class G:\n    ask = staticmethod(os.path.exists)\nG = G()\ndef g(path): G.ask(path)",
    "a name in a global": "ASK = 'exists'\ndef g(path): return getattr(os.path, ASK)(path)",
    "a name in a list": "ASK = ['exists']\ndef g(path): return getattr(os.path, ASK[0])(path)",
    "a computed name": "def ask(path): os.path.exists(path)\ndef g(path): globals()[f'as{\"k\"}'](path)",
    "another name": "from os.path import exists as ask\nclass G:\n    def __call__(s, p): ask(p)\ng = G()",
    "what is left out": "def ask(path): os.path.exists(path)\ndef g(path): ASK(path)\nASK = ask",
    "a pickle": "from pickle import *\nclass G: ask = staticmethod(os.path.exists)\n"
    "def g(path): loads(b'(iasker\\nG\\n.').ask(path)",
    "a registry": "import shutil\ndef is_there(p): os.path.exists(p)\ndef ask(p, *a, **k): is_there(p)\n"
    "shutil.register_archive_format('kind', ask)\ndef g(path): shutil.make_archive(path, 'kind')",
    "a namespace": "import shutil\ndef ask(p, *a, **k): os.path.exists(p)\n"
    "for one in [one for name, one in globals().items() if name == 'as' + chr(107)]:\n"
    "    shutil.register_archive_format('kin', one)\ndef g(path): shutil.make_archive(path, 'kin')",
    "a decorator": "import copy, copyreg\nclass G: pass\ndef kept(f): return copyreg.pickle(G, f) or f\n"
    "@kept\ndef ask(g): return G, (), {'x': os.path.exists(g.path)}\n"
    "def g(path):\n    made = G()\n    made.path = path\n    copy.copy(made)",
}
IMPORTS = {
    "there": "def f(x):\n    import asker\n    asker.g(f'{HERE}/a.json')\n",
    "before": "import asker\ndef f(x): asker.g(f'{HERE}/a.json')\n",
    "by an attribute": "import asker\ndef f(x): getattr(asker, chr(103))(f'{HERE}/a.json')\n",
    "by a default": "import asker\ndef f(x, g=asker.g): g(f'{HERE}/a.json')\n",
    "in a cell": "exec(compile((HERE / 'asker.py').read_text(), '/ipykernel_1/2.py', 'exec'))\n"
    "def f(x): g(f'{HERE}/a.json')\n",
}


@pytest.mark.parametrize("way", ASKERS)
@pytest.mark.parametrize("imports", IMPORTS)
def test_the_first_question_of_another_module_counts(project, way, imports):
    project.write(asker="import os\n" + ASKERS[way])
    watched = Watched(project, IMPORTS[imports], untracked=["ASK"] if way == "what is left out" else [])
    assert watched.digests["project:a.json"] == ABSENT


@pytest.mark.skipif(IS_MONITORED, reason="nothing is profiled here")
def test_nothing_is_profiled_for_what_unused_code_asks(project):
    unused = "import sys\ndef main(): files(), os.path.exists(HERE)\ndef files(): list(HERE.glob('*'))\n"
    assert Observed(project, unused + "def f(x): return sys.getprofile()")() is None
    assert project.recipe(config={"ask": [os.path.exists]}).may_ask


def test_what_a_kept_pool_asks_for_counts_for_each_data_set(project):
    pool = "@functools.cache\ndef pool(): return ThreadPoolExecutor(1)\n"
    asks = "def f(x): return pool().submit(os.path.exists, f'{HERE}/a.json').result()\n"
    call = Observed(project, BEFORE.removesuffix("def f(x):\n") + pool + asks)
    for _ in range(2):
        call.observer = Observer(call.recipe)
        call()
        assert call.digests == {"project:a.json": ABSENT}
    call.recipe.preprocess.__globals__["pool"]().shutdown()  # type: ignore[union-attr]


def test_a_profile_for_threads_is_left_in_place(project):
    """One that stands there before makes what is watched incomplete; none is taken away, or left behind."""
    before = threading.getprofile()
    watched = Watched(project, lines_of("os.path.exists('a')", "threading.setprofile(print)"))
    found = threading.getprofile()
    again = Watched(project, lines_of("os.path.exists('a')"))
    left = threading.getprofile()
    threading.setprofile(None)  # type: ignore[arg-type]
    assert before is None and found is left is print
    assert [watched.failure, again.failure] == ["", "" if IS_MONITORED else "a profiler is running"]
    assert Watched(project, lines_of("os.path.exists('a')")).failure == ""
    assert threading.getprofile() is None


def test_a_thread_that_others_start_meanwhile_is_not_profiled(project):
    """It is the job's, and would be slow for life."""
    found: list[Any] = []

    def start() -> None:
        thread = threading.Thread(target=lambda: found.append(sys.getprofile()))
        thread.start()
        thread.join()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread is there before
        Watched(project, lines_of("os.path.exists('a')", "x()"), lambda: pool.submit(start).result())
    assert found == [None]


@pytest.mark.skipif(IS_MONITORED, reason="nothing is profiled here")
def test_a_profiler_that_the_function_sets_is_left_and_said(project):
    """While it is there, and after it has ended, what the function asks for is not seen."""
    begin, end = "import sys; sys.setprofile(lambda *_: None)", "sys.setprofile(None)"
    asks = "os.path.exists('a')"
    before = sys.getprofile()
    watched = Watched(project, lines_of(begin, asks))
    found = sys.getprofile()
    sys.setprofile(before)
    ended = Watched(project, lines_of(begin, end, asks))
    left = sys.getprofile()
    sys.setprofile(before)
    assert getattr(found, "__name__", "") == "<lambda>" and left is None
    assert watched.failure == ended.failure == "it has set a profiler"


def test_nothing_is_heard_in_a_child_that_is_forked_meanwhile(project):
    def heard() -> list[bool]:
        found = [sys.getprofile(), threading.getprofile()]
        thread = threading.Thread(target=lambda: found.append(sys.getprofile()))
        thread.start()
        thread.join()
        tool = sys.monitoring.get_tool(4) if sys.version_info >= (3, 12) else None
        return [one is not None for one in (*found, tool)]

    told: list[Any] = []
    lines = lines_of("os.path.exists('a')", "x()", "os.path.exists('b')")
    watched = Watched(project, lines, lambda: told.append(told_by_child(heard)))
    assert told == [[False] * 4]
    assert [name for name in watched.names if name.startswith("cwd:")] == ["cwd:a", "cwd:b"]
    assert "by fork or spawn, and what they read is not seen: use threads or num_workers=" in watched.failure


@pytest.mark.parametrize("start", ["get_context('fork').Process", "get_context('spawn').Process", "spawn"])
def test_a_function_that_may_keep_processes_is_not_stored(project, start):
    pytest.importorskip("torch")
    text = f"torch.multiprocessing.{start}(" + ("print)" if start == "spawn" else "target=print).start()")
    observed = Observed(project, f"import torch\ndef f(x):\n    if x == 1: {text}\n    return x")
    for x, why in ((1, "it starts processes"), (2, "it may use processes that")):
        observed(x)
        assert observed.failure.startswith(why)
    with Observer(recipe(lines_of, code="function")).watching() as watch:
        lines_of()  # of another file
    assert watch.failure == ""


def test_items_after_one_that_starts_a_process_are_not_stored(project):
    observed = Observed(project, "def f(x):\n    return x if x != 1 else os.fork() or os._exit(0)")
    function: Any = observed.recipe.preprocess
    made = Job(function, {}, observer=observed.observer).made(enumerate(range(4)))
    assert [bool(part.unobserved) for parts in made for part in parts] == [True] * 4


def test_a_process_that_another_thread_has_started_may_be_used(project):
    observed = Observed(project, "def f(x):\n    return x if x != 1 else os.fork() or os._exit(0)")
    function: Any = observed.recipe.preprocess
    with observed.observer.watching(), ThreadPoolExecutor(1) as pool:
        function(1)
        pool.submit(observed, 2).result()
    assert observed.failure.startswith("it may use processes that")


def lines_of(*lines: str) -> str:
    return BEFORE + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_asked_for_is_an_input(project, way, is_there):
    path = project.put("a.json", "one") if is_there else project.folder / "a.json"
    watched = Watched(project, lines_of(WAYS[way]))
    assert list(watched.digests) == ["project:a.json"]
    assert (watched.digests["project:a.json"] == ABSENT) is not is_there
    watched.taken = [row for row in watched.taken if row["kind"] == "file"]
    assert watched.changed() is None
    path.unlink() if is_there else path.write_text("now")
    assert watched.changed() == "project:a.json"


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_that_was_asked_for_is_an_input_by_being_there(project, way):
    folder = project.folder / "a.json"
    folder.mkdir()
    watched = Watched(project, lines_of(WAYS[way]))
    watched.taken = [row for row in watched.taken if row["name"].endswith("a.json/")]
    assert watched.taken == [{"kind": "folder", "name": "project:a.json/", "digest": FOLDER}]
    (folder / "inner").touch()
    assert watched.changed() is None
    shutil.rmtree(folder)
    assert watched.changed() == "project:a.json/"
    folder.touch()
    assert watched.changed() == "project:a.json/"


@pytest.mark.parametrize("asks", [
    "str(HERE / 'a.json')", "joined(f'{HERE}', 'a.json')", "(HERE / 'a.json').resolve()",
    "shutil.which('a.json', path=f'{HERE}')", "os.makedirs(f'{HERE}/d', exist_ok=True)",
    "os.makedirs(HERE / 'there', exist_ok=True)", "(HERE / 'there').mkdir(exist_ok=True)",
    "os.path.exists(x)", "x.exists()", "(x / 'a.json').exists()", "os.path.exists('')",
    "os.path.exists(1 << 20)", "os.path.exists('/proc/0/absent')",
    "os.path.exists(os.__file__ + '.absent')",
])  # fmt: skip
def test_what_asks_for_nothing_that_may_be_made_an_input_is_none(project, asks):
    """A conversion into text, what a library asks, the item, a folder to be made, names of nothing."""
    (project.folder / "there").mkdir()
    assert Watched(project, lines_of(asks), project.folder / "item").taken == []


MAKES = {
    "by Python": "pathlib.Path(p).write_text('made')",
    "in C": "make_in_c(p)",
    "under another name": "make_in_c(p + '.new'); os.replace(p + '.new', p)",
    "by a process": "subprocess.run(['cp', __file__, p])",
    "a folder": "os.makedirs(p, exist_ok=True)",
    "a folder, by its path": "pathlib.Path(p).mkdir(parents=True)",
    "a file that had another name": "os.rename(p + '.old', p)",
}
if sys.version_info < (3, 12):
    del MAKES["in C"]  # nothing tells of it: it has changed


@pytest.mark.parametrize("how", MAKES)
def test_what_the_function_makes_where_nothing_was_is_no_input(project, how):
    """It goes on being cached: neither is it told to be absent, nor to change for ever."""
    ask = "if not os.path.exists(p): " + MAKES[how]
    call = Observed(project, lines_of("p = f'{HERE}/' + x", ask, "assert os.path.exists(p)"))
    for name in "ab":
        project.put(f"{name}.old", "had")
        call(name)
    for name in "abab":
        call(name)
    assert not {ABSENT, CHANGED} & set(call.digests.values())


@pytest.mark.parametrize(
    "then", ["pass", "tried(pathlib.Path(p).read_text)", "os.path.exists(p)", "str(HERE / 'a')"]
)
@pytest.mark.parametrize("what", ["new", "new/within"])
def test_a_queried_file_that_others_make_has_changed(project, then, what):
    """What was made may be made of its absence. Python sees nothing of it, this process writes nothing."""
    project.put(what, "two")
    renames = "in_c('rename', os.fsencode(f'{HERE}/new'), os.fsencode(p))"
    call = Observed(project, lines_of("p = f'{HERE}/a'", "os.path.exists(p)", "if x: " + renames, then))
    call(True)
    assert call.digests == {"project:a": CHANGED}
    (project.folder / "a").rename(project.folder / "b")
    assert call.digests == {"project:a": CHANGED}


def test_what_the_function_removes_is_no_input(project):
    project.put("out", "of an earlier run")
    lines = ["p = HERE / 'out'", "if p.exists(): p.unlink()", "assert not p.exists()", "p.write_text('made')"]
    call = Observed(project, lines_of(*lines))
    call()
    call()
    assert call.observer.taken() == []
