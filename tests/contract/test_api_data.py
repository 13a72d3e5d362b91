"""Artifacts over HTTP: up a MiB at a time, down, in ranges, and what is then on disk."""

import contextlib
import errno
import logging
import os
import socket
from asyncio import run_coroutine_threadsafe as run
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from blake3 import blake3

from prepcache.protocol import wire
from prepcached.daemon import SLOW_THREADS
from prepcached.routes import data as data_module
from support.leaks import descriptors
from support.serving import Job, Serving, raw, serving, wait_until
from support.stores import content, item, items_of, put

DATA = bytes(range(256)) * 20_000


def upload(job: Job, lease: dict[str, str], data: bytes) -> tuple[int, dict[str, object]]:
    answer = job.http.put(f"/v1/leases/{lease['id']}/data", content=data, headers=job.headers)
    return answer.status_code, answer.json()


def artifact_bytes(served: Serving, job: Job, names: str, **kinds: int) -> bytes:
    staged = job.stage(served.store.staging, names, **kinds)
    path = Path(served.store.staging, str(staged["name"]))
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.mark.parametrize("size_bytes", [100, 3_000_000])
def test_what_is_uploaded_and_committed_is_in_the_store(served, size_bytes):
    job = served.job()
    lease = job.leased("ab")
    data = artifact_bytes(served, job, "ab", size_bytes=size_bytes)
    status, staged = upload(job, lease, data)
    assert (status, staged["size_bytes"]) == (201, len(data))
    done = job.commit([lease], staged).json()
    ref = done["artifact"]
    assert content(served.store, ref["digest"]) == data
    assert items_of(served.store) == sorted([item("a"), item("b")])
    assert list(Path(served.store.staging).iterdir()) == []
    assert served.store.check() == []


def test_an_upload_needs_a_lease_of_the_session(served):
    job, other = served.job(), served.job()
    lease = job.leased("ab")
    status, problem = upload(other, lease, b"x")
    assert (status, problem["code"]) == (409, "lease-lapsed")
    assert list(Path(served.store.staging).iterdir()) == []


def test_an_upload_leaves_nothing_of_a_session_that_ends(served, monkeypatch):
    """The sweep at its end passes over the file, which is busy."""
    job, write, loop = served.job(), data_module._write, served.server.loop
    lease = job.leased("ab")

    async def end() -> None:
        served.daemon.end_session(job.session, "tested")
        await served.daemon.sweep()

    monkeypatch.setattr(data_module, "_write", lambda *given: (write(*given), run(end(), loop).result()))
    assert upload(job, lease, b"x")[1]["code"] == "unknown-session"
    assert list(Path(served.store.staging).iterdir()) == []


def test_staged_bytes_of_a_session_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "MAX_STAGED_BYTES", 3 << 20)
    with serving(tmp_path) as served:
        job = served.job("uploader")
        lease = job.leased("ab")
        assert upload(job, lease, b"x" * (2 << 20))[0] == 201
        status, problem = upload(job, lease, b"x" * (2 << 20))
        assert (status, problem["code"]) == (429, "limit-exceeded")
        assert "uploader" in str(problem["detail"])
        assert len(list(Path(served.store.staging).iterdir())) == 1


def test_a_download_gives_the_artifacts_bytes_with_its_digest(served):
    ref = put(served.store, "a", "b", size_bytes=5_000_000).artifact
    http, path = served.http(), f"/v1/entries/{ref.key}/data"
    answer, head = http.get(path), http.head(path)
    assert answer.status_code == 200 and answer.content == content(served.store, ref.digest)
    assert answer.headers["etag"] == f'"{blake3(answer.content).hexdigest()}"'
    assert answer.headers["accept-ranges"] == "bytes"
    assert head.status_code == 200 and head.content == b""
    assert int(head.headers["content-length"]) == ref.size_bytes


def test_a_download_on_a_condition_that_does_not_hold_is_refused(served):
    ref = put(served.store, "a").artifact
    tag, other = f'"{ref.digest}"', f'"{"0" * 64}"'
    refused = (f"{other}, {tag}", f"W/{tag}", '"junk"', "junk")
    for condition in ("*", tag, *refused):
        answer = served.http().get(f"/v1/entries/{ref.key}/data", headers={"if-match": condition})
        assert answer.status_code == (412 if condition in refused else 200), condition
        assert answer.content == content(served.store, ref.digest) or answer.json()["code"] == "bad-request"


def test_a_download_names_which_artifact_of_an_entry_it_wants(served):
    store, job = served.store, served.job()
    old = put(store, "a", seed=0).artifact
    assert job.resolve().json()["artifacts"][0]["digest"] == old.digest
    new = put(store, "a", seed=1).artifact
    assert new.key == old.key

    def download(digest: str) -> httpx.Response:
        return job.http.get(f"/v1/entries/{old.key}/data", headers={"if-match": f'"{digest}"'})

    assert download(new.digest).content == content(store, new.digest)
    assert download(new.digest).headers["etag"] == f'"{new.digest}"'
    assert download(old.digest).json()["code"] == "not-found"
    assert download("0" * 64).status_code == 404
    other = put(store, "b").artifact
    assert download(other.digest).status_code == 404, "of another entry"


