"""A disk that takes nothing any more (full, read-only): who is warm is served all the same."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from prepcache.errors import StoreError
from prepcached.maintenance import Maintenance
from support.serving import READY_S, Serving, wait_until
from support.stores import put


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


def test_a_warm_job_is_served(served: Serving) -> None:
    put(served.store, "a", "b")
    with taking_nothing(served):
        job = served.job("warm")
        found = job.resolve()
        assert found.status_code == 200 and len(found.json()["artifacts"]) == 1
        assert job.heartbeat(used=[found.json()["artifacts"][0]["digest"]]).status_code == 200
        seen = served.http().get("/v1/sessions").json()["sessions"]
        assert [(one["name"], one["holds"]) for one in seen] == [("warm", 1)]


def test_what_is_stored_can_be_looked_at(served: Serving) -> None:
    put(served.store, "a")
    with taking_nothing(served):
        served.job().resolve()  # that it was used just now is still to be written
        assert len(served.http().get("/v1/entries").json()["entries"]) == 1
        assert served.http().get("/").status_code == 200


def test_what_an_ended_session_left_goes_when_the_disk_lets_it(served: Serving) -> None:
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


def test_readiness_needs_index_room_and_maintenance(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
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
