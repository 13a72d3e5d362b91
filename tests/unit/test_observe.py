"""Observed inputs: what a function opens, lists and starts by itself, seen and checked at the next look-up."""
# ruff: noqa: E501

import concurrent.futures
import shutil
import tempfile
import threading
from typing import Any

import pytest

from prepcache.fill.call import Job
from prepcache.keys.observation.inputs import ABSENT, CHANGED, still_true
from prepcache.keys.recipes import recipe
from support.observing import Observed, Watched
from support.projects import Project, project_fixture  # noqa: F401

BEFORE = """
import contextlib, ctypes, concurrent.futures, linecache, runpy, shutil, subprocess, sys, tempfile, threading
import tokenize as standard

def tried(call, *given):
    with contextlib.suppress(OSError):
        return call(*given)

def in_folder(work):
    folder = os.open(HERE / 'data', os.O_RDONLY)
    try:
        return work(folder)
    finally:
        os.close(folder)

def f(x):
"""


def source(*lines: str) -> str:
    return BEFORE + "".join(f"    {line}\n" for line in lines)


OWN = "with tempfile.TemporaryDirectory() as t: "
CAT = "subprocess.run(['cat', f'{HERE}/v.txt'], stdout=-1)"
SEEN = {
    "opened": "(HERE / 'v.txt').read_text()",
    "to read and write": "open(HERE / 'v.txt', 'r+').close()",
    "locked, then read": "open(HERE / 'v.txt', 'a').close(); (HERE / 'v.txt').read_text()",
    "not made anew, as it is there": "tried(open, HERE / 'v.txt', 'x'); (HERE / 'v.txt').read_text()",
    "in a thread": "t = threading.Thread(target=(HERE / 'v.txt').read_text); t.start(); t.join()",
    "in a pool": "with concurrent.futures.ThreadPoolExecutor(2) as pool: list(pool.map(Path.read_text, [HERE / 'v.txt']))",
    "by a module for source": "standard.open(HERE / 'v.txt').close(); linecache.getline(__file__, 1)",
    "a library loaded by its path": "tried(ctypes.CDLL, '/'.join([str(HERE), 'v.txt']))",
    "an argument of a process": CAT,
    "an option of a process": "subprocess.run(['cat', '--help', f'--x={HERE}/v.txt'], stdout=-1)",
    "a command of a shell": "subprocess.run(f'true && cat {HERE}/v.txt >/dev/null', shell=True)",
    "os.system": "os.system(f'cat {HERE}/v.txt >/dev/null')",
    "os.popen": "os.popen(f'cat {HERE}/v.txt').close()",
    "posix_spawn": "os.waitpid(os.posix_spawn('/bin/true', ['true', f'{HERE}/v.txt'], {}), 0)",
    "below the child's folder": "subprocess.run([sys.executable, '-c', '', 'v.txt'], cwd=HERE)",
    "written into a folder of its own": OWN
    + "subprocess.run(['cp', HERE / 'v.txt', f'{t}/o']); os.listdir(t); open(f'{t}/o').close()",
}


@pytest.mark.parametrize("how", SEEN)
def test_a_file_that_a_function_uses_is_seen_and_checked(project, how):
    project.put("v.txt", "#!/bin/true\n").chmod(0o755)
    watched = Watched(project, "from pathlib import Path" + source(SEEN[how]))
    # A process was given a folder to write to; temporary folders lie in the working directory or elsewhere.
    assert [name for name in watched.names if name.startswith("project:")] == ["project:v.txt"]
    assert watched.changed() is None
    project.put("v.txt", "#!/bin/true\n\n")
    assert watched.changed() == "project:v.txt"


NOT_SEEN = {
    "made where nothing was": "tried((HERE / 'v.txt').read_text); (HERE / 'v.txt').write_text('1'); (HERE / 'v.txt').read_text()",
    "made only where it is not there": "open(HERE / 'v.txt', 'x').close(); tried(open, HERE / 'v.txt', 'x'); (HERE / 'v.txt').read_text()",
    "touched where nothing was": "p = f'{HERE}/mark'; Path(p).touch(); assert os.path.exists(p)",
    "touched by a relative name": "h = os.getcwd(); os.chdir(HERE); Path('mark').touch(); assert os.path.exists('mark'); os.chdir(h)",
    "opened to be made": "p = f'{HERE}/mark'; os.close(os.open(p, os.O_CREAT | os.O_RDWR)); assert os.path.exists(p)",
    "a log": "open(HERE / 'log', 'a').close(); open(HERE / 'log', 'a').close()",
    "made under another name": "tried((HERE / 'v.txt').read_text); (HERE / 'n').write_text('1'); os.replace(HERE / 'n', HERE / 'v.txt'); (HERE / 'v.txt').read_text()",
    "temporary": "with tempfile.NamedTemporaryFile('w+') as t: open(t.name).close()",
    "a device": "open('/dev/null').close()",
    "a process": "open('/proc/self/stat').close()",
    "a descriptor": "r, w = os.pipe(); os.close(w); open(r, 'rb').close()",
    "a pipe": "os.mkfifo(HERE / 'p'); os.close(os.open(HERE / 'p', os.O_RDONLY | os.O_NONBLOCK))",
    "a command of the system": "subprocess.run('true', shell=True)",
    "the standard library": "import wave, colorsys",
}