RANGES = {
    "bytes=0-0": slice(0, 1),
    "bytes=10-19": slice(10, 20),
    "bytes=100-": slice(100, None),
    "bytes=-7": slice(-7, None),
    "bytes=5-99999999": slice(5, None),
}
MEANINGLESS = ["bytes=5-4", "bytes=0-1,3-4", "lines=1-2", "bytes=x-y", "bytes=-", "bytes=1-2x"]
BEYOND = ["bytes=99999999-", "bytes=-0", "bytes=" + "9" * 40 + "-"]


def test_a_range_gives_just_that_everything_or_a_refusal(served):
    ref = put(served.store, "a").artifact
    http, data = served.http(), content(served.store, ref.digest)
    for asked in (*RANGES, *MEANINGLESS, *BEYOND):
        answer = http.get(f"/v1/entries/{ref.key}/data", headers={"range": asked})
        if asked in RANGES:
            assert answer.status_code == 206 and answer.content == data[RANGES[asked]], asked
            first = RANGES[asked].start % len(data)
            told = f"bytes {first}-{first + len(answer.content) - 1}/{len(data)}"
            assert answer.headers["content-range"] == told
        elif asked in MEANINGLESS:
            assert answer.status_code == 200 and answer.content == data, asked
        else:
            assert answer.status_code == 416, asked
            assert answer.headers["content-range"] == f"bytes */{ref.size_bytes}"


def test_a_download_outlives_a_purge(served):
    ref = put(served.store, "a", size_bytes=20_000_000).artifact
    data = content(served.store, ref.digest)
    http = served.http()
    with http.stream("GET", f"/v1/entries/{ref.key}/data") as answer:
        pieces = answer.iter_bytes()
        got = next(pieces)
        assert served.http().delete(f"/v1/entries/{ref.key}").status_code == 200
        got += b"".join(pieces)
    assert got == data


def test_a_client_that_hangs_up_leaves_no_open_file(served, caplog):
    ref = put(served.store, "a").artifact
    head = f"GET /v1/entries/{ref.key}/data HTTP/1.1\r\nHost: prepcached\r\n\r\n".encode()
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(served.uds))
            gone.sendall(head)
    assert served.http().get(f"/v1/entries/{ref.key}/data").status_code == 200
    objects = served.store.objects
    assert wait_until(lambda: not any(target.startswith(objects) for _, target in descriptors()))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def head(job: Job, length: int, *more: str, item: object = "a") -> bytes:
    """The head of an upload for a lease of its own."""
    lease = job.leased([item])
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
def test_a_body_that_comes_with_its_head_is_stored_whole(served, first):
    job = served.job()
    answer = raw(served.uds, head(job, len(DATA)) + DATA[:first], DATA[first:])
    assert answer.startswith(b"HTTP/1.1 201 ")
    [path] = staged(served)
    assert path.read_bytes() == DATA


def test_an_upload_that_breaks_off_leaves_nothing(served, caplog):
    job = served.job()
    with connected(served, head(job, len(DATA)), DATA[:300_000]):
        assert wait_until(lambda: bool(staged(served)))
    assert wait_until(lambda: not staged(served) and not served.server.server_state.tasks)
    assert job.http.get("/healthz").status_code == 200
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_slow_uploads_keep_no_thread_from_a_commit(served):
    job = served.job()
    with contextlib.ExitStack() as stack:
        for n in range(SLOW_THREADS + 2):
            stack.enter_context(connected(served, head(job, len(DATA), item=n), DATA[:100_000]))
        assert wait_until(lambda: len(staged(served)) == SLOW_THREADS + 2)
        assert served.job().fill(served.store.staging, ["other"])["artifact"]
    assert wait_until(lambda: not staged(served))


@pytest.mark.parametrize("length", [100, len(DATA)])
def test_an_upload_onto_a_full_disk_is_declined(served, monkeypatch, length):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    job = served.job()
    asked = head(job, length)
    monkeypatch.setattr(data_module, "_write", full)
    assert raw(served.uds, asked + DATA[:length]).startswith(b"HTTP/1.1 507 ")
    assert staged(served) == []


def test_an_upload_without_its_lease_ends_and_frees_its_room(tmp_path):
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


@pytest.mark.parametrize("way", ["uploaded", "staged"])
def test_the_file_of_a_refused_commit_does_not_stay(served, way):
    job = served.job()
    lease = job.leased(["a"])
    file: dict[str, object] = {"name": f"{job.session}.file", "size_bytes": 11}
    for status in (422, 409):
        if way == "uploaded":
            _, file = upload(job, lease, b"no artifact")
        else:
            Path(served.store.staging, str(file["name"])).write_bytes(b"no artifact")
        assert len(staged(served)) == 1
        if status == 409:
            assert job.release(lease).status_code == 204
        assert job.commit([lease], file).status_code == status
        assert staged(served) == [] and served.store.stats().staged_bytes == 0


def test_an_upload_of_unknown_length_is_refused(served):
    """Nobody could say whether there is room for it."""
    job = served.job()
    asked = head(job, 3).replace(b"content-length: 3", b"transfer-encoding: chunked")
    answer = raw(served.uds, asked, b"3\r\nabc\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 411 ") and b"Content-Length" in answer
    assert staged(served) == []


def test_a_stop_waits_for_an_upload_that_goes_on(served):
    job = served.job()
    with connected(served, head(job, len(DATA)), DATA[:100_000]) as sock:
        assert wait_until(lambda: bool(staged(served)))
        served.server.ask_to_stop("the test")
        assert wait_until(lambda: not served.uds.exists())
        sock.sendall(DATA[100_000:])
        assert sock.recv(100).startswith(b"HTTP/1.1 201 ")
