"""A stop ends in time, whatever is under way."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from prepcache.errors import DaemonUnreachable
from prepcached import server as daemon_server
from prepcached import start
from prepcached.config import Settings
from prepcached.store import staging
from prepcached.store.root import Root
from prepcached.store.store import Store
from prepcached.tier import tier
from support.serving import READY_S, serving, wait_until
from support.stores import ROOMY, item, items_of, put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "root", limits=ROOMY)
    yield found
    found.close()


def test_a_stop_that_a_thread_holds_up_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a write that hangs in the kernel, which nothing can break off."""
    monkeypatch.setattr(daemon_server, "STOP_LIMIT_S", 0.2)
    begun, ended = threading.Event(), threading.Event()
    with serving(tmp_path) as served:
        statuses: list[int] = []
        served.server.end_now = lambda status: (statuses.append(status), ended.set())
        [ref] = put(served.store, "a").artifacts
        pin = served.store.set_pin

        def hang(*given: Any) -> Any:
            begun.set()
            assert ended.wait(READY_S), "the stop waits for this thread"
            return pin(*given)

        monkeypatch.setattr(served.store, "set_pin", hang)
        http = served.http()

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):  # it may be cut off
                http.put(f"/v1/entries/{ref.key}/pin")

        asking = threading.Thread(target=ask)
        asking.start()
        assert begun.wait(READY_S)
    assert ended.is_set() and statuses == [daemon_server.OVERDUE]
    asking.join(READY_S)


def test_a_start_waits_as_long_as_a_stop_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon before it has let go of its socket, and of its root at the last moment."""
    before, now = Root(str(tmp_path / "root")), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > start.STOP_LIMIT_S and before.is_open:
            before.close()

    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    start.take(Settings(root=tmp_path / "root", uds=tmp_path / "sock"), {}).close()


def test_a_stop_on_a_disk_that_became_read_only_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with serving(tmp_path) as served, monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fails)
        served.server.ask_to_stop("the test says so")
        assert wait_until(lambda: served.store.is_closed)


def test_a_stop_ends_within_ten_seconds() -> None:
    assert start.STOP_LIMIT_S < 10
    assert daemon_server.STOP_TIMEOUT_S + tier.DRAIN_S <= start.STOP_LIMIT_S, (
        "requests and copies are given an end"
    )


def test_a_stop_breaks_off_a_verification_within_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = staging._read
    offsets: list[int] = []
    with serving(tmp_path) as served:
        monkeypatch.setattr(staging, "READ_BYTES", 4096)

        def read_and_stop(fd: int, buffer: memoryview, offset: int) -> int:
            if threading.current_thread() is not scrubbing:
                offsets.append(offset)
                served.store.stopping.set()
            return read(fd, buffer, offset)

        put(served.store, "a", size_bytes=100_000)
        [scrubbing] = [one for one in threading.enumerate() if one.name == "merge_and_scrub"]
        monkeypatch.setattr(staging, "_read", read_and_stop)
        refused = served.http().post("/v1/verify", json={})
        assert refused.json()["code"] == "daemon-unreachable"
    assert offsets == [0]


def test_a_stop_breaks_off_a_merge(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(number) for number in range(8)]
    for name in names:
        put(store, name)
    check = store.check_not_stopping
    checks: list[int] = []

    def check_and_stop(_: int = 0) -> None:
        checks.append(1)
        if len(checks) == 3:  # in the middle of the parts
            store.stopping.set()
        check()

    monkeypatch.setattr(store, "check_not_stopping", check_and_stop)
    with pytest.raises(DaemonUnreachable):
        store.merge_some()
    assert len(checks) == 3
    assert items_of(store) == sorted(item(name) for name in names)
    with pytest.raises(DaemonUnreachable):
        store.check()
    store.stopping.clear()
    assert store.check() == []
