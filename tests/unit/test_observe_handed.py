"""Files that a thread opens for a function that handed it the work, though it is older than the observer.

So zarr and fsspec read: in an event loop whose thread was started when the job listed its items.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from prepcache.keys.observation.observer import Observer
from support.observing import Observed, Watched
from support.projects import Project, project_fixture  # noqa: F401

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


async def in_thread(work: Work) -> Any:
    return await asyncio.to_thread(work)


@pytest.mark.parametrize("how", [in_loop, in_thread])
def test_what_an_older_event_loop_opens_for_the_function_is_seen(
    project: Project, loop: asyncio.AbstractEventLoop, how: Callable[[Work], Any]
) -> None:
    project.put("v.txt", "one")
    ask = lambda work: asyncio.run_coroutine_threadsafe(how(work), loop).result(WAIT_S)  # noqa: E731
    watched = Watched(project, READ, ask)
    assert watched.names == ["project:v.txt"]
    project.put("v.txt", "two")
    assert watched.changed() == "project:v.txt"


def test_opens_of_an_older_pool_in_the_context_are_seen(project: Project, pool: ThreadPoolExecutor) -> None:
    project.put("v.txt", "one")
    watched = Watched(project, READ, lambda work: pool.submit(copy_context().run, work).result(WAIT_S))
    assert watched.names == ["project:v.txt"]


def test_what_an_older_pool_opens_for_others_is_not_seen(
    project: Project, loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor
) -> None:
    """Work that the job handed over counts for nobody, nor does what the function left behind."""
    path = project.put("v.txt", "one")
    call = Observed(project, "def f(x): return x()")
    go, is_left = threading.Event(), threading.Event()

    def wait_and_read() -> None:
        go.wait(WAIT_S)
        path.read_text()

    theirs = pool.submit(wait_and_read)
    call(lambda: (go.set(), theirs.result(WAIT_S)))
    assert call.observer.taken() == []

    async def later() -> None:
        await asyncio.to_thread(is_left.wait, WAIT_S)
        path.read_text()

    left: list[Any] = []
    call(lambda: left.append(asyncio.run_coroutine_threadsafe(later(), loop)))
    first, call.observer = call.observer, Observer(call.recipe)
    call(lambda: (is_left.set(), left[0].result(WAIT_S)))
    assert first.taken() == call.observer.taken() == []
