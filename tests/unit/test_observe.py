"""Observed inputs: what a function opens and lists by itself, seen once and checked at the next look-up."""
# ruff: noqa: E501

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation.inputs import ABSENT, CHANGED, still_true
from prepcache.keys.observation.naming import Roots
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe
from support.observing import HERE, Watched
from support.projects import Project, project_fixture  # noqa: F401


def test_a_file_of_the_functions_own_is_seen_and_checked(project: Project) -> None:
    project.put("v.txt", "one")
    watched = Watched(project, "def f(x): return (HERE / 'v.txt').read_text()")
    assert watched.names == ["project:v.txt"]
    assert watched.changed() is None
    project.put("v.txt", "two")
    assert watched.changed() == "project:v.txt"


def test_the_files_of_the_item_are_no_observation(project: Project, tmp_path: Path) -> None:
    item = tmp_path / "item.txt"
    item.write_text("x")
    assert Watched(project, "def f(x): return x.read_text()", item).names == []


def test_what_a_linked_item_leads_to_is_no_observation(project: Project, tmp_path: Path) -> None:
    blobs = project.folder / "blobs"
    blobs.mkdir()
    (blobs / "0a").write_text("x")
    (tmp_path / "item.txt").symlink_to(blobs / "0a")
    source = "def f(x): return x.resolve().read_text()"
    assert Watched(project, source, tmp_path / "item.txt").names == []


def test_a_link_that_leads_to_the_item_is_an_observation(project: Project) -> None:
    """The item's digest does not say where it leads."""
    for name in ("a", "b"):
        project.put(name, name)
    (project.folder / "current").symlink_to("a")
    source = "def f(x): return x.read_text() + (HERE / 'current').read_text()"
    watched = Watched(project, source, project.folder / "a")
    assert watched.names == ["project:current"]
    (project.folder / "current").unlink()
    (project.folder / "current").symlink_to("b")
    assert watched.changed() == "project:current"


def test_the_files_in_a_folder_item_are_no_observation(project: Project, tmp_path: Path) -> None:
    (tmp_path / "item").mkdir()
    (tmp_path / "item" / "a.txt").write_text("x")
    assert (
        Watched(project, "def f(x): return [p.read_text() for p in x.iterdir()]", tmp_path / "item").names
        == []
    )


