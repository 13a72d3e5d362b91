"""A daemon for tests: in this process behind a real unix socket, or as a process of its own."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from prepcache.protocol import wire
from prepcached import server as daemon_server
from prepcached.config import Settings
from prepcached.daemon import Daemon
from prepcached.start import take
from prepcached.store.store import Store
from support.sandbox import ROOM
from support.stores import RECIPE, ROOMY, item, stage

READY_S = 60.0
"""A start takes 2 s; a crowded test machine may need many times that."""
SILENT_S = 10.0
"""A socket that says nothing for so long says no more."""


def http_client(uds: Path, **kinds: Any) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(uds), verify=False)  # certificates take 20 ms to read
    return httpx.Client(transport=transport, base_url="http://localhost", timeout=30, **kinds)


@dataclass
class Job:
    """A client's session, over the wire."""

    http: httpx.Client
    session: str
    token: str
    recipe: str = RECIPE

    @property
    def headers(self) -> dict[str, str]:
        return {
            wire.SESSION_HEADER: wire.session_header(self.session, self.token),
            wire.PROTOCOL_HEADER: str(wire.PROTOCOL),
        }

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body, headers=self.headers)

    def resolve(self, generation: int = 0, **members: Any) -> httpx.Response:
        body = {"recipe": self.recipe, "name": "tests.recipe", "generation": generation, "hold": True}
        return self.post("/v1/resolve", {**body, "register": {"format": 1}, **members})

    def lease(self, names: Sequence[object], generation: int = 0, **members: Any) -> httpx.Response:
        run_of = b"".join(item(name) for name in names).hex()
        body = {"lease": os.urandom(16).hex(), "recipe": self.recipe, "generation": generation,
                "items": run_of, "want": len(names)}  # fmt: skip
        return self.post("/v1/leases", {**body, **members})

    def leased(self, names: Sequence[object], **members: Any) -> dict[str, Any]:
        """A lease on these items, of a recipe that the daemon knows by then."""
        lease = self.lease(names, self.resolve().json()["generation"], **members).json()["lease"]
        assert lease is not None
        return dict(lease)

    def heartbeat(self, **members: Any) -> httpx.Response:
        return self.post(f"/v1/sessions/{self.session}/beat", members)

    def commit(self, leases: Sequence[Mapping[str, Any]], staged: Mapping[str, Any]) -> httpx.Response:
        tokens = [{"id": lease["id"], "token": lease["token"]} for lease in leases]
        return self.post(f"/v1/leases/{tokens[0]['id']}/commit", {"leases": tokens, "staged": staged})

    def release(self, lease: Mapping[str, Any]) -> httpx.Response:
        path = f"/v1/leases/{lease['id']}"
        return self.http.request("DELETE", path, json={"token": lease["token"]}, headers=self.headers)

    def close(self) -> httpx.Response:
        return self.http.delete(f"/v1/sessions/{self.session}", headers=self.headers)

    def stage(self, staging: str, names: Sequence[object], **kinds: Any) -> dict[str, Any]:
        """An artifact of these items in the shared folder, as `commit` announces it."""
        file = stage(staging, names, session=self.session, recipe=self.recipe, **kinds)
        return {"name": file.name, "size_bytes": file.size_bytes}

    def fill(self, staging: str, names: Sequence[object], **kinds: Any) -> dict[str, Any]:
        """Leases, stages and commits these items; the commit's answer."""
        generation = self.resolve().json()["generation"]
        lease = self.lease(names, generation).json()["lease"]
        done = self.commit([lease], self.stage(staging, names, **kinds))
        assert done.status_code == 200, done.text
        found: dict[str, Any] = done.json()
        return found