@pytest.mark.parametrize("how", NOT_SEEN)
def test_what_says_nothing_or_is_made_is_no_input(project, how):
    watched = Watched(project, "from pathlib import Path" + source(NOT_SEEN[how]))
    assert watched.names == [] and not watched.failure


@pytest.mark.parametrize("how", ["file", "folder", "link"])
def test_the_files_of_the_item_are_no_observation(project, tmp_path, how):
    item, kept = tmp_path / "item", project.put("blobs/0a", "x")
    item.mkdir() if how == "folder" else item.symlink_to(kept) if how == "link" else item.write_text("x")
    read = "[p.read_text() for p in x.iterdir()]" if how == "folder" else "x.resolve().read_text()"
    assert Watched(project, source(read), item).names == []


def test_a_link_that_leads_to_the_item_is_an_observation(project):
    """The item's digest does not say where it leads."""
    for name in ("a", "b"):
        project.put(name, name)
    (project.folder / "current").symlink_to("a")
    watched = Watched(project, source("x.read_text(), (HERE / 'current').read_text()"), project.folder / "a")
    assert watched.names == ["project:current"]
    (project.folder / "current").unlink()
    (project.folder / "current").symlink_to("b")
    assert watched.changed() == "project:current"


LISTS = {
    "its names": "os.listdir(HERE / 'data')",
    "by a descriptor": "in_folder(os.listdir)",
    "scanned by a descriptor": "in_folder(lambda folder: os.scandir(folder).close())",
    "made if it is not there": "os.makedirs(HERE / 'data', exist_ok=True); os.listdir(HERE / 'data')",
}


@pytest.mark.parametrize("how", LISTS)
def test_the_names_in_a_listed_folder_are_an_input(project, how):
    path = project.put("data/a.txt", "")
    watched = Watched(project, source(LISTS[how]))
    assert {"kind": "folder", "name": "project:data"}.items() <= watched.taken[0].items()
    assert watched.changed() is None
    path.rename(path.with_name("b.txt"))
    assert watched.changed() == "project:data"


NOT_KEPT = {
    "os.open": "in_folder(lambda folder: os.close(os.open('v.txt', os.O_RDONLY, dir_fd=folder)))",
    "is given a relative name": "in_folder(lambda folder: open('v.txt', opener=lambda name, how: os.open(name, how, dir_fd=folder)).close())",
    "makes links": "os.symlink(HERE / 'data/v.txt', HERE / 'link')",
    "it makes links": "os.link(HERE / 'data/v.txt', HERE / 'link')",
    "renames something": "in_folder(lambda folder: os.rename(HERE / 'data/v.txt', 'out', dst_dir_fd=folder))",
    "it makes or renames": "in_folder(lambda folder: os.mkdir('out', dir_fd=folder))",
}


@pytest.mark.parametrize("why", NOT_KEPT)
def test_what_cannot_be_told_apart_is_not_stored(project, why):
    project.put("data/v.txt", "one")
    assert why in Watched(project, source(NOT_KEPT[why])).failure


def test_reads_of_a_process_are_inputs_and_writes_are_not(project, monkeypatch, tmp_path):
    monkeypatch.chdir(project.folder)
    project.put("read.txt", "old")
    (tmp_path / "item").write_text("x")
    again = "for _ in range(2): subprocess.run(['cp', str(x), 'out.txt']); (HERE / 'out.txt').read_text()"
    shell = "subprocess.run('cat read.txt >out.txt', shell=True)"
    watched = Watched(project, source(again, shell), tmp_path / "item")
    assert watched.names == ["cwd:read.txt"]
    assert watched.changed() is None
    project.put("read.txt", "two")
    assert watched.changed() == "cwd:read.txt"


REWRITES = {
    "by a process": "subprocess.run(['sed', '-i', 's/1/2/', p]); p.read_text()",
    "by a shell": "subprocess.run(f'echo >>{p}', shell=True); p.read_text()",
    "once it was read": "p.read_text(); p.write_text('2')",
    "by another name": "p.read_text(); pathlib.Path(f'{p}.new').write_text('1'); os.replace(f'{p}.new', p)",
}


