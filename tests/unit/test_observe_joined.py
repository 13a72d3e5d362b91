"""What workers observed, put together: each tells of an input once, and the parent looks after it."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation.inputs import ABSENT, CHANGED, Input, Roots, still_true
from prepcache.keys.observation.observer import Observer
from support.observing import HERE, told_by_child
from support.projects import Project, project_fixture  # noqa: F401

READING = HERE + "def f(x): return (HERE / x).read_text()"


def observing(project: Project, source: str = READING) -> tuple[Observer, Callable[[Any], Any], Any]:
    """An observer, a call that it watches, and the recipe."""
    project.write(prep=source)
    made = project.recipe()
    memo = StatCache(project.folder.parent / "memo", window_ns=lambda _: 0)
    observer = Observer(made, stat_cache=memo)

    def call(item: Any) -> Any:
        with observer.watching():
            return made.preprocess(item)  # type: ignore[misc]

    return observer, call, made


def digests(observer: Observer) -> dict[str, str]:
    return {row["name"]: row["digest"] for row in observer.taken()}


def test_each_input_is_told_once_however_often_it_is_asked(project: Project) -> None:
    observer, call, made = observing(project)
    joined, told = Observer(made), 0
    for number in range(60):
        project.put(f"{number}.txt", "mask")
        call(f"{number}.txt")
        call("0.txt")
        news = observer.news()
        told += len(news)
        joined.add(news)
    assert told == 60 and joined.taken() == observer.taken()
    assert still_true(joined.taken(), roots=Roots.of(made)) is None


def test_what_two_processes_saw_differently_is_never_true(project: Project) -> None:
    one = Input("file", ABSENT, "project:v.txt")
    joined, _, _ = observing(project)
    joined.add([one, pickle.loads(pickle.dumps(one))])
    assert joined.taken() == [{"kind": "file", "name": "project:v.txt", "digest": ABSENT}]
    for seen in (one._replace(digest="2" * 64), one):
        joined.add([seen])
        assert digests(joined) == {"project:v.txt": CHANGED}


def test_a_forked_worker_tells_what_its_parent_saw_before(project: Project) -> None:
    """It may have kept it."""
    for name in "ab":
        project.put(f"{name}.txt", "one")
    observer, call, _ = observing(project)
    call("a.txt")
    told = told_by_child(lambda: (call("b.txt"), [one.name for one in observer.news()])[1])
    assert told == ["project:a.txt", "project:b.txt"]


def test_a_file_that_changes_all_the_time_is_noted_once(project: Project) -> None:
    observer, call, _ = observing(project)
    for number in range(50):
        project.put("v.txt", "x" * number)
        call("v.txt")
    assert [one.digest == CHANGED for one in observer.news()] == [False, True]
    assert observer.news() == []


def test_a_file_named_in_the_code_and_written_at_times_is_none(project: Project) -> None:
    """As a list of bad files, to which one item in many adds; also where another process told of it."""
    project.put("bad.txt", "of an earlier run")
    source = "def f(x):\n    if x:\n        with open('bad.txt', 'a') as file: file.write('x')\n"
    with contextlib.chdir(project.folder):
        one, call, made = observing(project, source)
        other, joined = Observer(made), Observer(made)
        call(False)
        joined.add(one.news())
        assert digests(joined).keys() == {"cwd:bad.txt"}
        with other.watching():
            made.preprocess(True)
        joined.add(other.news())
        call(True)
        assert joined.taken() == one.taken() == []
