"""Observed inputs that are opened in C, under paths that the function builds."""

from __future__ import annotations

import _thread
import os
import pickle
import posixpath
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pytest

from prepcache.keys.inputs import still_true
from prepcache.keys.observe import Observer
from prepcache.keys.recipes import Recipe
from prepcache.keys.roots import Roots
from support.projects import Project, project_fixture  # noqa: F401
from support.watching import HERE, IN_C, Watched

BEFORE = (
    IN_C
    + """
import glob, shutil

def look(path):
    os.close(os.open(path, os.O_RDONLY))

def make_in_c(path):
    fd = libc.open(os.fsencode(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, b"made")
    os.close(fd)

def f(x):
"""
)
WAYS = {
    "os.path.join": "os.path.join(os.path.dirname(__file__), 'a.mask')",
    "a name of it": "joined(os.path.dirname(__file__), 'a.mask')",
    "bytes": "joined(os.fsencode(os.path.dirname(__file__)), b'a.mask')",
    "str of a path": "str(HERE / 'a.mask')",
    "fspath of a path": "os.fspath(HERE / 'a.mask')",
    "a path": "HERE / 'a.mask'",
    "a suffix": "(HERE / 'a.png').with_suffix('.mask')",
    "an f-string of a path": "f\"{HERE / 'a.mask'}\"",
    "glob": "glob.glob(f'{HERE}/*.mask')[0]",
    "glob of a path": "next(HERE.glob('*.mask'))",
    "in a thread": "in_thread(lambda: joined(os.path.dirname(__file__), 'a.mask'))",
}
THREAD = """
import threading
def in_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]
"""


def watched(project: Project, *lines: str, item: Path | None = None) -> Watched:
    """A function of these lines, run once; what it listed does not count here."""
    source = THREAD + BEFORE + "".join(f"    {line}\n" for line in lines)
    found = Watched(project, source, item)
    found.taken = [row for row in found.taken if row["kind"] != "folder"]
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_is_opened_in_c_under_a_path_that_was_built_is_seen_and_checked(
    project: Project, way: str
) -> None:
    project.put("a.mask", "one")
    found = watched(project, f"read_in_c({WAYS[way]})")
    assert found.names == ["project:a.mask"]
    assert found.changed() is None
    project.put("a.mask", "two")
    assert found.changed() == "project:a.mask"


@pytest.mark.parametrize("mask", ["x.with_suffix('.mask')", "joined(os.path.dirname(x), x.stem + '.mask')"])
def test_a_mask_beside_its_image_counts_and_the_image_by_its_item(project: Project, mask: str) -> None:
    project.put("a.mask", "one")
    image = project.put("a.png", "image")
    found = watched(project, "read_in_c(x)", "str(x)", f"read_in_c({mask})", item=image)
    assert found.names == ["project:a.mask"]


def test_what_is_no_file_is_no_input(project: Project) -> None:
    (project.folder / "folder").mkdir()
    assert watched(project, "str(HERE / 'folder')", "str(HERE / 'absent')", "joined('', '')").names == []


def test_what_a_library_joins_is_no_input(project: Project) -> None:
    project.put("tool", "#!/bin/sh\n").chmod(0o755)
    assert watched(project, "assert shutil.which('tool', path=f'{HERE}')").names == []


@pytest.mark.parametrize("write", ["write_in_c(path)", "open(path, 'wb').close()", "os.unlink(path)"])
@pytest.mark.parametrize("again", ["pass", "str(HERE / 'out.txt')", "os.path.exists(path) and look(path)"])
def test_what_the_function_writes_there_is_no_input(project: Project, write: str, again: str) -> None:
    project.put("out.txt", "of an earlier run")
    assert watched(project, "path = joined(f'{HERE}', 'out.txt')", write, again).names == []


def test_what_is_seen_being_read_there_and_then_changes_is_never_true_again(project: Project) -> None:
    project.put("a.txt", "one")
    found = watched(
        project, "path = joined(f'{HERE}', 'a.txt')", "look(path)", "write_in_c(path)"
    )  # fmt: skip
    assert found.changed() == "project:a.txt"
    project.put("a.txt", "one")
    assert found.changed() == "project:a.txt"


