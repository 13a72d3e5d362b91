"""What lives how long: leases, holds, commits under way and rows, over ends of sessions and of daemons."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from prepcache.errors import DaemonUnreachable
from prepcached import daemon as daemon_module
from prepcached import http_protocol, start
from prepcached import server as daemon_server
from prepcached.config import Settings
from prepcached.store import eviction
from prepcached.store.root import Root
from prepcached.store.store import Store
from support.leaks import descriptors
from support.serving import READY_S, Serving, serving, wait_until
from support.stores import ROOMY, Clock, items_of, put


@contextmanager
def slow_commits(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Commits that stop at (begun, may_go_on)."""
    begun, may_go_on = threading.Event(), threading.Event()
    commit: Callable[..., Any] = served.daemon.store.commit

    def wait_and_commit(*arguments: Any, **kinds: Any) -> Any:
        begun.set()
        assert may_go_on.wait(60)
        return commit(*arguments, **kinds)

    monkeypatch.setattr(served.daemon.store, "commit", wait_and_commit)
    try:
        yield begun, may_go_on
    finally:
        may_go_on.set()


def pidfds() -> int:
    """How many processes this one, which serves too, watches."""
    return sum("pidfd" in target for _, target in descriptors())


def test_a_session_ends_with_its_process(tmp_path):
    """By the kernel's word alone: the clock stands still, and a worker that inherits its sockets lives on."""
    code = """if True:
        import http.client, json, os, socket, sys
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(sys.argv[1])
        opening = {"name": "child", "pid": os.getpid(), "host": "here"}
        connection.request("POST", "/v1/sessions", json.dumps(opening))
        status = connection.getresponse().status
        if os.fork():
            print(status, flush=True)
        sys.stdin.read()"""
    with serving(tmp_path, Clock(1000.0)) as served:
        other, watched = served.job("other"), pidfds()
        command = [sys.executable, "-c", code, str(served.uds)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"201\n"
            assert [one.name for one in served.daemon.sessions.values()] == ["other", "child"]
            child.kill()
            assert wait_until(
                lambda: [one.name for one in list(served.daemon.sessions.values())] == ["other"]
            )
        assert wait_until(lambda: pidfds() == watched), "its pidfd is closed"
        assert other.heartbeat().status_code == 200


def test_a_session_that_cannot_be_watched_ends_by_silence(tmp_path, monkeypatch):
    clock = Clock(1000.0)
    monkeypatch.setattr("prepcached.auth.Peer.open_pidfd", lambda self: None)
    with serving(tmp_path, clock) as served:
        job, other = served.job("silent"), served.job("other")
        job.resolve()
        job.lease("a")
        clock.now += 14
        other.heartbeat()
        clock.now += 2
        assert wait_until(lambda: [one.name for one in list(served.daemon.sessions.values())] == ["other"])
        assert job.heartbeat().json()["code"] == "unknown-session"
        assert other.lease("a").json()["granted"] == [0]


def test_purged_artifacts_are_told_until_they_are_dropped(tmp_path):
    with serving(tmp_path) as served:
        first, second = (put(served.store, name).artifact for name in "ab")
        job = served.job()
        job.resolve()
        assert job.heartbeat(dropped=[first.digest], used=[second.digest]).json()["removed"] == []
        assert (served.store.entry(first.key).holds, served.store.entry(second.key).holds) == (0, 1)
        job.http.delete(f"/v1/entries/{second.key}")
        assert job.heartbeat().json()["removed"] == [second.digest]
        assert job.heartbeat().json()["removed"] == [second.digest]
        assert job.heartbeat(dropped=[second.digest]).json()["removed"] == []


@pytest.mark.parametrize("seen_commits", [0, 1])
def test_a_new_daemon_does_not_grant_committed_items(tmp_path, seen_commits):
    with serving(tmp_path) as served:
        job, other = served.job("job"), served.job("other")
        seen = job.resolve().json()["generation"]
        if seen_commits:
            seen = other.fill(served.store.staging, "xy")["generation"]
        other.fill(served.store.staging, "ab")
    with serving(tmp_path) as served:
        job = served.job()
        answer = job.lease("abc", seen).json()
        assert answer["granted"] == [] and answer["look_again"]["generation"] > seen


def test_a_restart_forgets_sessions_leases_and_staged_files(tmp_path):
    with serving(tmp_path) as served:
        ref = put(served.store, "a").artifact
        job = served.job("job")
        job.resolve()
        job.lease("bc", served.store.generation(job.recipe))
        job.stage(served.store.staging, "b")
    with serving(tmp_path) as served:
        job.http = served.http()
        assert job.heartbeat().json()["code"] == "unknown-session"
        assert served.store.entry(ref.key).holds == 0
        assert served.job().lease("bc", served.store.generation(job.recipe)).json()["granted"] == [0, 1]
        assert list(Path(served.store.staging).iterdir()) == []


def test_a_stop_finishes_the_commit_that_is_under_way(tmp_path, monkeypatch):
    answers: list[Any] = []
    with serving(tmp_path) as served:
        job = served.job()
        lease = job.leased("ab")
        staged = job.stage(served.store.staging, "ab")
        with slow_commits(served, monkeypatch) as (begun, may_go_on):
            committer = threading.Thread(target=lambda: answers.append(job.commit([lease], staged)))
            committer.start()
            assert begun.wait(60)
            served.server.ask_to_stop("the test says so")
            assert wait_until(lambda: not served.uds.exists())
            may_go_on.set()
            committer.join(60)
    assert answers[0].status_code == 200
    with serving(tmp_path) as served:
        assert len(items_of(served.store)) == 2
        assert served.store.check() == []


@pytest.mark.parametrize("work", ["purge", "verify"])
def test_a_stop_gives_the_root_back_after_the_last_thread(tmp_path, monkeypatch, work):
    """A request that takes too long is cancelled; its thread is not."""
    monkeypatch.setattr(daemon_server, "STOP_TIMEOUT_S", 0)
    begun, may_go_on = threading.Event(), threading.Event()
    order = []
    with socket.socket(socket.AF_UNIX) as asking, serving(tmp_path) as served:
        daemon, store = served.daemon, served.store
        ref = put(store, "a").artifact
        do, close = getattr(store, work), store.close

        def wait_and_do(*given: Any, **kinds: Any) -> Any:
            begun.set()
            assert may_go_on.wait(60)
            order.append("done")
            return do(*given, **kinds)

        def end(close_threads: Callable[..., None]) -> Callable[..., None]:
            def go_on_and_close(*given: Any, **kinds: Any) -> None:
                may_go_on.set()
                close_threads(*given, **kinds)

            return go_on_and_close

        for threads in (daemon._slow, daemon._long):
            monkeypatch.setattr(threads, "shutdown", end(threads.shutdown))
        monkeypatch.setattr(store, work, wait_and_do)
        monkeypatch.setattr(store, "close", lambda: (order.append("closed"), close()))
        body = '{"all": true}' if work == "purge" else f'{{"keys": ["{ref.key}"]}}'
        asking.connect(str(served.uds))
        head = f"POST /v1/{work} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        asking.sendall((head + body).encode())
        assert begun.wait(60)
    assert order == ["done", "closed"]


def test_a_stop_breaks_off_a_purge_between_two_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(eviction, "BATCH", 1)
    begun, may_go_on = threading.Event(), threading.Event()
    remove = eviction.remove
    answers: list[Any] = []

    def wait_and_remove(*given: Any) -> None:
        begun.set()
        assert may_go_on.wait(60)
        remove(*given)

    with serving(tmp_path) as served:
        for name in "abc":
            put(served.store, name)
        monkeypatch.setattr(eviction, "remove", wait_and_remove)
        http = served.http()
        purging = threading.Thread(target=lambda: answers.append(http.post("/v1/purge", json={"all": True})))
        purging.start()
        assert begun.wait(60)
        assert served.http().get("/healthz").status_code == 200
        assert served.server.middleware.under_way == 1, (
            "it keeps a daemon on demand, and who only looks does not"
        )
        served.server.ask_to_stop("the test says so")
        assert wait_until(served.daemon.stopping.is_set)
        may_go_on.set()
        purging.join(60)
    assert answers[0].json()["code"] == "daemon-unreachable"
    with serving(tmp_path) as served:
        assert served.store.stats().entries == 2


def test_a_commit_outlives_its_session(tmp_path, monkeypatch):
    with serving(tmp_path) as served:
        job, other = served.job("dying"), served.job("other")
        lease = job.leased("abc")
        staged = job.stage(served.store.staging, "ab")
        job.stage(served.store.staging, "c")
        with slow_commits(served, monkeypatch) as (begun, may_go_on):
            committer = threading.Thread(target=lambda: job.commit([lease], staged))
            committer.start()
            assert begun.wait(60)
            served.on_loop(lambda: served.daemon.end_session(job.session, "the test says so"))
            assert other.lease("abc").json()["granted"] == []
            may_go_on.set()
            committer.join(60)
        generation = other.resolve().json()["generation"]
        assert other.lease("c", generation).json()["granted"] == [0]
        assert len(items_of(served.store)) == 2
        assert wait_until(lambda: list(Path(served.store.staging).iterdir()) == [])
        key = served.store.entries().entries[0].key
        assert served.store.entry(key).holds == 1, "the dead session's hold is gone, the other's is there"


@pytest.mark.parametrize("read_bytes", [0, 1], ids=["stalls", "reads a byte at a time"])
def test_a_download_whose_client_stalls_is_ended(tmp_path, monkeypatch, read_bytes):
    monkeypatch.setattr(http_protocol, "STALL_TIMEOUT_S", 0.05)
    with serving(tmp_path) as served, socket.socket(socket.AF_UNIX) as sock:
        ref = put(served.store, "a", size_bytes=20_000_000).artifact
        sock.connect(str(served.uds))
        sock.sendall(f"GET /v1/entries/{ref.key}/data HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert sock.recv(15) == b"HTTP/1.1 200 OK"

        def is_ended() -> bool:
            sock.recv(read_bytes)
            return not served.server.server_state.tasks

        assert wait_until(is_ended)


@pytest.mark.parametrize("kind", ["request", "answer"])
def test_a_stop_breaks_off_who_pauses(tmp_path, monkeypatch, caplog, kind):
    monkeypatch.setattr(daemon_server, "STOP_TIMEOUT_S", 1)
    with serving(tmp_path) as served, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(served.uds))
        if kind == "request":
            sock.sendall(b"POST /v1/resolve HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
            line = "POST /v1/resolve"
        else:
            key = put(served.store, "a", size_bytes=20 << 20).artifact.key
            line = f"GET /v1/entries/{key}/data"
            sock.sendall(f"{line} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert wait_until(lambda: bool(served.server.server_state.tasks))
        served.server.ask_to_stop("the test")
        assert wait_until(lambda: f"{line}: interrupted by the shutdown" in caplog.text)
    assert not [one for one in caplog.records if one.exc_info]


def test_sessions_are_bounded_for_each_user_and_in_all(served, monkeypatch):
    jobs = [served.job(), served.job()]
    for name, limit in (("MAX_PER_USER", 2), ("MAX_SESSIONS", 1)):
        monkeypatch.setattr(daemon_module, name, limit)
        refused = served.http().post("/v1/sessions", json={"name": "job", "pid": 1, "host": "here"})
        assert (refused.status_code, refused.json()["code"]) == (429, "limit-exceeded")
        assert "end some jobs" in refused.json()["detail"]
        jobs.pop().close()


def test_progress_is_shown_until_it_has_ended(served):
    job = served.job()

    def shown(recipe: str, done: int) -> list[tuple[str, int]]:
        job.heartbeat(progress=[{"recipe": recipe, "name": "n", "done": done, "total": 9}])
        [session] = served.http().get("/v1/sessions").json()["sessions"]
        return [(one["recipe"], one["done"]) for one in session["progress"]]

    first, second = "a" * 64, "b" * 64
    assert shown(first, 1) == [(first, 1)] and shown(second, 3) == [(first, 1), (second, 3)]
    assert shown(first, 9) == [(second, 3)]
    for number in range(daemon_module.MAX_RECIPES + 5):
        found = shown(f"{number:064x}", 1)
    assert len(found) == daemon_module.MAX_RECIPES and found[0][0] == f"{5:064x}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "root", limits=ROOMY)
    yield found
    found.close()


def test_a_stop_that_a_thread_holds_up_ends_the_process(tmp_path, monkeypatch):
    """As a write that hangs in the kernel, which nothing can break off."""
    monkeypatch.setattr(daemon_server, "STOP_LIMIT_S", 0.2)
    begun, ended = threading.Event(), threading.Event()
    with serving(tmp_path) as served:
        statuses: list[int] = []
        served.server.end_now = lambda status: (statuses.append(status), ended.set())
        ref = put(served.store, "a").artifact
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


def test_a_start_waits_as_long_as_a_stop_may_take(tmp_path, monkeypatch):
    """The daemon before it has let go of its socket, and of its root at the last moment."""
    before, now = Root(str(tmp_path / "root")), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > start.STOP_LIMIT_S and before.is_open:
            before.close()

    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    start.take(Settings(root=tmp_path / "root", uds=tmp_path / "sock"), {}).close()


def test_a_stop_breaks_off_a_merge_and_a_check(store, monkeypatch):
    for number in range(8):
        put(store, number)
    check, before, checks = store.check_not_stopping, items_of(store), list[int]()

    def check_and_stop(_: int = 0) -> None:
        checks.append(1)
        if len(checks) == 3:  # in the middle of the parts
            store.stopping.set()
        check()

    monkeypatch.setattr(store, "check_not_stopping", check_and_stop)
    for work in (store.merge_some, store.check, store.verify):
        with pytest.raises(DaemonUnreachable):
            work()
    assert len(checks) == 5 and items_of(store) == before
    store.stopping.clear()
    assert store.check() == []
