"""The store's writer is held, as by a slow disk: whoever only reads, or beats, is answered all the same."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.serving import Serving, wait_until

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


def test_beats_and_warm_openings_do_not_wait_for_a_writer(
    served: Serving, held: Callable[[Serving], contextlib.AbstractContextManager[None]]
) -> None:
    job = served.job("warm")
    key = job.fill(served.store.staging, "ab")["artifacts"][0]["key"]
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
