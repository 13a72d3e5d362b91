"""Starting the user's own daemon: one for K jobs, with nothing of the job, and clear words where it fails."""

import grp
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from prepcache.daemon import launcher as launcher_module
from prepcache.daemon.launcher import Launcher
from prepcache.errors import DaemonUnreachable
from support.programs import python

STAND_IN = """
import os, sys, json, signal, time
# prepcached stand-in: tells what it was given, then waits
root = sys.argv[sys.argv.index("--root") + 1]
told = {
    "argv": sys.argv[1:], "cwd": os.getcwd(), "sid": os.getsid(0), "pid": os.getpid(), "ppid": os.getppid(),
    "umask": os.umask(0), "environ": dict(os.environ),
    "fds": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")},
}
with open(os.path.join(root, f"told-{os.getpid()}.part"), "w") as file:
    json.dump(told, file)
os.rename(file.name, file.name.removesuffix(".part"))
signal.pause()
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    script = tmp_path / "prepcached-stand-in.py"
    script.write_text(STAND_IN)
    root = tmp_path / "root"

    def make(code: str | None = None, **environ: str) -> Launcher:
        command = (str(script),) if code is None else ("-c", code, "prepcached")
        return Launcher(root, {**os.environ, **environ}, (sys.executable, *command))

    yield make
    for told in root.glob("told-*"):
        os.kill(int(told.name.partition("-")[2]), signal.SIGKILL)


def told(root: Path) -> list[dict[str, object]]:
    """What the stand-ins that run have told; waits for the first."""
    pause = threading.Event()
    for _ in range(3000):
        found = [path for path in root.glob("told-*") if path.suffix != ".part"]
        if found:
            return [json.loads(path.read_text()) for path in found]
        pause.wait(0.01)
    raise AssertionError((root / launcher_module.LOG_NAME).read_text())


def test_the_daemon_inherits_nothing_of_the_job(make, tmp_path):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        secrets = {"PREPCACHE_TOKEN": "a-job's-token", "PREPCACHE_TOKEN_FILE": "/run/a-job's-token"}
        given = {"PREPCACHED_X": "1", "AWS_SECRET_ACCESS_KEY": "of-the-bucket", **secrets}
        launcher = make(PREPCACHE="refresh", PREPCACHE_URL="unix:///x", PYTHONPATH="rel:/abs", **given)
        assert launcher.start()
        (found,) = told(tmp_path / "root")
    finally:
        os.close(read)
        os.close(write)
    assert found["cwd"] == "/"
    assert found["sid"] not in (os.getsid(0), os.getpid())
    assert found["ppid"] != os.getpid()
    assert found["umask"] == 0o077
    files = found["fds"]
    assert isinstance(files, dict)
    assert files["0"] == "/dev/null"
    assert files["1"] == files["2"] == str(launcher.log)
    assert not any(path.startswith(("pipe:", "socket:")) for path in files.values())
    environ = found["environ"]
    assert isinstance(environ, dict)
    assert [name for name in environ if name.startswith("PREPCACHE")] == ["PREPCACHED_X"]
    assert environ["PYTHONPATH"] == f"{os.path.abspath('rel')}:/abs"
    assert environ["AWS_SECRET_ACCESS_KEY"] == "of-the-bucket", "the bucket is the daemon's to use"
    assert "a-job's-token" not in str(found), "neither in its environment, nor in its command line"
    argv = found["argv"]
    assert argv == [
        *("serve", "--uds", str(launcher.socket), "--root", str(launcher.root)),
        *("--idle-exit", str(launcher_module.IDLE_EXIT_S)),
    ]
    assert stat.S_IMODE(launcher.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(launcher.log.stat().st_mode) == 0o600


def start_until_refused(launcher: Launcher) -> str:
    """Starts as often as a waiting job does, each time after the last one ended."""
    for _ in range(10):
        try:
            launcher.start()
        except DaemonUnreachable as error:
            return error.message
        while launcher.pid:
            time.sleep(0)
    raise AssertionError("it was started for ever")


def test_a_daemon_that_fails_to_start_is_reported_once(make):
    launcher = make("import sys; sys.exit('prepcached: error: the root is on a network filesystem')")
    message = start_until_refused(launcher)
    assert "the root is on a network filesystem" in message and str(launcher.log) in message


def test_one_that_dies_without_a_word_is_not_started_for_ever(make):
    launcher = make("print('started')")
    assert "after its start: it was killed, or gave no reason" in start_until_refused(launcher)
    assert launcher.log.read_text().count("started") == 2


@pytest.mark.parametrize(
    ("shell", "reason"),
    [
        (subprocess.TimeoutExpired("/bin/sh", 5.0), r"\(TimeoutExpired\)"),
        (subprocess.CompletedProcess("/bin/sh", 0, b""), r"/bin/sh failed \(ValueError\)"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
    ],
)
def test_a_launch_that_starts_nothing_leaves_no_daemon(make, monkeypatch, shell, reason):
    def run(*arguments: object, **names: object) -> object:
        if isinstance(shell, Exception):
            raise shell
        return shell

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(DaemonUnreachable, match=reason):
        make().start()


def test_a_long_log_is_renamed_at_the_next_start(make):
    launcher = make("pass")
    launcher.root.mkdir()
    launcher.log.write_bytes(text := bytes(launcher_module.MAX_LOG_BYTES + 1))
    launcher.start()
    assert launcher.log.read_bytes() == b""
    assert Path(f"{launcher.log}.1").read_bytes() == text


def test_without_the_server_extra_its_install_command_is_told(make, monkeypatch):
    monkeypatch.setattr(launcher_module, "SERVER_MODULES", ("no_such_module_of_the_server",))
    with pytest.raises(DaemonUnreachable, match=r'pip install "\.\[server\]"'):
        make().start()


def test_a_root_too_deep_for_a_socket_is_refused(tmp_path):
    launcher = Launcher(tmp_path / ("d" * 100), {})
    with pytest.raises(DaemonUnreachable, match="too long a path: set PREPCACHED_ROOT to a folder with"):
        launcher.start()


def test_a_root_that_cannot_be_made_is_named(make, tmp_path):
    (tmp_path / "root").write_text("a file is in the way")
    what = f"{tmp_path / 'root'}: .*: set XDG_CACHE_HOME or PREPCACHED_ROOT"
    with pytest.raises(DaemonUnreachable, match=what):
        make().start()


def test_the_daemon_of_another_root_is_not_this_ones(make, tmp_path):
    launcher = make()
    launcher.start()
    other = Launcher(tmp_path / "other", {})
    other.root.mkdir()
    shutil.copy(launcher.root / launcher_module.LOCK_NAME, other.root)  # as after a restart of the machine
    told(launcher.root)
    assert launcher.pid and not other.pid


def test_a_foreign_lock_file_is_not_taken_for_a_daemon(make, tmp_path):
    launcher = make()
    launcher.root.mkdir(mode=0o700)
    for text in (str(os.getpid()), "junk", "", "999999999999"):
        (launcher.root / launcher_module.LOCK_NAME).write_text(text)
        launcher._started_at = launcher_module.NEVER
        launcher.start()
        (found,) = told(tmp_path / "root")
        os.kill(int(str(found["pid"])), signal.SIGKILL)
        (tmp_path / "root" / f"told-{found['pid']}").unlink()


HEAVY = {
    "torch", "numpy", "httpx", "httpcore", "fastapi", "sqlalchemy", "uvicorn", "rich", "prepcached", "blake3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("import prepcache", set()),
        ("import prepcache.command.cli", {"rich", "blake3"}),
        (
            "import prepcache; from prepcache.daemon.session import Session\n"
            "Session.current(prepcache.Client('unix:///nowhere.sock'))",
            {"numpy", "blake3"},
        ),
    ],
)
def test_what_is_heavy_is_loaded_only_where_it_is_needed(code, needed):
    program = f"import sys\n{code}\nprint(*sys.modules)"
    assert HEAVY & set(python("-c", program).stdout.split()) <= needed


def test_who_may_not_connect_is_told_how_he_may(tmp_path, monkeypatch):
    path = tmp_path / "system.sock"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(path))
        path.chmod(0o660)
        monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name="cachers"))
        assert "`sudo usermod -aG cachers $USER`, then log in again" in launcher_module.open_to(path)


def test_an_old_daemon_is_not_starting(make):
    """One that hangs is told as silent, and noted for the next jobs."""
    launcher = make()
    launcher.root.mkdir(parents=True, exist_ok=True)
    lock = launcher.root / launcher_module.LOCK_NAME
    code = "import signal; print(flush=True); signal.pause()"
    command = [sys.executable, "-c", code, "prepcached", "--uds", str(launcher.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        try:
            assert daemon.stdout is not None and daemon.stdout.readline()
            lock.write_text(f"{daemon.pid:<20}")
            assert launcher.who() == f" (pid {daemon.pid}, log {launcher.log})" and launcher.is_starting
            launcher.answered_at = time.time()
            assert not launcher.is_starting, "it has answered"
            launcher.answered_at = launcher_module.NEVER
            os.utime(lock, (time.time() - 60, time.time() - 60))
            assert launcher.pid == daemon.pid and not launcher.is_starting
        finally:
            daemon.kill()
