"""What workers observed, put together: each tells of an input once, and the parent looks after it."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.observation.inputs import ABSENT, CHANGED, Input, Joined, still_true
from prepcache.keys.observation.naming import Roots
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


def digests(joined: Joined) -> dict[str, str]:
    return {row["name"]: row["digest"] for row in joined.rows()}


def test_each_input_is_told_once_however_often_it_is_asked(project: Project) -> None:
    observer, call, made = observing(project)
    joined, told = Joined(), 0
    for number in range(60):
        project.put(f"{number}.txt", "mask")
        call(f"{number}.txt")
        call("0.txt")
        news = observer.news()
        told += len(news)
        joined.add(news)
    assert told == 60 and joined.rows() == observer.taken()
    assert still_true(joined.rows(), roots=Roots.of(made)) is None


@pytest.mark.parametrize(
    ("source", "put"),
    [
        (HERE + "import os\ndef f(x): return sorted(os.listdir(HERE / 'parts'))", "parts/new.txt"),
        (HERE + "def f(x): return (HERE / 'there.txt').read_text()", "there.txt"),
        (
            HERE + "def f(x):\n    try:\n        return (HERE / 'absent.txt').read_text()\n"
            "    except OSError:\n        return ''",
            "absent.txt",
        ),
    ],
    ids=["folder", "file", "absent"],
)
def test_what_changes_after_it_was_told_has_changed_for_good(project: Project, source: str, put: str) -> None:
    (project.folder / "parts").mkdir()
    project.put("there.txt", "one")
    observer, call, _ = observing(project, source)
    call(0)
    joined = Joined()
    joined.add(observer.news())
    assert CHANGED not in digests(joined).values() and len(joined.rows()) == 1
    path = project.put(put, "two")
    assert list(digests(joined).values()) == [CHANGED]
    path.unlink()
    assert list(digests(joined).values()) == [CHANGED]
    assert observer.news() == []


def test_what_two_processes_saw_differently_is_never_true(tmp_path: Path) -> None:
    row = {"kind": "file", "name": "project:v.txt", "digest": ABSENT}
    one = Input(row, str(tmp_path / "v.txt"))
    joined = Joined()
    joined.add([one, pickle.loads(pickle.dumps(one))])
    assert joined.rows() == [row]
    joined.add([Input({**row, "digest": "2" * 64})])
    assert digests(joined) == {"project:v.txt": CHANGED}
    joined.add([one])
    assert digests(joined) == {"project:v.txt": CHANGED}


def test_a_forked_worker_tells_what_its_parent_saw_before(project: Project) -> None:
    """It may have kept it."""
    for name in "ab":
        project.put(f"{name}.txt", "one")
    observer, call, _ = observing(project)
    call("a.txt")
    told = told_by_child(lambda: (call("b.txt"), [one.row["name"] for one in observer.news()])[1])
    assert told == ["project:a.txt", "project:b.txt"]


def test_a_distribution_replaced_meanwhile_has_changed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    info = site / "swapped-1.dist-info"
    (site / "swapped").mkdir(parents=True)

    def install(version: int) -> None:
        shutil.rmtree(info, ignore_errors=True)  # as installers do
        info.mkdir()
        (info / "top_level.txt").write_text("swapped\n")
        (info / "METADATA").write_text(f"Name: swapped\nVersion: {version}\n")
        files = ("swapped/__init__.py", "swapped/late.py")
        (info / "RECORD").write_text("".join(f"{name},sha256={version},1\n" for name in files))
        for name in files:
            (site / name).write_text(f"v = {version}\n")
        os.utime(site, ns=(next(times), next(times)))  # a tick of the clock is longer than a test

    times = itertools.count(10**18, 10**9)
    install(1)
    monkeypatch.syspath_prepend(str(site))
    source = HERE + "import importlib\ndef f(x): return importlib.import_module(str('swap') + 'ped' + x).v"
    observer, call, made = observing(project, source)
    joined = Joined()
    for version, module in ((1, ""), (2, ".late")):
        install(version)
        assert call(module) == version
        joined.add(observer.news())
    install(1)
    assert digests(joined) == {"swapped": CHANGED}
    assert still_true(joined.rows(), roots=Roots.of(made)) == "swapped"


def test_a_file_that_changes_all_the_time_is_noted_once(project: Project) -> None:
    observer, call, _ = observing(project)
    for number in range(50):
        project.put("v.txt", "x" * number)
        call("v.txt")
    assert [one.row["digest"] == CHANGED for one in observer.news()] == [False, True]
    assert observer.news() == []
