"""Daemons as processes: how they start, stop, die and come back, and what they notice of jobs that die."""

import contextlib
import json
import os
import pwd
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from prepcache.errors import IndexCorrupt, RootUnusable
from support.fake_daemon import FakeDaemon, reply
from support.programs import python
from support.sandbox import ROOM
from support.serving import READY_S, http_client, open_job, process, raw, wait_until


def prepcached(
    *arguments: str, code: int = 0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`prepcached` in a process of its own, to its end."""
    return python("-m", "prepcached", *arguments, code=code, env=env)


@contextmanager
def served(
    folder: Path, *options: str, **kinds: Any
) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """A daemon, and a client of it."""
    with process(folder, *options, **kinds) as daemon, http_client(folder / "s.sock") as http:
        yield daemon, http


def fill(folder: Path, http: httpx.Client, names: str = "abc") -> None:
    """A job that stores some items."""
    open_job(http).fill(str(folder / "root" / "v1" / "staging"), names)


def test_sigterm_ends_a_daemon_cleanly_while_jobs_wait(tmp_path):
    with served(tmp_path) as (daemon, http):
        holder, job = open_job(http, "holder"), open_job(http)
        holder.leased("ab")
        answers: list[Any] = []
        waiter = threading.Thread(target=lambda: answers.append(job.lease("ab", wait_s=2)))
        waiter.start()
        with http_client(tmp_path / "s.sock") as other:
            assert wait_until(lambda: other.get("/v1/stats").json()["waiting"] == 1)
        daemon.terminate()
        assert daemon.wait(READY_S) == 0
        waiter.join(READY_S)
        assert answers[0].status_code == 200 and answers[0].json()["granted"] == []
        assert not (tmp_path / "s.sock").exists()


HUNG_UP_EARLY = """
import os, signal, sys
from prepcached import __main__

class Loading:
    def find_spec(self, name, path=None, target=None):
        if name in ("prepcached.cli", "uvicorn"):
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, Loading())
__main__.main()
"""


def test_a_daemon_started_with_blocked_signals_hears_them(tmp_path):
    """Also one that comes while it starts: it reloads then. And it leaves the metrics of a job alone."""
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    environ = {**ROOM, "PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    with contextlib.ExitStack() as running:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            daemon = running.enter_context(process(tmp_path, program=("-c", HUNG_UP_EARLY), environ=environ))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert wait_until(lambda: "reloaded: the budget" in (tmp_path / "log").read_text())
        daemon.terminate()
        assert daemon.wait(READY_S) == 0 and list(metrics.iterdir()) == []


def test_a_daemon_that_lost_its_socket_gives_up_the_root(tmp_path):
    with process(tmp_path, "--idle-exit", "600") as daemon:
        with http_client(tmp_path / "s.sock") as http:
            assert http.get("/healthz").status_code == 200
        (tmp_path / "s.sock").unlink()
        assert daemon.wait(READY_S) == 0
    assert "its socket was removed" in (tmp_path / "log").read_text()
    with process(tmp_path):
        pass


def test_who_only_looks_does_not_keep_a_daemon_on_demand(tmp_path):
    """A page that is left open, and a command that watches: they stay connected, or ask again and again."""
    head = b"HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with served(tmp_path, "--idle-exit", "0.3") as (daemon, http):
        assert http.get("/v1/stats").status_code == 200

        def has_ended_under_looks() -> bool:
            with contextlib.suppress(OSError):
                raw(tmp_path / "s.sock", b"GET / " + head)
                raw(tmp_path / "s.sock", b"HEAD /v1/sessions " + head)
            return daemon.poll() is not None

        assert wait_until(has_ended_under_looks) and daemon.returncode == 0


def test_the_log_has_one_line_for_each_event_and_no_secret(tmp_path):
    token = tmp_path / "token"
    token.write_text("correct-horse-battery-staple")
    token.chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = ("--host", "127.0.0.1", "--port", port, "--token-file", str(token), "--log-level", "debug")
    with served(tmp_path, *options) as (daemon, http):
        job = open_job(http, "a job")
        job.fill(str(tmp_path / "root" / "v1" / "staging"), "abc")
        assert http.post("/v1/leases", content=b"{").status_code == 400
        assert job.close().status_code == 204
        daemon.terminate()
        assert daemon.wait(READY_S) == 0
    log = (tmp_path / "log").read_text()
    user = pwd.getpwuid(os.getuid()).pw_name
    assert f"opened: a job (pid {os.getpid()} on here), user {user}" in log
    assert "ended (closed): a job" in log and job.token not in log and "correct-horse" not in log
    assert [line for line in log.splitlines() if not line[:4].isdigit()] == []


def test_a_socket_from_systemd_is_served_and_readiness_is_told(tmp_path):
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with told, listener:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(READY_S)
        listener.bind(str(tmp_path / "s.sock"))
        listener.listen()
        code = (
            "import os, sys\n"
            f"os.dup2({listener.fileno()}, 3); os.set_inheritable(3, True)\n"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
            f"serve = ['-m', 'prepcached', 'serve', '--root', {str(tmp_path / 'root')!r}]\n"
            f"serve += ['--uds', {str(tmp_path / 's.sock')!r}]\n"
            "os.execv(sys.executable, [sys.executable, *serve])\n"
        )
        daemon = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[listener.fileno()],
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"},
            stderr=subprocess.DEVNULL,
        )
        try:
            assert told.recv(200).startswith(b"EXTEND_TIMEOUT_USEC=")  # an index may have to be made again
            assert told.recv(200) == b"READY=1\nSTATUS="
            assert [told.recv(100), told.recv(100)] == [b"WATCHDOG=1"] * 2
            with http_client(tmp_path / "s.sock") as http:
                assert http.get("/healthz").json() == {"status": "ok"}
            stop = [sys.executable, "-m", "prepcached", "stop", "--uds", str(tmp_path / "s.sock")]
            with subprocess.Popen(stop) as stopping:
                while (last := told.recv(100)) == b"WATCHDOG=1":
                    pass
                assert last == b"STOPPING=1"
                assert (stopping.wait(READY_S), daemon.wait(READY_S)) == (0, 0)
            assert (tmp_path / "s.sock").exists(), (
                "the socket is systemd's, which starts the next daemon by it"
            )
        finally:
            daemon.kill()
            daemon.wait()


def test_stop_check_and_rebuild_from_the_command_line(tmp_path):
    config = tmp_path / "prepcached.toml"
    config.write_text(f'root = "{tmp_path}/root"\n')

    of_config, of_socket = ("--config", str(config)), ("--uds", str(tmp_path / "s.sock"))
    with served(tmp_path) as (daemon, http):
        fill(tmp_path, http)
        http.close()
        assert json.loads(prepcached("check", "--json", *of_socket, *of_config).stdout) == []
        [folder] = [one.parent for one in (tmp_path / "root" / "v1" / "objects").glob("*/*")]
        stray = folder / (folder.name * 32)
        stray.write_text("x")
        beside = prepcached("check", *of_socket, *of_config, code=1)
        assert beside.stdout.startswith("found   file-without-row:")
        stray.unlink()
        for command in (("check", "--repair"), ("serve", *of_socket)):
            refused = prepcached(*command, *of_config, code=29).stderr
            assert f"pid {daemon.pid}" in refused and "Traceback" not in refused
        prepcached("stop", *of_socket, *of_config)
        assert daemon.wait(READY_S) == 0
    prepcached("stop", *of_socket, *of_config, code=3)
    assert json.loads(prepcached("check", "--json", *of_config).stdout) == []
    (tmp_path / "root" / "v1" / "index.sqlite").unlink()
    prepcached("rebuild", *of_config)
    with served(tmp_path) as (_, http):
        assert [one["items"] for one in http.get("/v1/entries").json()["entries"]] == [3]


def test_stop_ends_the_daemon_that_the_environment_names(tmp_path):
    def stop(url: str, code: int, **more: str) -> subprocess.CompletedProcess[str]:
        environ = {name: text for name, text in os.environ.items() if not name.startswith("PREPCACHE")}
        environ |= {"XDG_CACHE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": "", "PREPCACHE_URL": url, **more}
        return prepcached("stop", code=code, env=environ)

    url = f"unix://{tmp_path}/s.sock"
    with process(tmp_path) as daemon:
        assert "stop that daemon where it runs" in stop("http://box:8080", 2).stderr
        stop(url, 3, PREPCACHED_ROOT=str(tmp_path / "other"))
        stopped = stop(url, 0)
        assert daemon.wait(READY_S) == 0
    assert stopped.stdout == f"stopped the daemon at {tmp_path}/s.sock (pid {daemon.pid})\n"


def test_stop_ends_who_listens_and_nobody_that_an_answer_names(tmp_path):
    bystander = subprocess.Popen(["sleep", "300"])
    fake = FakeDaemon(str(tmp_path / "s.sock"), lambda _: reply({"pid": bystander.pid}))
    try:
        stopped = prepcached("stop", "--uds", fake.path, code=1)
        assert stopped.stdout == "" and "as in a container: stop it there" in stopped.stderr
        assert bystander.poll() is None
    finally:
        fake.close()
        bystander.kill()
        bystander.wait()


def test_a_daemon_of_64_descriptors_serves_and_refuses_by_name(tmp_path):
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
    limited += "runpy.run_module('prepcached', run_name='__main__', alter_sys=True)"
    uds = tmp_path / "s.sock"
    with process(tmp_path, program=("-c", limited)), contextlib.ExitStack() as stack:
        http = stack.enter_context(http_client(uds))
        job = open_job(http)
        for _ in range(80):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(uds))
        assert wait_until(lambda: b" 503 " in raw(uds, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        staging = str(tmp_path / "root" / "v1" / "staging")
        for name in "abc":  # with the connection that it has
            job.fill(staging, [name])
        assert http.get("/v1/stats").json()["entries"] == 3
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_thousand_idle_connections_keep_nobody_waiting(tmp_path):
    uds = tmp_path / "s.sock"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("needs 4,096 descriptors")
    with process(tmp_path) as daemon, contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
        for _ in range(1000):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX))
            idle.connect(str(uds))
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert len(os.listdir(f"/proc/{daemon.pid}/fd")) > 1000
        http = stack.enter_context(http_client(uds))
        job = open_job(http)
        job.fill(str(tmp_path / "root" / "v1" / "staging"), "ab")
        assert http.get("/v1/stats").json()["entries"] == 1
        assert b"prepcache_refused_connections_total 0.0" in http.get("/metrics").content


def test_the_budget_changes_while_the_daemon_runs(tmp_path):
    config = tmp_path / "prepcached.toml"
    config.write_text('max_bytes = "64MiB"\nmin_free = "1MiB"\n')
    with served(tmp_path, "--config", str(config), environ={}) as (daemon, http):

        def limits() -> list[int]:
            told = http.get("/v1/info").json()["limits"]
            return [told["max_bytes"], told["min_free_bytes"]]

        assert limits() == [64 << 20, 1 << 20]
        config.write_text('max_bytes = "32MiB"\nmin_free = "2MiB"\n')
        daemon.send_signal(signal.SIGHUP)
        assert wait_until(lambda: limits() == [32 << 20, 2 << 20])
        assert http.post("/v1/purge", json={"owner": os.getuid() + 1}).status_code == 200
        config.write_text("max_bytes = nonsense")
        daemon.send_signal(signal.SIGHUP)
        assert wait_until(lambda: "settings were not reloaded" in (tmp_path / "log").read_text())
        assert limits() == [32 << 20, 2 << 20]
        (tmp_path / "root" / "budget").write_text("nonsense")
        config.write_text('min_free = "2MiB"\n')
        daemon.send_signal(signal.SIGHUP)
        told = "settings were not reloaded: " + str(tmp_path / "root" / "budget")
        assert wait_until(lambda: told in (tmp_path / "log").read_text())
        assert limits() == [32 << 20, 2 << 20]


@pytest.mark.nightly(daily=["root"])
@pytest.mark.parametrize("what", ["root", "root/v1"])
def test_a_daemon_whose_root_is_removed_ends(tmp_path, what):
    with served(tmp_path) as (first, http):
        open_job(http, "still connected").resolve()
        os.rename(tmp_path / what, tmp_path / "removed")
        if what == "root":  # somebody else begins there already
            (tmp_path / "root").mkdir()
            (tmp_path / "root" / "kept").write_text("another daemon's")
        assert first.wait(READY_S) == RootUnusable.exit_code
    log = (tmp_path / "log").read_text()
    assert "was removed" in log and "Traceback" not in log
    assert not (tmp_path / "s.sock").exists()
    if what == "root":
        assert (tmp_path / "root" / "kept").read_text() == "another daemon's"
    with served(tmp_path) as (_, http):
        assert http.get("/healthz").status_code == 200


PAGE = 4096


def damage(path: Path, skipped: int) -> None:
    """Overwrites all but the first bytes."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(skipped)
        file.write(os.urandom(max(0, size - skipped)))