@dataclass
class Serving:
    """A daemon in this process, in a thread, behind a real socket."""

    uds: Path
    store: Store
    daemon: Daemon
    server: daemon_server.Server
    clients: list[httpx.Client] = field(default_factory=list)

    def http(self, **kinds: Any) -> httpx.Client:
        client = http_client(self.uds, **kinds)
        self.clients.append(client)
        return client

    def job(self, name: str = "job") -> Job:
        return open_job(self.http(), name)

    def on_loop(self, call: Callable[[], None]) -> None:
        """Runs something on the daemon's own thread, and waits for it."""
        done = threading.Event()

        def work() -> None:
            call()
            done.set()

        self.server.loop.call_soon_threadsafe(work)
        assert done.wait(READY_S)


def open_job(http: httpx.Client, name: str = "job") -> Job:
    body = {"name": name, "pid": os.getpid(), "host": "here"}
    answer = http.post("/v1/sessions", json=body)
    assert answer.status_code == 201, answer.text
    return Job(http, answer.json()["session"], answer.json()["token"])


def build(
    settings: Settings, clock: Callable[[], float] = time.monotonic
) -> tuple[daemon_server.Server, list[socket.socket]]:
    """A server over its opened store, and its listening sockets."""
    place = take(settings, {})
    try:
        return daemon_server.assemble(place, settings, {}, clock), place.listeners
    except BaseException:
        place.close()
        raise


@contextlib.contextmanager
def serving(folder: Path, clock: Callable[[], float] = time.monotonic, **members: Any) -> Iterator[Serving]:
    """Serves a store below `folder` until the end of the block; `members` are settings."""
    uds = folder / "s.sock"
    given = {"max_bytes": ROOMY.max_bytes, "min_free": 0, **members}
    settings = Settings(root=folder / "root", uds=uds, **given)
    server, listeners = build(settings, clock)
    thread = threading.Thread(target=server.run, kwargs={"sockets": listeners}, name="daemon")
    thread.start()
    started = wait_until(lambda: server.started or not thread.is_alive())
    assert started and thread.is_alive()
    found = Serving(uds, server.daemon.store, server.daemon, server)
    try:
        yield found
    finally:
        for client in found.clients:
            client.close()
        server.ask_to_stop("the test is over")
        thread.join(READY_S)
        assert not thread.is_alive()


@contextlib.contextmanager
def process(
    folder: Path,
    *options: str,
    environ: Mapping[str, str] = ROOM,
    program: Sequence[str] = ("-m", "prepcached"),
) -> Iterator[subprocess.Popen[bytes]]:
    """`prepcached serve` in a process of its own, ready; killed at the end of the block if it still runs."""
    uds = folder / "s.sock"
    command = [sys.executable, *program, "serve", "--root", str(folder / "root"), "--uds", str(uds)]
    with open(folder / "log", "ab") as log:
        daemon = subprocess.Popen([*command, *options], stderr=log, env={**os.environ, **environ})
    try:
        is_ready = wait_until(lambda: daemon.poll() is not None or _answers(uds))
        assert is_ready and daemon.poll() is None, (folder / "log").read_text()
        yield daemon
    finally:
        daemon.kill()
        daemon.wait()


def wait_until(holds: Callable[[], bool], limit_s: float = READY_S) -> bool:
    """Whether something became true in time; looks often."""
    until = time.monotonic() + limit_s
    gate = threading.Event()
    while not holds():
        if time.monotonic() > until:
            return False
        gate.wait(0.005)
    return True


def _answers(uds: Path) -> bool:
    """Whether it serves: it listens a second before it answers, and is waited for then."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(READY_S)
        if probe.connect_ex(str(uds)) != 0:
            return False
        with contextlib.suppress(OSError):
            probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return probe.recv(1 << 16).startswith(b"HTTP/1.1 200")
        return False


def raw(uds: Path, *parts: bytes) -> bytes:
    """What a socket answers to raw bytes: one whole answer, or what it says until it closes or is silent."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(SILENT_S)
        sock.connect(str(uds))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                sock.sendall(part)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while not _is_whole(answer) and (piece := sock.recv(1 << 16)):
                answer += piece
        return answer


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.lower().partition(b"\r\n\r\n")
    length = head.partition(b"content-length: ")[2].split(b"\r\n")[0]
    return bool(end and length) and len(body) >= int(length)
