"""The store's writer is held, as by a slow disk: whoever only reads, or beats, is answered all the same."""

import asyncio
import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from prepcache.errors import StoreError
from prepcached import daemon as daemon_module
from prepcached.daemon import LIST_THREADS, LONG_THREADS, QUICK_THREADS
from prepcached.maintenance import Maintenance
from prepcached.store import staging
from support.serving import READY_S, Job, Serving, wait_until
from support.stores import put

NEW_RECIPES = 8
"""More than there are threads for quick calls, and for writes."""
SPAN_S = 15.0
"""An answer that waits for the writer fails the test after so long, instead of holding it for ever."""


@contextlib.contextmanager
def held_transaction(served: Serving) -> Iterator[None]:
    """Another connection has SQLite's write lock."""
    with contextlib.closing(sqlite3.connect(Path(served.store.root) / "v1" / "index.sqlite")) as conn:
        conn.isolation_level = None
        conn.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            conn.execute("ROLLBACK")


@contextlib.contextmanager
def held_lock(served: Serving) -> Iterator[None]:
    """Another thread changes files and rows, as a merge or a commit that waits for the disk."""
    with served.store.writer:
        yield


@pytest.fixture(params=[held_transaction, held_lock])
def held(request: pytest.FixtureRequest) -> Callable[[Serving], contextlib.AbstractContextManager[None]]:
    found: Callable[[Serving], contextlib.AbstractContextManager[None]] = request.param
    return found


@contextlib.contextmanager
def new_recipes_waiting(served: Serving) -> Iterator[list[Any]]:
    """Registrations of recipes that nobody knows, which wait for the writer; their answers at the end."""
    answers: list[Any] = []

    def register(number: int) -> None:
        job = served.job(f"new {number}")
        job.recipe = f"{number:064x}"  # type: ignore[assignment]
        answers.append(job.resolve())

    threads = [threading.Thread(target=register, args=(number,)) for number in range(NEW_RECIPES)]
    for one in threads:
        one.start()

    assert wait_until(lambda: len(served.server.server_state.tasks) == NEW_RECIPES)
    yield answers
    for one in threads:
        one.join()


def test_beats_and_warm_openings_do_not_wait_for_a_writer(served, held):
    job = served.job("warm")
    key = job.fill(served.store.staging, "ab")["artifact"]["key"]
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(contextlib.ExitStack())
        writer.enter_context(held(served))
        answers = stack.enter_context(new_recipes_waiting(served))
        http = served.http()
        http.timeout = SPAN_S
        job.http = http
        assert job.heartbeat(used=[]).status_code == 200
        found = job.resolve()
        assert found.status_code == 200 and len(found.json()["artifacts"]) == 1
        assert http.get("/v1/info").status_code == 200
        assert http.get(f"/v1/entries/{key}").json()["holds"] == 1
        assert len(http.get("/v1/entries").json()["entries"]) == 1
        assert http.get(f"/v1/entries/{key}/data").status_code == 200
        other = served.job("another")
        other.http = http
        generation = other.resolve().json()["generation"]
        assert other.lease("cd", generation).json()["granted"] == [0, 1]
        assert other.close().status_code == 204
        assert answers == [], "those that write wait until the writer is free"
        writer.close()
    assert [one.status_code for one in answers] == [200] * NEW_RECIPES