def test_a_damaged_index_ends_the_daemon_and_is_rebuilt(tmp_path):
    index = tmp_path / "root" / "v1" / "index.sqlite"
    with served(tmp_path) as (first, http):
        fill(tmp_path, http)
        damage(index, PAGE)
        damage(index.with_name("index.sqlite-wal"), 32)
        assert first.wait(READY_S) == IndexCorrupt.exit_code
    assert not list(index.parent.glob("index.sqlite*")), "the next start may read no page that is damaged"
    with served(tmp_path) as (_, http):
        assert [one["items"] for one in http.get("/v1/entries").json()["entries"]] == [3]
        assert http.get("/v1/stats").json()["recovered"] == {"new index": 1, "indexed": 1}
    log = (tmp_path / "log").read_text()
    assert "the next start rebuilds it" in log and "Traceback" not in log


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
    places = ["--root", str(folder / "root"), "--uds", str(folder / "s")]
    command = [sys.executable, "-c", SERVE, "serve", *places]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    daemon = subprocess.Popen(command, text=True, env={**os.environ, **ROOM}, **pipes)  # type: ignore[call-overload]
    with daemon:
        try:
            assert daemon.stdout.readline() == "loads\n"
            yield daemon
        finally:
            daemon.kill()


def test_a_daemon_listens_before_it_loads_its_libraries(tmp_path):
    with starting(tmp_path) as daemon, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(tmp_path / "s"))
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        daemon.stdin.write("go on\n")
        daemon.stdin.flush()
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("end", ["failed", "stopped"])
def test_a_start_that_ends_early_leaves_no_socket(tmp_path, end):
    with starting(tmp_path) as daemon:
        if end == "stopped":
            daemon.send_signal(signal.SIGTERM)
        _, said = daemon.communicate("fail\n")
        assert not (tmp_path / "s").exists()
        assert daemon.returncode == (0 if end == "stopped" else 1), said