def test_a_file_beside_an_item_is_named_relative_to_the_root(project: Project, tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.img").write_text("x")
        (tmp_path / place / "a.json").write_text(place)
    watched = Watched(
        project,
        "def f(x): return x.with_suffix('.json').read_text()",
        tmp_path / "one" / "a.img",
        tmp_path / "one",
    )
    assert watched.names == ["items:a.json"]
    assert watched.changed() is None
    assert watched.changed(tmp_path / "two") == "items:a.json"


def test_a_file_that_was_not_there_is_an_input(project: Project) -> None:
    source = "def f(x):\n    try: return (HERE / 'v.txt').read_text()\n    except OSError: return ''"
    watched = Watched(project, source)
    assert watched.taken == [{"kind": "file", "name": "project:v.txt", "digest": ABSENT}]
    assert watched.changed() is None
    project.put("v.txt", "now")
    assert watched.changed() == "project:v.txt"


@pytest.mark.parametrize(
    "write",
    [
        "(HERE / 'v.txt').write_text('made')",
        "(HERE / 'new').write_text('made'); os.replace(HERE / 'new', HERE / 'v.txt')",
    ],
    ids=["in place", "by its name"],
)
def test_a_new_file_that_the_function_makes_is_an_output(project: Project, write: str) -> None:
    """As a cache on the disk does, `joblib.Memory` among them."""
    source = f"def f(x):\n    try: return (HERE / 'v.txt').read_text()\n    except OSError: {write}\n"
    watched = Watched(project, source + "    return f(x)")
    assert watched.names == []


def test_a_file_that_changes_during_use_never_matches_again(project: Project) -> None:
    path = project.put("v.txt", "one")
    project.write(prep=HERE + "def f(x): return (HERE / 'v.txt').read_text()")
    made = project.recipe()
    observer = Observer(made)
    with observer.watching():
        made.preprocess(0)  # type: ignore[misc]
    path.write_text("three")
    assert [row["digest"] for row in observer.taken()] == [CHANGED]
    assert still_true(observer.taken(), roots=Roots.of(made)) == "project:v.txt"


def test_a_file_that_changes_after_a_batch_fails_the_next(project: Project, tmp_path: Path) -> None:
    """Its digest is known from the batch before, and asked for again by its stamp; it is opened once."""
    path = project.put("v.txt", "one")
    project.write(prep=HERE + "def f(x): return (HERE / 'v.txt').read_text()")
    made = project.recipe()
    observer = Observer(made, stat_cache=StatCache(tmp_path / "memo", window_ns=lambda _: 0))
    with observer.watching():
        made.preprocess(0)  # type: ignore[misc]
    first, second = observer.taken(), observer.taken()
    assert first == second and still_true(first, roots=Roots.of(made)) is None
    path.write_text("three")
    assert [row["digest"] for row in observer.taken()] == [CHANGED]
    path.unlink()
    assert [row["digest"] for row in observer.taken()] == [CHANGED]


def test_a_file_that_was_replaced_and_restored_never_matches(project: Project) -> None:
    """A link that leads back where it led at first: only the second opening tells."""
    link = project.folder / "v.txt"
    project.put("one.txt", "one")
    project.put("two.txt", "two")
    project.write(prep=HERE + "def f(x): return (HERE / 'v.txt').read_text()")
    made = project.recipe()
    observer = Observer(made)
    for target in ("one.txt", "two.txt", "one.txt"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with observer.watching():
            made.preprocess(0)  # type: ignore[misc]
    assert [row["digest"] for row in observer.taken()] == [CHANGED]


def test_the_names_in_a_folder_that_is_listed_are_an_input(project: Project) -> None:
    project.put("parts/a.txt", "")
    watched = Watched(project, "def f(x): return sorted(os.listdir(HERE / 'parts'))")
    assert [(row["kind"], row["name"]) for row in watched.taken] == [("folder", "project:parts")]
    assert watched.changed() is None
    (project.folder / "parts" / "a.txt").rename(project.folder / "parts" / "b.txt")
    assert watched.changed() == "project:parts"


def test_a_folder_that_changes_during_use_never_matches_again(project: Project) -> None:
    project.put("parts/a.txt", "")
    project.write(prep=HERE + "def f(x): return sorted(os.listdir(HERE / 'parts'))")
    made = project.recipe()
    observer = Observer(made)
    with observer.watching():
        made.preprocess(0)  # type: ignore[misc]
    project.put("parts/b.txt", "")
    assert [row["digest"] for row in observer.taken()] == [CHANGED]


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    p = HERE / 's.txt'\n    p.write_text('1')\n    return p.read_text()",
        "import tempfile\ndef f(x):\n    with tempfile.NamedTemporaryFile('w+') as t:\n        t.write('a'); t.flush()\n        return pathlib.Path(t.name).read_text()",
        "def f(x): return pathlib.Path('/dev/null').read_text()",
        "def f(x): return pathlib.Path('/proc/self/stat').read_text()",
    ],
    ids=["written", "temporary", "device", "process"],
)  # fmt: skip
def test_what_is_no_input_is_not_seen(project: Project, source: str) -> None:
    assert Watched(project, source).names == []


def test_a_file_that_is_read_before_it_is_rewritten_is_an_input(project: Project) -> None:
    project.put("n.txt", "1")
    source = "def f(x):\n    p = HERE / 'n.txt'\n    n = int(p.read_text())\n    p.write_text(str(n + 1))\n    return n"
    watched = Watched(project, source)
    assert watched.names == ["project:n.txt"]
    assert watched.changed() == "project:n.txt"


