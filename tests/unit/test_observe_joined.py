"""What other threads, processes and data sets read for the function counts, each input once."""

import asyncio
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from prepcache.keys.files.digest import digest_file
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.items import ItemHasher
from prepcache.keys.observation.inputs import ABSENT, CHANGED, Input, Roots, still_true
from prepcache.keys.observation.observer import Observer
from prepcache.keys.recipes import recipe
from support.observing import Observed, Watched, told_by_child
from support.projects import Project, project_fixture  # noqa: F401

READING = "def f(x): return (HERE / x).read_text()"


@pytest.fixture(name="call")
def call_fixture(project: Project) -> Observed:
    memo = StatCache(project.folder.parent / "memo", window_ns=lambda _: 0)
    return Observed(project, READING, stat_cache=memo)


def test_each_input_is_told_once_however_often_it_is_asked(project, call):
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


def test_what_two_processes_saw_differently_is_never_true(call):
    one = Input("file", ABSENT, "project:v.txt")
    joined = call.observer
    joined.add([one, pickle.loads(pickle.dumps(one))])
    assert joined.taken() == [{"kind": "file", "name": "project:v.txt", "digest": ABSENT}]
    for seen in (one._replace(digest="2" * 64), one):
        joined.add([seen])
        assert call.digests == {"project:v.txt": CHANGED}


def test_a_library_installed_again_meanwhile_is_never_true(project, monkeypatch):
    project.install(monkeypatch, "words", "")
    call = Observed(project, "def f(x): return (HERE / 'site-packages/words' / x).read_text()")
    call("__init__.py")
    assert call.digests["words"].startswith("1 ")
    (project.folder / "site-packages/words-1.dist-info/RECORD").unlink()
    project.put("site-packages/words-2.dist-info/METADATA", "Name: words\nVersion: 2\n")
    call("__init__.py")
    assert call.digests == {"words": CHANGED}


def test_a_forked_worker_tells_what_its_parent_saw_before(project, call):
    for name in "ab":
        project.put(f"{name}.txt", "one")
    call("a.txt")
    told = told_by_child(lambda: (call("b.txt"), [one.name for one in call.observer.news()])[1])
    assert told == ["project:a.txt", "project:b.txt"]


WAIT_S = 60
Work = Callable[[], Any]
READ = "def f(x): return x((HERE / 'v.txt').read_text)"


@pytest.fixture(name="loop")
def loop_fixture() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread, with a thread in its pool."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(asyncio.to_thread(int), loop).result(WAIT_S)
    yield loop
    asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(WAIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_S)
    loop.close()


@pytest.fixture(name="pool")
def pool_fixture() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(WAIT_S)
        yield pool


async def in_loop(work: Work) -> Any:
    return work()


@pytest.mark.parametrize("how", ["in its loop", "in a thread of its loop", "in a pool, in the context"])
def test_what_an_older_thread_opens_for_the_function_is_seen(project, loop, pool, how):
    project.put("v.txt", "one")

    def ask(work: Work) -> Any:
        if "pool" in how:
            return pool.submit(copy_context().run, work).result(WAIT_S)
        asked = asyncio.to_thread(work) if "thread" in how else in_loop(work)
        return asyncio.run_coroutine_threadsafe(asked, loop).result(WAIT_S)

    watched = Watched(project, READ, ask)
    assert watched.names == ["project:v.txt"]
    project.put("v.txt", "two")
    assert watched.changed() == "project:v.txt"


@pytest.mark.parametrize("how", ["items", "tree", "config", "observed", "listed", "within"])
def test_inputs_of_a_nested_data_set_count_for_the_function(project, tmp_path, how):
    """Where the memo knows the bytes of a file, nothing is opened."""
    memo = StatCache(tmp_path / "memo", window_ns=lambda _: 0)
    path = project.put("data/v.txt", "one")
    project.write(prep="def outer(x): return x\ndef inner(x): return x\n")
    module = project.load()
    inner = Observer(recipe(module.inner))
    memo_knows = [digest_file(str(path), memo, "stat").digest]
    with inner.watching():
        path.read_text()
        os.listdir(path.parent)
    rows = inner.taken()
    outer = Observer(recipe(module.outer))
    with outer.watching():
        if how == "items":
            ItemHasher(stat_cache=memo).digest_many([path, (1, path)])
        elif how == "tree":
            ItemHasher(stat_cache=memo).digest_many([path.parent])
        elif how == "config":
            memo_knows.append(digest_file(str(path), memo, "stat").digest)
        elif how == "within":
            with inner.watching([path]):
                path.read_text()
        else:
            kind = "folder" if how == "listed" else "file"
            rows = [row for row in rows if row["kind"] == kind]
            assert still_true(rows, memo, Roots.of(recipe(module.inner))) is None
    assert len(set(memo_knows)) == 1
    names = {row["name"] for row in outer.taken()}
    assert names >= ({"project:data"} if how == "listed" else {"project:data/v.txt"})
