"""The transport against daemons that hang, drip, lie and vanish: it ends in time, with one kind of error."""

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpcore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepcache.daemon import http, waits
from prepcache.daemon.http import Backend, Deadline, Stream, Transport
from prepcache.errors import DaemonUnreachable, Declined, ProtocolMismatch, RequestError, StoreError, TooLarge
from prepcache.protocol import wire
from prepcache.settings import Address
from support.fake_daemon import FakeDaemon, Request, hang, problem, reply
from support.observing import told_by_child

LIMIT_S = 0.5
"""Of an exchange with a daemon that would keep it for ever."""


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., tuple[Transport, FakeDaemon]]]:
    made: list[Any] = []

    def made_to(answer: Callable[[Request], Any]) -> tuple[Transport, FakeDaemon]:
        path = str(tmp_path / "s.sock")
        daemon = FakeDaemon(path, answer)
        transport = Transport(Address(socket=path), who=lambda: " (pid 7)")
        made.extend([transport, daemon])
        return transport, daemon

    yield made_to
    for one in made:
        one.close()


def broken_off(said: bytes) -> Iterator[bytes]:
    yield said
    raise OSError("the connection ends here")


def drip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        threading.Event().wait(0.05)
        yield piece


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

HOSTILE: dict[str, tuple[Callable[[Request], Any], str]] = {
    "says nothing": (hang, "broken"),
    "closes without a word": (lambda r: None, "broken"),
    "closes in the head": (lambda r: broken_off(HEAD), "broken"),
    "closes in the body": (lambda r: broken_off(HEAD + b"Content-Length: 100\r\n\r\n{"), "broken"),
    "falls silent in the head": (lambda r: iter([HEAD]), "broken"),
    "falls silent in the body": (lambda r: [HEAD + b"Content-Length: 100\r\n\r\n{", b""], "broken"),
    "drips its head": (lambda r: drip(itertools.chain([HEAD], itertools.repeat(b"X: y\r\n"))), "broken"),
    "drips its body": (
        lambda r: drip(itertools.chain([HEAD + b"Content-Length: 9999\r\n\r\n"], itertools.repeat(b" "))),
        "broken",
    ),
    "speaks another protocol": (lambda r: b"220 mail ESMTP\r\n" * 4, "nonsense"),
    "sends a head without end": (lambda r: itertools.repeat(b"X-Y: " + b"z" * 1000 + b"\r\n", 5000), "any"),
    "sends one huge header": (lambda r: HEAD + b"X: " + b"y" * (1 << 20) + b"\r\n\r\n{}", "broken"),
    "sends HTML": (lambda r: reply(b"<html>", kind="text/html"), "nonsense"),
    "sends half a JSON text": (lambda r: reply(b'{"a":'), "nonsense"),
    "sends JSON a million deep": (lambda r: reply(b"[" * 1_000_000), "nonsense"),
    "redirects": (lambda r: reply({}, 302, Location="http://elsewhere/"), "nonsense"),
    "answers 500 in HTML": (lambda r: reply(b"<h1>oops", 500, "text/html"), "broken"),
    "answers 404 in HTML": (lambda r: reply(b"<h1>not here", 404, "text/html"), "nonsense"),
    "announces two lengths": (lambda r: HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "broken"),
    "sends bad chunks": (lambda r: HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}", "broken"),
    "answers 101": (lambda r: b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "any"),
}
ENDLESS = [how for how in HOSTILE if how.startswith(("says", "speaks", "falls", "drips"))]


@pytest.mark.parametrize("how", HOSTILE)
def test_a_daemon_that_misbehaves_is_unreachable_in_time(connect, how):
    answer, why = HOSTILE[how]
    transport, _ = connect(answer)
    with pytest.raises(DaemonUnreachable) as caught:
        transport.call("GET", "/v1/info", limit_s=LIMIT_S if how in ENDLESS else 60.0)
    assert why == "any" or caught.value.data["why"] == why
    assert transport.address.url in caught.value.message
    assert (" (pid 7)" in caught.value.message) is (caught.value.data["why"] == "broken")
    assert caught.value.message.isprintable()


GOOD = reply({"generation": 1, "artifacts": []}, ETag='"e"')
SAID = st.binary(max_size=200) | st.builds(
    lambda at, cut, instead: GOOD[:at] + instead + GOOD[at + cut :],
    st.integers(0, len(GOOD)), st.integers(0, 9), st.binary(max_size=9),
)  # fmt: skip