def test_a_file_opened_to_read_and_write_is_an_input(project: Project) -> None:
    project.put("n.txt", "1")
    source = "def f(x):\n    with open(HERE / 'n.txt', 'r+') as file: return file.read()"
    assert Watched(project, source).names == ["project:n.txt"]


@pytest.mark.parametrize(
    "body",
    [
        "    t = threading.Thread(target=(HERE / 'v.txt').read_text)\n    t.start(); t.join()",
        "    with concurrent.futures.ThreadPoolExecutor(2) as pool:\n        list(pool.map(lambda p: p.read_text(), [HERE / 'v.txt']))",
    ],
    ids=["thread", "pool"],
)  # fmt: skip
def test_what_the_functions_threads_open_is_seen(project: Project, body: str) -> None:
    project.put("v.txt", "one")
    watched = Watched(project, f"import threading, concurrent.futures\ndef f(x):\n{body}")
    assert watched.names == ["project:v.txt"]


def test_a_thread_pool_kept_between_items_is_seen(project: Project) -> None:
    project.put("v.txt", "one")
    project.write(
        prep=HERE
        + "import concurrent.futures\ndef f(x, pool):\n    return pool.submit(HERE.joinpath('v.txt').read_text if x else int).result()"
    )
    made = project.recipe()
    observer = Observer(made)
    with ThreadPoolExecutor(1) as pool:
        for item in (0, 1):
            with observer.watching():
                made.preprocess(item, pool)  # type: ignore[misc]
    assert [row["name"] for row in observer.taken()] == ["project:v.txt"]


def test_what_other_threads_open_meanwhile_is_not_seen(project: Project) -> None:
    path = project.put("other.txt", "one")
    project.write(prep=HERE + "def f(x): return x()")
    made = project.recipe()
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        go.wait(10)
        path.read_text()
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    observer = Observer(made)
    with observer.watching():
        made.preprocess(lambda: (go.set(), done.wait(10)))  # type: ignore[misc]
    thread.join()
    assert observer.taken() == []


def test_prepcaches_own_opens_are_not_observed(project: Project) -> None:
    """A job that opens its data sets side by side: what the one is keyed by is no input of the other."""
    path = project.put("other.txt", "one")
    project.write(prep="def f(x): return x")
    made = project.recipe()
    go, done = threading.Event(), threading.Event()
    work = lambda: (go.wait(60), recipe(made.preprocess, config={"path": path}), done.set())  # noqa: E731
    thread = threading.Thread(target=work)
    thread.start()
    observer = Observer(made)
    with observer.watching():
        go.set()
        done.wait(60)
    thread.join()
    assert observer.taken() == []


def test_a_file_in_shared_memory_is_an_input(project: Project) -> None:
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm", suffix=".json") as file:
        file.write("1")
        file.flush()
        watched = Watched(project, "def f(x): return pathlib.Path(x).read_text()", file.name)
        assert watched.names == [file.name]
        file.write("2")
        file.flush()
        assert watched.changed() == file.name


def test_what_is_no_file_is_no_input_wherever_it_lies(project: Project, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.close(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK))
    source = "def f(x): os.close(os.open(x, os.O_RDONLY | os.O_NONBLOCK))"
    assert Watched(project, source, str(tmp_path / "pipe")).names == []


def test_nothing_is_seen_outside_the_watch(project: Project) -> None:
    path = project.put("v.txt", "one")
    project.write(prep=HERE + "def f(x): return x")
    observer = Observer(project.recipe())
    path.read_text()
    with observer.watching():
        pass
    path.read_text()
    assert observer.taken() == []


def test_a_relative_name_is_checked_in_the_current_directory(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "v.txt").write_text(place)
    monkeypatch.chdir(tmp_path / "one")
    watched = Watched(project, "def f(x): return pathlib.Path('v.txt').read_text()")
    assert watched.names == ["cwd:v.txt"]
    assert watched.changed() is None
    monkeypatch.chdir(tmp_path / "two")
    assert watched.changed() == "cwd:v.txt"


