"""Artifacts over HTTP, beside what one would write oneself: python -m benchmarks.transfer [--out FOLDER]

Down: the daemon, Starlette's FileResponse, and nginx with sendfile. Up: the daemon, a plain request stream
(`async for chunk in request.stream(): file.write(chunk)`), and nginx by WebDAV. Each is a process of its own
behind a unix socket, the plain ones under the same uvicorn, uvloop and httptools; one client, files of the
same size on the same disk, turns within a round, medians of the ratios of a round. Before each turn all that
waits to be written is, so that none has the disk busy for another; no contestant syncs what is uploaded.
Shown too is what the server's processors spent on a GB: on a busy machine that is the steadier figure.
Without nginx its rows are left out.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.serving import Job, http_client, open_job, process, wait_until  # noqa: E402
from support.stores import stage  # noqa: E402

PIECE_BYTES = 1 << 20
AIMS = {"down": 5.0, "up": 3.0}

PLAIN = """
import os, socket, sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, Response
from starlette.routing import Route

folder, path = sys.argv[1:]

async def down(request):
    return FileResponse(os.path.join(folder, "artifact"))

async def up(request):
    with open(os.path.join(folder, "plain.upload"), "wb") as file:
        async for chunk in request.stream():
            file.write(chunk)
    return Response(status_code=201)

listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
app = Starlette(routes=[Route("/artifact", down), Route("/upload", up, methods=["PUT"])])
config = uvicorn.Config(app, http="httptools", loop="uvloop", log_config=None, access_log=False)
uvicorn.Server(config).run(sockets=[listener])
"""
NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{}}
http {{
    access_log off; sendfile on; client_max_body_size 0; client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t;
    uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
    server {{
        listen unix:{socket};
        location /artifact {{ root {folder}; }}
        location /upload {{ root {folder}/put; dav_methods PUT; create_full_put_path on; }}
    }}
}}
"""


@dataclass
class Server:
    """One contestant.

    Args:
        pid: whose processor time counts.
        down: the path of the artifact.
        up: the path to upload to and more headers, anew for each turn; called outside the timing.
        clean: forgets what was uploaded.
        uploaded: where the last upload lies.
    """

    name: str
    socket: Path
    pid: int
    down: str
    up: Callable[[], tuple[str, dict[str, str]]]
    clean: Callable[[], None]
    uploaded: Callable[[], Path]
    rates: dict[str, list[float]] = field(default_factory=lambda: {"down": [], "up": []})
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: {"down": [], "up": []})


def cpu_s(pid: int) -> float:
    """By the process's own clock: /proc/PID/stat counts in steps of 10 ms. Source: linux/posix-timers.h."""
    return time.clock_gettime(~pid << 3 | 2)


@contextlib.contextmanager
def asked(server: Server, head: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(server.socket))
        sock.sendall(head.encode())
        yield sock