@pytest.mark.parametrize("work", ["listing", "names of users", "verification", "cold download"])
def test_look_ups_and_beats_wait_for_no_other_work(served, monkeypatch, work):
    job, go_on, begun = served.job(), threading.Event(), threading.Semaphore(0)
    path = f"/v1/entries/{job.fill(served.store.staging, 'ab')['artifact']['key']}/data"
    open_file = anyio.open_file

    def slow(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_call(*given: Any, **named: Any) -> Any:
            begun.release()
            assert go_on.wait(READY_S)
            return call(*given, **named)

        return wait_and_call

    async def open_cold(*given: Any, **named: Any) -> Any:
        await anyio.to_thread.run_sync(slow(int))
        return await open_file(*given, **named)

    ask, threads, of, name, call = {
        "listing": (lambda: served.http().get("/v1/entries"), LIST_THREADS, served.store, "entries", None),
        "names of users": (served.job, LIST_THREADS, daemon_module, "user_name", None),
        "verification": (lambda: served.http().post("/v1/verify"), LONG_THREADS, staging, "hash_file", None),
        "cold download": (lambda: served.http().get(path), 40, anyio, "open_file", open_cold),
    }[work]
    monkeypatch.setattr(of, name, call or slow(getattr(of, name)))
    with ThreadPoolExecutor(threads + QUICK_THREADS) as people:
        answers = [people.submit(ask) for _ in range(threads + QUICK_THREADS)]
        assert all(begun.acquire(timeout=READY_S) for _ in range(threads))
        try:
            assert job.resolve().status_code == job.heartbeat().status_code == 200
            assert served.http().get("/v1/info").status_code == 200
        finally:
            go_on.set()
        assert all(isinstance(got := one.result(), Job) or got.status_code == 200 for one in answers)


@contextlib.contextmanager
def taking_nothing(served: Serving) -> Iterator[None]:
    """No write succeeds inside, neither to the index nor to the root's files."""

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), served.store.root)

    @contextlib.contextmanager
    def no_transaction() -> Iterator[Any]:
        raise StoreError("attempt to write a readonly database")
        yield

    index: Any = served.store.index
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "write", no_transaction)
        patch.setattr(os, "utime", fails)
        patch.setattr(served.store.staged_area, "sweep", fails)
        yield


def test_a_warm_job_is_served_and_what_is_stored_is_shown(served):
    put(served.store, "a", "b")
    with taking_nothing(served):
        job = served.job("warm")
        found = job.resolve()  # that it was used just now is still to be written
        assert found.status_code == 200 and len(found.json()["artifacts"]) == 1
        assert job.heartbeat(used=[found.json()["artifacts"][0]["digest"]]).status_code == 200
        seen = served.http().get("/v1/sessions").json()["sessions"]
        assert [(one["name"], one["holds"]) for one in seen] == [("warm", 1)]
        assert len(served.http().get("/v1/entries").json()["entries"]) == 1
        assert served.http().get("/").status_code == 200


def test_what_an_ended_session_left_goes_when_the_disk_lets_it(served):
    job = served.job()
    job.resolve()
    job.lease(["a"])
    job.stage(served.store.staging, ["a"])
    assert wait_until(lambda: served.store.stats().staged_bytes > 0)
    with taking_nothing(served):
        assert job.close().status_code == 204
    asyncio.run_coroutine_threadsafe(served.daemon.sweep(), served.server.loop).result(READY_S)
    assert wait_until(lambda: not os.listdir(served.store.staging))
    stats = served.store.stats()
    assert stats.staged_bytes == 0


def test_readiness_needs_index_room_and_maintenance(served, monkeypatch):
    http, stats = served.http(), served.store.stats

    def told() -> str:
        answer = http.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "daemon-unreachable")
        return str(answer.json()["detail"])

    def fails() -> Any:
        raise StoreError("disk I/O error")

    assert http.get("/readyz").json() == {"status": "ready"}
    with monkeypatch.context() as patch:
        patch.setattr(served.store, "stats", fails)
        assert told() == "not ready: the index does not answer (disk I/O error)"
    with monkeypatch.context() as patch:
        patch.setattr(served.store, "stats", lambda: replace(stats(), effective_limit_bytes=0))
        assert told() == "not ready: the disk is full"
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: path != served.store.staging)  # as on a read-only disk
        assert told() == "not ready: the disk is read-only"
    with monkeypatch.context() as patch:
        patch.setattr(Maintenance, "is_alive", False)
        assert told() == "not ready: maintenance has stopped"
    assert http.get("/healthz").status_code == 200
