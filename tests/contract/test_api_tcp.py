"""TCP: only with the token, only under a known name, and with the rights of nobody in particular."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from prepcache.daemon.client import Client
from prepcache.errors import Unauthorized
from prepcached import server as daemon_server
from prepcached.auth import Peer
from prepcached.config import Settings
from prepcached.http_protocol import Slots
from support.serving import READY_S, Serving, http_client, open_job, raw, serving, wait_until
from support.stores import put

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@pytest.fixture
def served(tmp_path: Path, port: int) -> Iterator[Serving]:
    with serving(tmp_path, host="127.0.0.1", port=port, token=TOKEN) as found:
        yield found


@pytest.fixture
def http(served: Serving, port: int) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {TOKEN}"}
    ) as client:
        yield client


def test_a_job_with_the_token_fills_the_cache(served, http):
    job = open_job(http)
    done = job.fill(served.store.staging, "abc")
    key = done["artifact"]["key"]
    assert http.get(f"/v1/entries/{key}").json()["owner"] is None
    assert served.store.entry(key).items == 3
    assert http.delete(f"/v1/entries/{key}").json()["entries"] == 1


WRONG = ["", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN]


def test_without_the_token_nothing_is_answered_but_liveness(served, http):
    for authorization in (*WRONG, "Bearer \xff"):
        headers = {b"authorization": authorization.encode("latin-1")}
        for path in ("/v1/info", "/v1/entries", "/metrics", "/docs", "/openapi.json", "/nowhere"):
            answer = http.get(path, headers=headers)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), authorization
            assert answer.headers["www-authenticate"] == "Bearer" and TOKEN not in answer.text
            assert answer.headers["connection"] == "close"
        assert http.get("/healthz", headers=headers).status_code == 200  # type: ignore[arg-type]


def test_a_missing_or_wrong_token_is_told_with_the_remedy(served, port, monkeypatch):
    for token, told in (("", "and none was sent"), ("wrong-horse-battery-staple", "is not this daemon's")):
        monkeypatch.setenv("PREPCACHE_TOKEN", token)
        with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(Unauthorized) as refused:
            client.info()
        assert told in refused.value.message and "set PREPCACHE_TOKEN to what" in refused.value.message
        assert "horse" not in refused.value.message


def test_a_foreign_name_is_refused(served, http):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "["):
        assert http.get("/v1/info", headers={"host": host}).json()["code"] == "forbidden"
    for host in ("localhost", "127.0.0.1:9", "[::1]:9"):
        assert http.get("/v1/info", headers={"host": host}).status_code == 200


def test_a_header_that_decides_is_sent_once(served):
    for name in ("Host", "Origin", "Authorization", "User-Agent"):
        twice = f"{name}: 127.0.0.1\r\n{name}: localhost\r\n"
        head = f"GET /v1/info HTTP/1.1\r\n{twice}Connection: close\r\n\r\n"
        answer = raw(served.uds, head.encode())
        assert answer.startswith(b"HTTP/1.1 400 ") and b"was sent more than once" in answer, name


def test_a_foreign_origin_is_refused_and_an_own_one_is_not(served, http, port):
    own = {"origin": f"http://127.0.0.1:{port}"}
    assert http.get("/v1/info", headers=own).status_code == 200
    for origin in ("null", "http://[", "http://evil.example", f"http://127.0.0.1:{port}.evil.example"):
        assert http.get("/v1/info", headers={"origin": origin}).json()["code"] == "forbidden"


def test_the_token_makes_nobody_an_admin(served, http):
    ref = put(served.store, "a").artifact
    assert http.delete(f"/v1/entries/{ref.key}").json()["code"] == "forbidden"
    assert http.post("/v1/purge", json={"all": True}).json()["entries"] == 0
    assert served.store.entry(ref.key).items == 1


def test_a_session_of_the_socket_is_not_taken_over_by_tcp(served, http):
    job = served.job()
    job.http = http
    assert job.heartbeat().json()["code"] == "unknown-session"


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Slots:
    found = Slots(20)
    monkeypatch.setattr(daemon_server, "Slots", lambda: found)
    return found


def test_tcp_connections_leave_slots_for_others(slots, served, port, caplog):
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING):
        for _ in range(12):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert wait_until(lambda: slots.refused == 2)
        assert served.http().get("/v1/info").status_code == 200
    assert [one.getMessage() for one in caplog.records] == [
        "refusing connections: TCP has 10 of 20 connections open: close some"
    ]
    assert wait_until(lambda: not slots.open[None])


def test_one_user_leaves_slots_for_others(slots, served):
    uid = os.getuid()
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(served.uds))
        assert wait_until(lambda: slots.open[uid] == 10)
        with http_client(served.uds) as client:
            answer = client.get("/v1/info")
        assert (answer.status_code, answer.json()["code"]) == (503, "limit-exceeded")
        assert f"uid {uid} has 10 of 20 connections open" in answer.json()["detail"]
    assert wait_until(lambda: not slots.open[uid])


def test_metrics_are_served_apart_without_a_token(tmp_path, port):
    with (
        serving(tmp_path, metrics_listen=f"127.0.0.1:{port}") as served,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"host": "box:9109"}) as scraper,
    ):
        assert "prepcache_entries 0.0" in scraper.get("/metrics").text
        assert scraper.get("/healthz").json() == {"status": "ok"}
        assert scraper.get("/readyz").json() == {"status": "ready"}
        for path in ("/", "/v1/info", "/docs", "/v1/entries"):
            assert scraper.get(path).json()["code"] == "not-found"
        assert scraper.post("/v1/purge", json={"all": True}).json()["code"] == "not-found"
        assert served.http().get("/v1/info").status_code == 200


def test_a_reload_changes_token_people_limits_and_log_level(tmp_path, port, monkeypatch, request):
    request.addfinalizer(partial(logging.getLogger().setLevel, logging.getLogger().level))
    admin, friend, other = (os.geteuid() + n for n in (1, 2, 3))
    given = {"host": "127.0.0.1", "port": port, "isolation": "user"}
    reloaded = {
        **given, "root": tmp_path / "root", "uds": tmp_path / "s.sock", "min_free": "2MiB",
        "max_bytes": "1GiB", "token": "another-token-altogether", "log_level": "error", "admins": [admin],
        "trusted": [friend], "user_quota": "3MiB", "quotas": {str(other): "4MiB"},
    }  # fmt: skip
    new = Settings.model_validate(reloaded)
    with serving(tmp_path, token=TOKEN, **given) as served:
        monkeypatch.setattr(served.server, "load", lambda: new)
        asyncio.run_coroutine_threadsafe(served.server._reload(), served.server.loop).result(READY_S)
        assert logging.getLogger().level == logging.ERROR
        assert by_token(port, TOKEN).status_code == 401
        limits = by_token(port, "another-token-altogether").json()["limits"]
        assert (limits["max_bytes"], limits["min_free_bytes"]) == (1 << 30, 2 << 20)
        people = [served.daemon.auth.caller(Peer(uid, 1), "/", []) for uid in (admin, friend, other)]
        assert [one.is_admin for one in people] == [True, False, False]
        assert [one.confined_to for one in people] == [None, None, other]
        assert [served.store.quotas.of(uid) for uid in (friend, other)] == [3 << 20, 4 << 20]


def by_token(port: int, token: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}/v1/info", headers={"authorization": f"Bearer {token}"})