def test_no_bytes_break_a_job(connect):
    says: list[bytes] = []
    transport, _ = connect(lambda r: broken_off(says[-1]))

    @given(SAID)
    @settings(max_examples=300, deadline=None)
    def is_refused_or_taken(said: bytes) -> None:
        says.append(said)
        with contextlib.suppress(DaemonUnreachable, RequestError):
            transport.call("GET", "/v1/resolve", limit_s=60.0)

    is_refused_or_taken()


def test_an_endless_body_is_cut_off(connect, monkeypatch):
    monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", 1 << 20)
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    transport, _ = connect(
        lambda r: itertools.chain([head], itertools.repeat(b"400\r\n" + b" " * 1024 + b"\r\n"))
    )
    with pytest.raises(DaemonUnreachable, match="more than") as caught:
        transport.call("GET", "/v1/info", limit_s=60.0)
    assert caught.value.data["why"] == "nonsense"


def test_nobody_there_is_absent_at_once(tmp_path):
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(stale))
    plain = tmp_path / "plain"
    plain.touch()
    for path in (tmp_path / "none.sock", stale, plain, tmp_path, plain / "below"):
        with pytest.raises(DaemonUnreachable) as caught:
            Transport(Address(socket=str(path))).call("GET", "/v1/info", limit_s=60.0)
        assert caught.value.data["why"] == "absent"


def test_a_problem_document_becomes_its_error(connect):
    answers = [
        problem("declined", 507, "no room", need_bytes=7),
        problem("protocol-mismatch", 426),
        problem("store-error", 500),
        problem("of-a-later-version", 418, "tea\n\x1b[31mpot"),
    ]
    transport, _ = connect(lambda r: answers.pop(0))
    with pytest.raises(Declined, match="no room") as caught:
        transport.call("POST", "/x", {}, limit_s=60.0)
    assert caught.value.need_bytes == 7
    for kind in (ProtocolMismatch, StoreError):
        with pytest.raises(kind):
            transport.call("POST", "/x", {}, limit_s=60.0)
    with pytest.raises(RequestError) as odd:
        transport.call("POST", "/x", {}, limit_s=60.0)
    assert odd.value.message.isprintable()


@pytest.mark.parametrize(
    "said",
    [
        problem("declined", 507, message="mine", self="me", args=[1], data={}, **{"not an identifier": 1}),
        problem("unkeyable", 422, "an error that only a job may raise"),
        problem("preprocess-failed", 500),
        problem("daemon-unreachable", 503),
        problem("declined", 400, None),  # type: ignore[arg-type]
        problem("declined", 400, [{}]),  # type: ignore[arg-type]
    ],
)
def test_whatever_a_problem_document_holds_it_is_a_refusal(connect, said):
    transport, _ = connect(lambda r: said)
    with pytest.raises(RequestError):
        transport.call("POST", "/x", {}, limit_s=60.0)


def test_a_request_says_who_it_is_and_nothing_else(connect, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    transport, daemon = connect(lambda r: reply({"a": 1}))
    answer = transport.call("POST", "/v1/x", {"b": 2}, limit_s=60.0, params={"q": "a&b"}, session="s.t")
    assert answer == {"a": 1}
    (request,) = daemon.requests
    assert (request.method, request.path, request.json) == ("POST", "/v1/x?q=a%26b", {"b": 2})
    assert request.headers["prepcache-protocol"] == str(wire.PROTOCOL)
    assert request.headers["prepcache-session"] == "s.t"
    assert request.headers["accept-encoding"] == "identity"
    assert "authorization" not in request.headers


def test_many_threads_share_a_transport(connect):
    transport, _ = connect(lambda r: reply({"path": r.path}))

    def ask(thread: int) -> None:
        for i in range(20):
            path = f"/{thread}/{i}"
            assert transport.call("GET", path, limit_s=60.0)["path"] == path

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(ask, range(16)))


def test_a_forked_child_opens_connections_of_its_own(connect, monkeypatch):
    inherited: list[socket.socket] = []
    monkeypatch.setattr(http, "Stream", lambda sock: inherited.append(sock) or Stream(sock))
    transport, _ = connect(lambda r: reply({}))
    transport.call("GET", "/", limit_s=60.0)
    assert len(inherited) == 1
    told = told_by_child(lambda: [inherited[0].fileno(), transport.call("GET", "/", limit_s=60.0)])
    assert told == [-1, {}]
    assert inherited[0].fileno() >= 0
    transport.call("GET", "/", limit_s=60.0)