def test_an_absolute_name_in_the_working_directory_counts(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "v.txt").write_text("one")
    monkeypatch.chdir(tmp_path / "job")
    source = "def f(x): return pathlib.Path(os.path.abspath(x + '.txt')).read_text()"
    assert Watched(project, source, "v").names == sorted([str(tmp_path / "job" / "v.txt"), "cwd:v.txt"])


def test_an_absolute_literal_in_the_code_stays_absolute(project: Project) -> None:
    path = project.put("v.txt", "one")
    assert Watched(project, f"def f(x): return pathlib.Path({str(path)!r}).read_text()").names == [str(path)]


def test_a_copy_of_the_checkout_is_checked_against_its_own_files(tmp_path: Path) -> None:
    taken: list[dict[str, str]] = []
    for place, text in (("one", "a"), ("two", "b")):
        made = Project(tmp_path / place)
        made.put("v.txt", text)
        with made.on_path():
            watched = Watched(made, "def f(x): return (HERE / 'v.txt').read_text()")
            taken = taken or watched.taken
            answer = still_true(taken, roots=Roots.of(watched.recipe))
        assert answer == (None if place == "one" else "project:v.txt")


def test_what_cannot_be_told_counts_as_changed() -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "file", "name": "project:v.txt", "digest": "0" * 64},
        {"kind": "clock", "name": "/etc/hostname", "digest": "0" * 64},
        {"kind": "file", "name": "nowhere:v.txt", "digest": ABSENT},
    ]
    assert [still_true([row]) for row in rows] == [row["name"] for row in rows]


def test_the_hook_never_breaks_a_call(project: Project) -> None:
    source = "def f(x):\n    r, w = os.pipe()\n    os.close(w)\n    with open(r, 'rb') as p: return p.read()"
    assert Watched(project, source).names == []


def test_watches_nest(project: Project) -> None:
    project.put("v.txt", "one")
    project.write(prep=HERE + "def f(x): return (HERE / 'v.txt').read_text()")
    made = project.recipe()
    outer, inner = Observer(made), Observer(made)
    run: Callable[..., Any] = made.preprocess  # type: ignore[assignment]
    with outer.watching():
        with inner.watching():
            pass
        run(0)
    assert [len(observer.taken()) for observer in (outer, inner)] == [1, 0]


def test_a_forked_worker_observes_for_itself(project: Project) -> None:
    project.put("v.txt", "one")
    project.write(prep=HERE + "def f(x): return (HERE / 'v.txt').read_text()")
    made = project.recipe()
    observer = Observer(made)
    read_fd, write_fd = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            with observer.watching():
                made.preprocess(0)  # type: ignore[misc]
            os.write(write_fd, ",".join(row["name"] for row in observer.taken()).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as answers:
        assert answers.read() == "project:v.txt"
    os.waitpid(pid, 0)


def test_a_module_of_the_users_own_may_be_named_tokenize(project: Project) -> None:
    """What it opens counts; and what the standard library's opens, for others than who shows lines."""
    for name in ("words.py", "more.py"):
        project.put(name, "one")
    project.write(
        package____init__="",
        package__tokenize="def read(path):\n    with open(path) as file: return file.read()\n",
    )
    source = (
        "import linecache, tokenize as standard\nfrom package import tokenize\n"
        "def f(x):\n    with standard.open(HERE / 'more.py') as file:\n"
        "        return tokenize.read(HERE / 'words.py') + file.read() + linecache.getline(__file__, 1)"
    )
    watched = Watched(project, source)
    assert watched.names == ["project:more.py", "project:words.py"]
    for name in ("words.py", "more.py"):
        project.put(name, "two")
        assert watched.changed() == f"project:{name}"
        project.put(name, "one")