def head_of(sock: socket.socket) -> tuple[bytes, bytes]:
    """The answer's head, and what came of the body with it."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = sock.recv(1 << 16)
        if not piece:
            break
        raw += piece
    head, _, rest = raw.partition(b"\r\n\r\n")
    if head.split()[1:2] not in ([b"200"], [b"201"], [b"204"]):
        raise SystemExit(raw.decode(errors="replace"))
    return head, rest


def download(server: Server, size_bytes: int, buffer: memoryview, digest: str | None = None) -> None:
    hasher = hashlib.sha256()
    with asked(server, f"GET {server.down} HTTP/1.1\r\nhost: x\r\n\r\n") as sock:
        _, rest = head_of(sock)
        hasher.update(rest)
        got = len(rest)
        while got < size_bytes and (n := sock.recv_into(buffer)):
            got += n
            if digest is not None:
                hasher.update(buffer[:n])
    if got != size_bytes or digest not in (None, hasher.hexdigest()):
        raise SystemExit(f"{server.name} sent other bytes, or {got} of {size_bytes}")


def upload(server: Server, path: str, headers: dict[str, str], data: memoryview) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"PUT {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(data)}\r\n\r\n"
    with asked(server, head) as sock:
        for start in range(0, len(data), PIECE_BYTES):
            sock.sendall(data[start : start + PIECE_BYTES])
        head_of(sock)


def timed(server: Server, way: str, size_bytes: int, work: Callable[[], None]) -> None:
    os.sync()
    cpu, began = cpu_s(server.pid), time.perf_counter()
    work()
    server.rates[way].append(size_bytes / (time.perf_counter() - began) / 1e9)
    server.cpu_s[way].append((cpu_s(server.pid) - cpu) / size_bytes * 1e9)


@contextlib.contextmanager
def daemon(folder: Path, megabytes: int) -> Iterator[tuple[Server, Path]]:
    """The daemon with one artifact, and where that lies."""
    with process(folder, "--max-bytes", "64GiB", "--min-free", "0") as running:
        http = http_client(folder / "s.sock")
        root = folder / "root" / "v1"
        job = open_job(http)
        file = stage(str(root / "staging"), ["artifact"], session=job.session, size_bytes=megabytes << 20)
        job.resolve()
        lease = job.lease(["artifact"]).json()["lease"]
        done = job.commit([lease], {"name": file.name, "size_bytes": file.size_bytes}).json()
        if "artifact" not in done:
            raise SystemExit(f"the artifact was not taken: {done}")
        ref = done["artifact"]
        jobs: list[Job] = []

        def up() -> tuple[str, dict[str, str]]:
            jobs.append(open_job(http))
            jobs[-1].resolve()
            generation = jobs[-1].resolve().json()["generation"]
            lease = jobs[-1].lease([f"upload {len(jobs)}"], generation).json()["lease"]
            return f"/v1/leases/{lease['id']}/data", jobs[-1].headers

        def clean() -> None:
            jobs.pop().close()
            if not wait_until(lambda: not list((root / "staging").iterdir())):
                raise SystemExit("an upload was not swept")

        yield (
            Server(
                "prepcached",
                folder / "s.sock",
                running.pid,
                f"/v1/entries/{ref['key']}/data",
                up,
                clean,
                lambda: next((root / "staging").iterdir()),
            ),
            root / "objects" / ref["digest"][:2] / ref["digest"],
        )


@contextlib.contextmanager
def other(name: str, folder: Path, command: list[str], uploaded: Path) -> Iterator[Server]:
    running = subprocess.Popen(command, cwd=folder)
    path = folder / f"{name.split()[0]}.sock"
    try:
        if (
            not wait_until(lambda: path.is_socket() or running.poll() is not None)
            or running.poll() is not None
        ):
            raise SystemExit(f"{name} did not start")
        yield Server(
            name,
            path,
            running.pid,
            "/artifact",
            lambda: ("/upload", {}),
            lambda: uploaded.unlink(),
            lambda: uploaded,
        )
    finally:
        running.kill()
        running.wait()


def measure(servers: list[Server], artifact: Path, rounds: int) -> None:
    size_bytes = artifact.stat().st_size
    data = memoryview(artifact.read_bytes())
    digest = hashlib.sha256(data).hexdigest()
    buffer = memoryview(bytearray(PIECE_BYTES))
    for server in servers:
        download(server, size_bytes, buffer, digest)
    for turn in range(rounds + 1):
        for server in servers[turn % len(servers) :] + servers[: turn % len(servers)]:
            timed(server, "down", size_bytes, partial(download, server, size_bytes, buffer))
            path, headers = server.up()
            timed(server, "up", size_bytes, partial(upload, server, path, headers, data))
            if turn == 0:
                if server.uploaded().read_bytes() != data:
                    raise SystemExit(f"{server.name} stored other bytes")
                server.rates["down"].clear()
                server.rates["up"].clear()
                server.cpu_s["down"].clear()
                server.cpu_s["up"].clear()
            server.clean()


def report(servers: list[Server]) -> dict[str, Any]:
    plain = next(server for server in servers if server.name.startswith("plain"))
    found: dict[str, Any] = {}
    for way, aim in AIMS.items():
        print(f"\n{way} | GB/s (range) | times plain (range) | CPU s/GB | times plain by CPU")
        for server in servers:
            rates = server.rates[way]
            ratios = [rate / base for rate, base in zip(rates, plain.rates[way], strict=True)]
            cpu, plain_cpu = (statistics.median(one.cpu_s[way]) for one in (server, plain))
            found[f"{way} {server.name}"] = {
                "gb_per_s": statistics.median(rates),
                "ratio": statistics.median(ratios),
                "cpu_s_per_gb": cpu,
            }
            print(
                f"{server.name} | {statistics.median(rates):.2f} ({min(rates):.2f}-{max(rates):.2f}) | "
                f"{statistics.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f}) | {cpu:.2f} | "
                f"{plain_cpu / cpu if cpu else float('inf'):.1f}"
            )
        print(f"aim: {aim:.0f} times plain")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--folder", type=Path, help="on which disk; default the system's temporary folder")
    parser.add_argument("--out", type=Path, help="for transfer.json")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="prepcache-benchmarks-", dir=args.folder) as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        own, artifact = stack.enter_context(daemon(folder, args.megabytes))
        os.link(artifact, folder / "artifact")
        plain = [sys.executable, "-c", PLAIN, name, str(folder / "plain.sock")]
        names = "plain (FileResponse, request.stream)"
        servers = [own, stack.enter_context(other(names, folder, plain, folder / "plain.upload"))]
        if shutil.which("nginx"):
            (folder / "put").mkdir()
            folder.chmod(0o755)
            config = folder / "nginx.conf"
            config.write_text(NGINX.format(folder=folder, socket=folder / "nginx.sock"))
            command = ["nginx", "-c", str(config), "-p", name]
            servers.append(stack.enter_context(other("nginx", folder, command, folder / "put" / "upload")))
        else:
            print("nginx is not installed: its distance is not shown")
        measure(servers, artifact, args.rounds)
        found = report(servers)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "transfer.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