@pytest.mark.parametrize("how", REWRITES)
def test_what_was_there_and_is_rewritten_has_changed(project, how):
    """What was there may be in what it is now."""
    project.put("n.txt", "1")
    watched = Watched(project, source("p = HERE / 'n.txt'", REWRITES[how]))
    assert watched.digests == {"project:n.txt": CHANGED} and watched.changed() == "project:n.txt"


BETWEEN = {
    "a file": ("(HERE / 'v.txt').read_text()", "v.txt"),
    "a listed folder": ("sorted(os.listdir(HERE / 'parts'))", "parts/b.txt"),
    "a question": ("os.path.exists(HERE / 'w.txt')", "w.txt"),
    "a question for a folder": ("os.path.isdir(f'{HERE}/w')", "w/within"),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_what_changes_between_two_items_never_matches(project, what):
    for name in ("v.txt", "parts/a.txt"):
        project.put(name, "one")
    call = Observed(project, source("return " + BETWEEN[what][0]))
    call()
    call()
    assert call.changed() is None
    path = project.put(BETWEEN[what][1], "three")
    call()
    if what == "a question for a folder":
        assert call.changed() is not None
        shutil.rmtree(path.parent)
        assert call.changed() is not None
    else:
        assert [row["digest"] for row in call.observer.taken()] == [CHANGED]


def test_a_file_that_was_replaced_and_restored_never_matches(project):
    """A link that leads back where it led at first: only the second opening tells."""
    link = project.folder / "v.txt"
    for name in ("one", "two"):
        project.put(f"{name}.txt", name)
    call = Observed(project, source("return (HERE / 'v.txt').read_text()"))
    for target in ("one.txt", "two.txt", "one.txt"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        call()
    assert [row["digest"] for row in call.observer.taken()] == [CHANGED]


def test_a_known_file_changed_while_it_is_read_never_matches(project):
    """It was opened as an earlier item had found it."""
    path = project.put("v.txt", "one")
    call = Observed(project, "def f(x):\n    with open(HERE / 'v.txt') as file: x(); return file.read()")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread works for no function
        for change in (int, lambda: pool.submit(path.write_text, "two").result()):
            call(change)
    assert call.digests == {"project:v.txt": CHANGED}


@pytest.mark.parametrize("look", ["os.listdir(HERE / 'data')", "os.path.exists(HERE / 'data/b.txt')"])
def test_what_items_called_together_see_must_be_alike(project, look):
    """A file is there for one of them, and gone again for the next."""
    path = project.put("data/a.txt", "a").with_name("b.txt")
    call = Observed(project, f"def f(x, step):\n    step(x)\n    return {look}")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread works for no function
        steps = [int, path.touch, path.unlink]
        config = {"step": lambda item: pool.submit(steps[item]).result()}
        assert call.recipe.preprocess is not None
        job = Job(call.recipe.preprocess, config, observer=call.observer)
        first, second, third = [part.samples[0] for some in job.made(enumerate(range(3))) for part in some]
    assert first == third != second
    assert [row["digest"] for row in call.observer.taken()] == [CHANGED]


@pytest.mark.parametrize("is_own", [False, True])
def test_what_other_threads_open_meanwhile_is_not_seen(project, is_own):
    """A thread of the job's, or a data set that is opened side by side."""
    path = project.put("other.txt", "one")
    call = Observed(project, source("return x()"))
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        go.wait(60)
        recipe(call.recipe.preprocess, config={"path": path}) if is_own else path.read_text()
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    path.read_text()
    call(lambda: (go.set(), done.wait(60)))
    path.read_text()
    thread.join()
    assert call.observer.taken() == []


def test_what_cannot_be_told_counts_as_changed():
    rows: list[dict[str, Any]] = [
        {"kind": "file", "name": "project:v.txt", "digest": "0" * 64},
        {"kind": "clock", "name": "/etc/hostname", "digest": "0" * 64},
        {"kind": "file", "name": "nowhere:v.txt", "digest": ABSENT},
    ]
    assert [still_true([row]) for row in rows] == [(row["name"], "changed") for row in rows]


@pytest.mark.parametrize(
    ("before", "then"), [("exists()", "exists()"), ("exists()", "write_text('new')"), ("suffix", "exists()")]
)
def test_what_was_there_and_is_moved_is_an_input(project, before, then):
    project.put("in.txt", "one")
    lines = ["path = HERE / 'in.txt'", f"path.{before}", "path.rename(HERE / 'moved.txt')", f"path.{then}"]
    source = "def f(x):\n" + "".join(f"    {line}\n" for line in lines)
    watched = Watched(project, source + "    return (HERE / 'moved.txt').read_text()\n")
    assert "project:moved.txt" in watched.names


def test_a_file_in_shared_memory_is_an_input(project):
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm", suffix=".json") as file:
        watched = Watched(project, source("open(x).close()"), file.name)
        assert watched.names == [file.name]
        file.write("2")
        file.flush()
        assert watched.changed() == file.name