def test_what_counts_in_a_recipe_is_not_changed_by_watching(tmp_path: Path) -> None:
    """In a process of its own: here something was watched before."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from os.path import join\n"
        "from pathlib import PurePath\n"
        "from prepcache.keys.observe import Observer\n"
        "from prepcache.keys.recipes import recipe\n"
        "text, before = PurePath.__str__, PurePath.__str__.__code__\n"
        "def f(x): return join('a', x), os.path.join('b', x), text(PurePath(x))\n"
        "first, narrow = recipe(f), recipe(f, code='function')\n"
        "observer = Observer(first)\n"
        "assert PurePath.__str__.__code__ is not before\n"
        "with observer.watching(): f('x')\n"
        "assert recipe(f).digest == first.digest\n"
        "assert recipe(f, code='function').digest == narrow.digest\n"
    )
    subprocess.run([sys.executable, script], check=True)


def test_the_functions_stay_the_objects_that_they_were(project: Project) -> None:
    project.put("a.mask", "one")
    watched(project, "read_in_c(joined(f'{HERE}', 'a.mask'))")
    assert pickle.loads(pickle.dumps(posixpath.join)) is posixpath.join is os.path.join
    assert posixpath.join("a", "b", "c") == "a/b/c" and posixpath.join("a", "/b") == "/b"
    assert str(PurePath("a", "b")) == os.fspath(PurePath("a/b")) == "a/b"
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        posixpath.join()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"join\(\) argument must be str, bytes, or os.PathLike object"):
        posixpath.join("a", 3)  # type: ignore[call-overload]


def made(project: Project, *lines: str) -> tuple[Recipe, Observer, Callable[[], None]]:
    """A function of these lines; its recipe, its observer, and what calls it under that."""
    project.write(prep=HERE + BEFORE + "".join(f"    {line}\n" for line in lines))
    found = project.recipe()
    observer = Observer(found)

    def call() -> None:
        assert found.preprocess is not None
        with observer.watching():
            found.preprocess(None)

    return found, observer, call


def test_a_mask_that_is_edited_between_two_items_is_never_true_again(project: Project) -> None:
    path = project.put("a.mask", "one")
    found, observer, call = made(project, "read_in_c(joined(f'{HERE}', 'a.mask'))")
    call()
    path.write_text("two")
    call()
    assert still_true(observer.taken(), roots=Roots.of(found)) == "project:a.mask"


@pytest.mark.parametrize("read", ["read_in_c(path)", "look(path)"])
@pytest.mark.parametrize(
    "edits",
    [
        "[libc.rename(os.fsencode(path + '.new'), os.fsencode(path))]",
        "[libc.rename(os.fsencode(path + '.new'), os.fsencode(path)), look(path)]",
    ],
)
def test_a_mask_that_another_process_replaces_while_an_item_is_made_is_never_true_again(
    project: Project, read: str, edits: str
) -> None:
    """Python sees nothing of it, and this process writes nothing."""
    path = project.put("a.mask", "one")
    project.put("a.mask.new", "two")
    found, observer, call = made(project, "path = f'{HERE}' + '/a.mask'", "joined(path)", read, edits)
    call()
    assert still_true(observer.taken(), roots=Roots.of(found)) == f"project:{path.name}"


def test_what_is_made_anew_and_takes_the_place_of_a_file_is_no_input(project: Project) -> None:
    project.put("out.txt", "of an earlier run")
    lines = [
        "(HERE / 'new').write_text('longer than that of an earlier run')",
        "(HERE / 'new').replace(HERE / 'out.txt')",
    ]
    assert watched(project, *lines).names == []


def test_what_is_made_elsewhere_and_read_where_it_was_moved_is_no_input(project: Project) -> None:
    project.put("out.txt", "of an earlier run")
    lines = [
        "open(f'{HERE}/new', 'w').close()",
        "os.replace(f'{HERE}/new', f'{HERE}/out.txt')",
        "look(f'{HERE}/out.txt')",
    ]
    _, observer, call = made(project, *lines)
    call()
    call()
    assert observer.taken() == []


def test_what_was_read_before_a_file_took_its_place_is_never_true_again(project: Project) -> None:
    project.put("a.txt", "one")
    lines = [
        "look(f'{HERE}/a.txt')",
        "open(f'{HERE}/new', 'w').close()",
        "os.replace(f'{HERE}/new', f'{HERE}/a.txt')",
    ]
    assert watched(project, *lines).changed() == "project:a.txt"


def test_what_is_made_and_read_anew_for_each_item_is_no_input(project: Project) -> None:
    lines = [
        "path = joined(f'{HERE}', 'scratch')",
        "make_in_c(path)",
        "read_in_c(joined(f'{HERE}', 'scratch'))",
    ]
    _, observer, call = made(project, *lines)
    call()
    call()
    assert observer.taken() == []


def test_what_is_written_in_a_later_call_only_is_no_input(project: Project) -> None:
    """As a log of warnings is."""
    log = project.put("a.log", "of an earlier run")
    lines = [
        "path = joined(f'{HERE}', 'a.log')",
        "if os.access(path + '.now', os.F_OK): open(path, 'a').close()",
    ]
    _, observer, call = made(project, *lines)
    call()
    log.with_suffix(".log.now").touch()
    call()
    assert observer.taken() == []


def test_what_a_function_keeps_of_a_file_counts_for_the_next_data_set_too(project: Project) -> None:
    path = project.put("a.mask", "one")
    kept = "\n@functools.cache\ndef mask(): read_in_c(joined(f'{HERE}', 'a.mask'))\n"
    project.write(prep=HERE + "import functools" + BEFORE + "    mask()\n" + kept)
    found = project.recipe()
    assert found.preprocess is not None
    for _ in range(2):
        observer = Observer(found)
        with observer.watching():
            found.preprocess(None)
        rows = observer.taken()
        assert [row["name"] for row in rows] == ["project:a.mask"]
    path.write_text("two")
    assert still_true(rows, roots=Roots.of(found)) == "project:a.mask"


class Started:
    """A path that says when it is joined."""

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()

    def __fspath__(self) -> str:
        self.lock.release()
        return "x"


BY_A_THREAD = """
import _thread, os
def f(x):
    before = _thread._count()
    _thread.start_new_thread(os.path.join, (x, 'x'))
    x.lock.acquire()
    while _thread._count() > before: pass
"""


def test_a_thread_that_does_nothing_else_builds_a_path(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    Watched(project, BY_A_THREAD, Started())
    assert raised == []