def test_a_socket_that_another_user_listens_on_is_not_spoken_to(tmp_path, monkeypatch):
    due: Any = Deadline(60.0)
    there = tmp_path / "s.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(there))
    listener.listen()
    unchecked, checked = Address(socket=str(there)), Address(socket=str(there), owner=os.geteuid())
    for address in (unchecked, checked):
        Backend(address).connect_unix_socket(str(there), due).close()
    monkeypatch.setattr(http, "peer_uid", lambda sock: os.geteuid() + 1)
    Backend(unchecked).connect_unix_socket(str(there), due).close()
    with pytest.raises(httpcore.ConnectError) as raised:
        Backend(checked).connect_unix_socket(str(there), due)
    assert "another user listens there" in str(raised.value.args[0])
    listener.close()


def test_an_answer_that_comes_before_all_was_sent_counts(connect, tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "early.sock"))
    listener.listen()

    def refuse() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(problem("too-large", 413, "at most 1 MiB"))

    server = threading.Thread(target=refuse)
    server.start()
    transport = Transport(Address(socket=str(tmp_path / "early.sock")))
    with listener, pytest.raises(TooLarge):
        pieces = itertools.repeat(bytes(1 << 20), 64)
        transport.upload("/d", pieces, 64 << 20, limit_s=60.0, session="s.t")
    server.join()


def test_an_error_of_our_own_disk_is_not_blamed_on_the_daemon(connect):
    transport, _ = connect(lambda r: reply(b"data", ETag='"e"'))
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError) as caught:
            transport.download("/d", full, etag='"e"', max_bytes=10, limit_s=60.0)
    finally:
        os.close(full)
    assert not isinstance(caught.value, DaemonUnreachable)


def test_an_upload_arrives_whole_and_ends_where_nobody_reads(connect):
    data = os.urandom(3 << 20)
    transport, daemon = connect(lambda r: reply({"size": len(r.body)}))
    pieces = [data[i : i + 100_000] for i in range(0, len(data), 100_000)]
    assert transport.upload("/d", pieces, len(data), limit_s=60.0, session="s.t") == {"size": len(data)}
    assert daemon.requests[0].body == data
    daemon.close()
    deaf = socket.socket(socket.AF_UNIX)
    deaf.bind(daemon.path)
    deaf.listen(1)
    with deaf, pytest.raises(DaemonUnreachable):
        transport.upload("/d", itertools.repeat(bytes(1 << 20), 64), 64 << 20, limit_s=LIMIT_S, session="s.t")


def test_a_download_that_broke_off_begins_again(connect, tmp_path):
    data, answers = os.urandom(300_000), itertools.count()

    def answer(request: Request) -> Any:
        assert request.headers["if-match"] == '"e"'
        if next(answers):
            return reply(data, ETag='"e"')
        head = f'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: {len(data)}\r\n\r\n'.encode()
        return broken_off(head + bytes(100_000))

    transport, _ = connect(answer)
    with open(tmp_path / "got", "w+b") as file:
        options = {"etag": '"e"', "max_bytes": len(data), "limit_s": 5.0}
        with pytest.raises(DaemonUnreachable):
            transport.download("/d", file.fileno(), **options)
        transport.download("/d", file.fileno(), **options)
        assert os.pread(file.fileno(), 1 << 20, 0) == data


@pytest.mark.parametrize(
    ("etag", "size", "told"),
    [('"other"', 4, "a file other"), (None, 4, "a file other"), ('"e"', 11, "more than")],
)
def test_a_download_of_another_file_is_not_taken(connect, tmp_path, etag, size, told):
    transport, _ = connect(lambda r: reply(bytes(size), 200, **({"ETag": etag} if etag else {})))
    with open(tmp_path / "got", "w+b") as file:
        with pytest.raises(DaemonUnreachable, match=told):
            transport.download("/d", file.fileno(), etag='"e"', max_bytes=10, limit_s=60.0)
        assert os.fstat(file.fileno()).st_size <= 10


def test_a_download_that_was_quick_may_not_be_silent_for_as_long():
    """A gigabyte in a second would else buy a daemon that stalls then eight minutes of the job."""
    due = Deadline(2.0, is_transfer=True)
    due.received(1 << 30)
    assert due.left_s() <= 2.0
    due.at = time.monotonic() + 0.5
    due.received(waits.SLOWEST_TRANSFER)
    assert 1.0 < due.left_s() <= 1.5, "one that goes on has time for what comes"
