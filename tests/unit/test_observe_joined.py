"""What workers observed, put together: each tells of an input once, and the parent looks after it."""

from __future__ import annotations

import contextlib
import pickle

import pytest

from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation.inputs import ABSENT, CHANGED, Input, Roots, still_true
from prepcache.keys.observation.observer import Observer
from support.observing import Observed, told_by_child
from support.projects import Project, project_fixture  # noqa: F401

READING = "def f(x): return (HERE / x).read_text()"


@pytest.fixture(name="call")
def call_fixture(project: Project) -> Observed:
    memo = StatCache(project.folder.parent / "memo", window_ns=lambda _: 0)
    return Observed(project, READING, stat_cache=memo)


def test_each_input_is_told_once_however_often_it_is_asked(project: Project, call: Observed) -> None:
    joined, told = Observer(call.recipe), 0
    for number in range(60):
        project.put(f"{number}.txt", "mask")
        call(f"{number}.txt")
        call("0.txt")
        news = call.observer.news()
        told += len(news)
        joined.add(news)
    assert told == 60 and joined.taken() == call.observer.taken()
    assert still_true(joined.taken(), roots=Roots.of(call.recipe)) is None


def test_what_two_processes_saw_differently_is_never_true(call: Observed) -> None:
    one = Input("file", ABSENT, "project:v.txt")
    joined = call.observer
    joined.add([one, pickle.loads(pickle.dumps(one))])
    assert joined.taken() == [{"kind": "file", "name": "project:v.txt", "digest": ABSENT}]
    for seen in (one._replace(digest="2" * 64), one):
        joined.add([seen])
        assert call.digests == {"project:v.txt": CHANGED}


def test_inputs_may_be_told_while_others_are_taken(call: Observed) -> None:
    """Threads make items while one of them commits."""

    class Slow(str):
        __slots__ = ()

        def __hash__(self) -> int:
            call.observer.add([Input("file", ABSENT, f"project:{len(told)}.txt")])
            told.append(self)
            return str.__hash__(self)

    told: list[str] = []
    asked = Input("file", ABSENT, "project:v.txt", Slow("/v.txt"), is_read=False)
    call.observer.add([asked, asked._replace(name="project:w.txt")])
    assert {"project:v.txt", "project:w.txt"} <= call.digests.keys() and told


def test_a_forked_worker_tells_what_its_parent_saw_before(project: Project, call: Observed) -> None:
    """It may have kept it."""
    for name in "ab":
        project.put(f"{name}.txt", "one")
    call("a.txt")
    told = told_by_child(lambda: (call("b.txt"), [one.name for one in call.observer.news()])[1])
    assert told == ["project:a.txt", "project:b.txt"]


def test_a_file_that_changes_all_the_time_is_noted_once(project: Project, call: Observed) -> None:
    for number in range(50):
        project.put("v.txt", "x" * number)
        call("v.txt")
    assert [one.digest == CHANGED for one in call.observer.news()] == [False, True]
    assert call.observer.news() == []


def test_a_file_named_in_the_code_and_written_at_times_is_none(project: Project) -> None:
    """As a list of bad files, to which one item in many adds; also where another process told of it."""
    project.put("bad.txt", "of an earlier run")
    source = "def f(x):\n    if x:\n        with open('bad.txt', 'a') as file: file.write('x')\n"
    with contextlib.chdir(project.folder):
        one, other = Observed(project, source), Observed(project, source)
        joined = Observer(one.recipe)
        one(False)
        joined.add(one.observer.news())
        assert [row["name"] for row in joined.taken()] == ["cwd:bad.txt"]
        other(True)
        joined.add(other.observer.news())
        one(True)
        assert joined.taken() == one.observer.taken() == []
