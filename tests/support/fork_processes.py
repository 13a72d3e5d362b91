"""Fork servers that run (fork_server.py), and what a test says to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prepcache.daemon.launcher import listens
from prepcache.protocol.places import own_root, own_socket

REPO = Path(__file__).resolve().parents[2]
END_LIMIT_S = 20


class Running:
    """A running fork server."""

    def __init__(self, module: str, environ: Mapping[str, str]) -> None:
        paths = [str(REPO / "client"), str(REPO / "server"), str(REPO / "tests")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environ, "PYTHONPATH": os.pathsep.join(paths)},
            bufsize=0,
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(END_LIMIT_S)
        self._process.stdout.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the fork server died"
        return dict(json.loads(line))


class Daemons(Running):
    """A running `daemon_actor`."""

    def __init__(self) -> None:
        super().__init__("support.daemon_actor", os.environ)

    def start(self, environ: Mapping[str, str]) -> None:
        """Starts the daemon that a job with this environment would start; returns when it listens."""
        socket = own_socket(environ)
        if listens(socket):
            return
        places = {"socket": str(socket), "root": str(own_root(environ))}
        self._say(json.dumps({"environ": dict(environ), **places}))
        said = self._hear()
        assert said["listens"], said
