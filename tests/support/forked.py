"""Jobs forked from a `job_server`, seen as `subprocess.Popen` shows processes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from prepcache.daemon.launcher import listens
from prepcache.protocol.places import own_root, own_socket
from support.sandbox import NO_TORCH
from support.serving import wait_until

TESTS = str(Path(__file__).parents[1])
ON_DEMAND = str(Path(__file__).with_name("daemon_on_demand.py"))
TORCH = ("torch.utils.data",)
SEEDS = ("1", "2")
"""Hash seeds of the servers, which take turns: processes that share a cache differ in theirs."""


class JobServer:
    """A running `job_server`, which has loaded these modules."""

    def __init__(self, *modules: str, hash_seed: str = SEEDS[0]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended: dict[int, int] = {}
        with theirs:
            command = [sys.executable, "-m", "support.job_server", str(theirs.fileno())]
            folders = [None if {*TORCH} <= {*modules} else str(NO_TORCH), TESTS, os.environ.get("PYTHONPATH")]
            path = os.pathsep.join(filter(None, folders))
            self._process = subprocess.Popen(
                [*command, *modules],
                env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # jobs inherit how it is buffered: as no terminal is
                pass_fds=[theirs.fileno()],
            )

    def start(self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Forked:
        pipes = [os.pipe() for _ in range(3)]
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = pipes
        order = json.dumps({"argv": argv, "environ": dict(environ), "cwd": str(cwd)}).encode()
        socket.send_fds(self._control, [order], [stdin, stdout, stderr])
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        while "status" in (answer := self._hear()):
            pass
        self._ended.pop(answer["pid"], None)  # how an earlier process of this id ended
        return Forked(
            self, answer["pid"], os.fdopen(to_stdin, "w"), os.fdopen(from_stdout), os.fdopen(from_stderr)
        )

    def status(self, pid: int, timeout_s: float | None) -> int | None:
        """How a job ended, waiting so long for it; None while it runs."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while pid not in self._ended:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._control], [], [], left)[0]:
                return None
            self._hear()
        return self._ended[pid]

    def close(self) -> None:
        self._control.close()
        self._process.wait(20)

    def _hear(self) -> dict[str, Any]:
        answer = json.loads(self._control.recv(4096) or b"{}")
        assert answer, "the job server died"
        if "status" in answer:
            self._ended[answer["pid"]] = answer["status"]
        return dict(answer)


class JobServers:
    """Servers for jobs with and without torch, started when they are needed."""

    def __init__(self) -> None:
        self._running: dict[tuple[bool, str], JobServer] = {}
        self._started = 0

    def start(self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Forked:
        has_torch = str(NO_TORCH) not in environ.get("PYTHONPATH", "")
        kind = has_torch, SEEDS[self._started % len(SEEDS)]
        self._started += 1
        if kind not in self._running:
            self._running[kind] = JobServer(*(TORCH if has_torch else ()), hash_seed=kind[1])
        return self._running[kind].start(argv, environ, cwd)

    def close(self) -> None:
        for server in self._running.values():
            server.close()


class Daemons:
    """Forks the daemons that jobs would start on demand: loading what one needs takes most of its start."""

    def __init__(self) -> None:
        self._server = JobServer("prepcached.cli", "prepcached.server")
        self.close = self._server.close

    def start(self, environ: Mapping[str, str]) -> None:
        """Starts the daemon that a job with this environment would start; returns when it listens."""
        socket = own_socket(environ)
        if listens(socket):
            return
        daemon = self._server.start([ON_DEMAND, str(socket), str(own_root(environ))], environ, Path("/"))
        assert wait_until(lambda: listens(socket)), daemon.communicate()
        for stream in (daemon.stdin, daemon.stdout, daemon.stderr):
            stream.close()


@dataclass
class Forked:
    """A job; its members are those of `subprocess.Popen`."""

    _server: JobServer
    pid: int
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    returncode: int | None = None
    _said: list[str] = field(default_factory=lambda: ["", ""])
    _readers: list[threading.Thread] = field(default_factory=list)

    def tell(self, line: str) -> None:
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next line of JSON that it prints; nothing where it has ended."""
        return dict(json.loads(self.stdout.readline() or "{}"))

    def poll(self) -> int | None:
        return self._await(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._await(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"job {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        until = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            self.stdin.close()
            self._readers = [threading.Thread(target=self._read, args=(at,), daemon=True) for at in range(2)]
            for reader in self._readers:
                reader.start()
        for reader in self._readers:
            reader.join(None if until is None else max(0.0, until - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"job {self.pid}; {self._stacks()}", timeout or 0)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        return self._said[0], self._said[1]

    def _stacks(self) -> str:
        """Ends a job that hangs; its state, what it said, and what its threads were at (`faulthandler`)."""
        stood = f"ended with {self.poll()}, but another process has its streams"
        if self.returncode is None:
            stood = Path(f"/proc/{self.pid}/stat").read_text()
            self.send_signal(signal.SIGABRT)
            self.send_signal(signal.SIGCONT)
        for reader in self._readers:
            reader.join(5)
        return "\n".join([stood, *self._said])

    def _read(self, at: int) -> None:
        with (self.stdout, self.stderr)[at] as stream:
            for line in stream:
                self._said[at] += line

    def _await(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            status = self._server.status(self.pid, timeout_s)
            self.returncode = None if status is None else os.waitstatus_to_exitcode(status)
        return self.returncode
