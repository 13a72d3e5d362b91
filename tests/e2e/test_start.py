"""The start of a daemon: it listens before it has loaded what it answers with."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.sandbox import ROOM

HEAVY = ("asyncio", "fastapi", "uvicorn", "sqlalchemy", "numpy", "http.client")

SERVE = f"""
import sys

class Loading:
    def find_spec(self, name, path=None, target=None):
        if name in {HEAVY!r}:
            print("loads", flush=True)
            if "fail" in sys.stdin.readline():
                raise ImportError("no such library", name=name)
            sys.meta_path.remove(self)

sys.meta_path.insert(0, Loading())
from prepcached.cli import main
main()
"""


@contextmanager
def starting(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A daemon that is about to load its libraries, and goes on when it reads a line."""
    command = [
        sys.executable,
        "-c",
        SERVE,
        "serve",
        "--root",
        str(folder / "root"),
        "--uds",
        str(folder / "s"),
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    daemon = subprocess.Popen(command, text=True, env={**os.environ, **ROOM}, **pipes)  # type: ignore[call-overload]
    with daemon:
        try:
            assert daemon.stdout.readline() == "loads\n"
            yield daemon
        finally:
            daemon.kill()


def test_a_daemon_listens_before_it_loads_its_libraries(tmp_path: Path) -> None:
    with starting(tmp_path) as daemon, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(tmp_path / "s"))
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        daemon.stdin.write("go on\n")
        daemon.stdin.flush()
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("end", ["failed", "stopped"])
def test_a_start_that_ends_early_leaves_no_socket(tmp_path: Path, end: str) -> None:
    with starting(tmp_path) as daemon:
        if end == "stopped":
            daemon.send_signal(signal.SIGTERM)
        _, said = daemon.communicate("fail\n")
        assert not (tmp_path / "s").exists()
        assert daemon.returncode == (0 if end == "stopped" else 1), said
