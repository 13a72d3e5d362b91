"""Uploads and downloads: whole, by large pieces, gone on with where they broke off, of no other file."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from prepcache.daemon import waits
from prepcache.daemon.http import Deadline, Transport
from prepcache.errors import DaemonUnreachable, TooLarge
from prepcache.settings import Address
from support.fake_daemon import Request, problem, reply
from support.transports import LIMIT_S, broken_off, connect_fixture  # noqa: F401


def test_an_answer_that_comes_before_all_was_sent_counts(connect: Any, tmp_path: Path) -> None:
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


def test_an_error_of_our_own_disk_is_not_blamed_on_the_daemon(connect: Any) -> None:
    transport, _ = connect(lambda r: reply(b"data", ETag='"e"'))
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError) as caught:
            transport.download("/d", full, etag='"e"', max_bytes=10, limit_s=60.0)
    finally:
        os.close(full)
    assert not isinstance(caught.value, DaemonUnreachable)


def test_an_upload_arrives_whole_and_ends_where_nobody_reads(connect: Any, tmp_path: Path) -> None:
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


def test_a_download_that_broke_off_begins_again(connect: Any, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("etag", ['"other"', None])
def test_another_file_than_asked_for_is_not_taken(connect: Any, tmp_path: Path, etag: str | None) -> None:
    transport, _ = connect(lambda r: reply(b"data", 200, **({"ETag": etag} if etag else {})))
    with open(tmp_path / "got", "w+b") as file, pytest.raises(DaemonUnreachable, match="a file other than"):
        transport.download("/d", file.fileno(), etag='"e"', max_bytes=10, limit_s=60.0)


def test_a_download_longer_than_announced_is_cut_off(connect: Any, tmp_path: Path) -> None:
    transport, _ = connect(lambda r: reply(bytes(1 << 20), ETag='"e"'))
    with open(tmp_path / "got", "w+b") as file:
        with pytest.raises(DaemonUnreachable, match="more than"):
            transport.download("/d", file.fileno(), etag='"e"', max_bytes=10, limit_s=60.0)
        assert os.fstat(file.fileno()).st_size <= 10


def test_a_download_that_was_quick_may_not_be_silent_for_as_long() -> None:
    """A gigabyte in a second would else buy a daemon that stalls then eight minutes of the job."""
    due = Deadline(2.0, is_transfer=True)
    due.received(1 << 30)
    assert due.left_s() <= 2.0
    due.at = time.monotonic() + 0.5
    due.received(waits.SLOWEST_TRANSFER)
    assert 1.0 < due.left_s() <= 1.5, "one that goes on has time for what comes"
