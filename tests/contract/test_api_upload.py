"""Uploads of announced length, which are written a MiB at a time: what is stored, what not."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepcached.daemon import SLOW_THREADS
from prepcached.routes import data
from support.serving import Job, Serving, raw, serving, wait_until

DATA = bytes(range(256)) * 20_000


def head(job: Job, length: int, *more: str, item: object = "a") -> bytes:
    """The head of an upload for a lease of its own."""
    lease = job.lease([item], job.resolve().json()["generation"]).json()["lease"]
    lines = [f"PUT /v1/leases/{lease['id']}/data HTTP/1.1", "host: x", f"content-length: {length}", *more]
    lines += [f"{name}: {value}" for name, value in job.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def staged(served: Serving) -> list[Path]:
    return sorted(Path(served.store.staging).iterdir())


def ended(served: Serving) -> bool:
    """No upload goes on: its file goes first, its room a moment later."""
    return not staged(served) and not served.store.stats().reserved_bytes


@contextlib.contextmanager
def connected(served: Serving, *parts: bytes) -> Iterator[socket.socket]:
    """A socket on which these parts were sent."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(served.uds))
        for part in parts:
            sock.sendall(part)
        yield sock


@pytest.mark.parametrize("first", [0, 1, 70_000, len(DATA) - 1])
def test_a_body_that_comes_with_its_head_is_stored_whole(served: Serving, first: int) -> None:
    job = served.job()
    answer = raw(served.uds, head(job, len(DATA)) + DATA[:first], DATA[first:])
    assert answer.startswith(b"HTTP/1.1 201 ")
    [path] = staged(served)
    assert path.read_bytes() == DATA


def test_what_follows_an_announced_body_is_not_stored(served: Serving) -> None:
    job = served.job()
    follows = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with connected(served, head(job, len(DATA)), DATA + follows) as sock:
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert answer.count(b"HTTP/1.1 20") == 2 and b"connection: close" in answer
    [path] = staged(served)
    assert path.read_bytes() == DATA


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(served: Serving) -> None:
    job = served.job()
    with connected(served, head(job, 3, "expect: 100-continue")) as sock:
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert sock.recv(100).startswith(b"HTTP/1.1 201 ")
    assert [path.read_bytes() for path in staged(served)] == [b"abc"]


def test_an_upload_that_breaks_off_leaves_nothing(served: Serving, caplog: pytest.LogCaptureFixture) -> None:
    job = served.job()
    with connected(served, head(job, len(DATA)), DATA[:300_000]):
        assert wait_until(lambda: bool(staged(served)))
    assert wait_until(lambda: not staged(served) and not served.server.server_state.tasks)
    assert job.http.get("/healthz").status_code == 200
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_slow_uploads_keep_no_thread_from_a_commit(served: Serving) -> None:
    job = served.job()
    with contextlib.ExitStack() as stack:
        for n in range(SLOW_THREADS + 2):
            stack.enter_context(connected(served, head(job, len(DATA), item=n), DATA[:100_000]))
        assert wait_until(lambda: len(staged(served)) == SLOW_THREADS + 2)
        assert served.job().fill(served.store.staging, ["other"])["artifacts"]
    assert wait_until(lambda: not staged(served))


@pytest.mark.parametrize("length", [100, len(DATA)])
def test_an_upload_onto_a_full_disk_is_declined(
    served: Serving, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    job = served.job()
    asked = head(job, length)
    monkeypatch.setattr(data, "_write", full)
    assert raw(served.uds, asked + DATA[:length]).startswith(b"HTTP/1.1 507 ")
    assert staged(served) == []


def test_an_upload_without_its_lease_ends_and_frees_its_room(tmp_path: Path) -> None:
    with serving(tmp_path, max_bytes=len(DATA)) as served:
        job, other = served.job(), served.job()
        with connected(served, head(job, len(DATA)), DATA[:100_000]) as sock:
            assert wait_until(lambda: bool(staged(served)))
            told = other.lease(["b"], other.resolve().json()["generation"], nbytes=1 << 20).json()
            assert told["is_declined"] and "; 4.9 MiB are reserved for uploads" in told["reason"]
            [lease] = served.daemon.leases
            assert job.release({"id": lease.id, "token": lease.token}).status_code == 204
            sock.sendall(b"x")
            answer = sock.recv(1000)
        assert answer.startswith(b"HTTP/1.1 409 ") and b'"lease-lapsed"' in answer
        assert wait_until(lambda: ended(served))
        assert other.lease(["b"], other.resolve().json()["generation"], nbytes=1 << 20).json()["lease"]


def test_what_was_uploaded_for_a_refused_commit_does_not_stay(served: Serving) -> None:
    job = served.job()
    lease = job.lease(["a"], job.resolve().json()["generation"]).json()["lease"]
    for _ in range(2):
        path = f"/v1/leases/{lease['id']}/data"
        file = job.http.put(path, content=b"no artifact", headers=job.headers).json()
        assert len(staged(served)) == 1
        assert job.commit([lease], [file]).status_code == 422
        assert staged(served) == []
    file = job.http.put(path, content=b"no artifact", headers=job.headers).json()
    assert job.release(lease).status_code == 204
    assert job.commit([lease], [file]).status_code == 409
    assert staged(served) == [] and served.store.stats().staged_bytes == 0


def test_an_upload_of_unknown_length_is_refused(served: Serving) -> None:
    """Nobody could say whether there is room for it."""
    job = served.job()
    asked = head(job, 3).replace(b"content-length: 3", b"transfer-encoding: chunked")
    answer = raw(served.uds, asked, b"3\r\nabc\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 411 ") and b"Content-Length" in answer
    assert staged(served) == []


def test_concurrent_uploads_share_the_room(tmp_path: Path) -> None:
    with serving(tmp_path, max_bytes=2 * len(DATA)) as served:
        job = served.job()
        kept = job.fill(served.store.staging, ["kept"])["artifacts"]
        with connected(served, head(job, len(DATA), item=1), DATA[:100_000]) as first:
            assert wait_until(lambda: bool(staged(served)))
            assert raw(served.uds, head(job, len(DATA), item=2)).startswith(b"HTTP/1.1 507 ")
            first.sendall(DATA[100_000:])
            assert first.recv(100).startswith(b"HTTP/1.1 201 ")
        assert raw(served.uds, head(job, len(DATA), item=3)).startswith(b"HTTP/1.1 507 ")
        assert served.store.stats().staged_bytes >= len(DATA)
        assert served.store.entry(kept[0]["key"]).items == 1
        job.close()
        assert wait_until(lambda: not staged(served))
        job = served.job()
        assert raw(served.uds, head(job, len(DATA), item=4), DATA).startswith(b"HTTP/1.1 201 ")


def test_a_stop_waits_for_an_upload_that_goes_on(served: Serving) -> None:
    job = served.job()
    with connected(served, head(job, len(DATA)), DATA[:100_000]) as sock:
        assert wait_until(lambda: bool(staged(served)))
        served.server.ask_to_stop("the test")
        assert wait_until(lambda: not served.uds.exists())
        sock.sendall(DATA[100_000:])
        assert sock.recv(100).startswith(b"HTTP/1.1 201 ")
